"""The worlds are worth something: each deliberate bug is found by the worlds that it names."""

import pytest

from tests.fuzz.bugs import BUGS
from tests.fuzz.bugs.harness import Worlds, is_found, run_schedulers, scheduler_worlds


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_worlds_find_this_bug(bug):
    assert is_found(bug), f"not found in {bug.worlds}"


@pytest.mark.parametrize("worlds", [worlds for worlds in Worlds if worlds is not Worlds.RUNS])
def test_without_a_bug_the_same_worlds_hold(worlds):
    run_schedulers(worlds, scheduler_worlds(worlds)[::4])


def test_no_two_bugs_have_one_name():
    assert len({bug.name for bug in BUGS}) == len(BUGS)
