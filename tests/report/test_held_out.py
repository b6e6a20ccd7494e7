"""Which texts of a run stand on its page."""

import pandas as pd

from rollpacker.report.held_out import first_of_each


def chosen(num, *groups):
    samples = pd.DataFrame(groups, columns=["kind", "group"])
    return first_of_each(samples, num).index.tolist()


def test_of_training_and_evaluations_as_many_are_chosen_and_of_each_domain_and_set():
    groups = [("training", "math")] * 4 + [("evaluation", "aime")] * 4 + [("evaluation", "code")] * 4
    assert chosen(6, *groups) == [0, 1, 2, 4, 5, 8]
    assert chosen(8, *groups) == [0, 1, 2, 3, 4, 5, 8, 9]


def test_more_of_one_set_are_chosen_where_there_are_less_of_another():
    assert chosen(4, *[("evaluation", "aime")] * 5, ("evaluation", "code")) == [0, 1, 2, 5]
