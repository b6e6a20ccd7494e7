"""Which texts of a run stand on its page."""

import pandas as pd
import pytest

from rollpacker.report.held_out import first_of_each, read_held_out
from tests.cli.test_show import write_run


def chosen(num, *groups):
    samples = pd.DataFrame(groups, columns=["kind", "group"])
    return first_of_each(samples, num).index.tolist()


def test_of_training_and_evaluations_as_many_are_chosen_and_of_each_domain_and_set():
    groups = [("training", "math")] * 4 + [("evaluation", "aime")] * 4 + [("evaluation", "code")] * 4
    assert chosen(6, *groups) == [0, 1, 2, 4, 5, 8]
    assert chosen(8, *groups) == [0, 1, 2, 3, 4, 5, 8, 9]


def test_more_of_one_set_are_chosen_where_there_are_less_of_another():
    assert chosen(4, *[("evaluation", "aime")] * 5, ("evaluation", "code")) == [0, 1, 2, 5]


@pytest.mark.parametrize("name", ["manifest.json", "evaluation_responses/step-000002.parquet"])
def test_texts_of_training_are_shown_where_evaluations_cannot_be_read(tmp_path, name):
    damaged = write_run(tmp_path, ["aime"]) / "evaluation" / name
    damaged.write_bytes(b"PAR1")
    found = read_held_out(tmp_path)
    assert set(found.texts["kind"]) == {"training"}
    assert found.problem.startswith(f"Held-out scores and texts are not shown: {damaged}")
    assert found.scores.empty
