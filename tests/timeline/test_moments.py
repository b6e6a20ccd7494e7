"""When engines were there, from what the event logs say of them."""

import math

from rollpacker.timeline.moments import Attempt, LoggedMoments, Moment

FIRST = Attempt(number=0, first_step=0, began_at_s=0.0, ended_at_s=50.0)
SECOND = Attempt(number=1, first_step=2, began_at_s=40.0, ended_at_s=90.0)
THIRD = Attempt(number=2, first_step=1, began_at_s=20.0, ended_at_s=90.0)


def lives(*happened, attempts=(FIRST,)):
    moments = tuple(Moment(at_s=at_s, what=what, engine=engine) for at_s, what, engine in happened)
    return LoggedMoments(attempts=attempts, moments=moments, steps=frozenset()).lives()


def test_an_engine_is_there_from_joining_until_it_is_lost_lent_or_not():
    found = lives((0, "joined", "a"), (0, "joined", "b"), (5, "lent", "a"), (7, "lost", "b"), (9, "joined", "b-r1"))
    assert found == {"a": [(0, math.inf)], "b": [(0, 7)], "b-r1": [(9, math.inf)]}


def test_in_a_change_all_engines_give_way_and_those_of_before_may_come_again():
    there_and_back = (
        *((0, "joined", "a"), (10, "tail_change", None), (11, "joined", "large"), (11, "retired", "a")),
        *((20, "fleet_change", None), (22, "joined", "a"), (22, "retired", "large")),
    )
    assert lives(*there_and_back) == {"a": [(0, 10), (22, math.inf)], "large": [(11, 20)]}


def test_an_attempt_begins_without_the_engines_of_the_one_before():
    found = lives((0, "joined", "a-r1"), (40, "joined", "a"), attempts=(FIRST, SECOND))
    assert found == {"a-r1": [(0, 40)], "a": [(40, math.inf)]}


def test_an_attempt_that_a_later_one_makes_again_from_before_its_beginning_ends_no_engine():
    joined = ((0, "joined", "a"), (20, "joined", "a"), (60, "lost", "a"))
    assert lives(*joined, attempts=(FIRST, SECOND, THIRD)) == {"a": [(0, 20), (20, 60)]}
