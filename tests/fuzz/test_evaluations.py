"""What is held out changes no training batch: worlds without faults, with nothing held out, alone, and with fill."""

from __future__ import annotations

import pytest

from tests.fuzz.bugs.evaluating import FILL_A_RACE
from tests.fuzz.bugs.harness import with_bug
from tests.fuzz.held_out import changed, runs_of


@pytest.mark.parametrize("first", [0, 10, 20])
def test_worlds_evaluate_and_no_evaluation_changes_what_is_trained(first: int) -> None:
    worlds = [runs_of(seed) for seed in range(first, first + 10)]
    assert sum("fill" in runs for runs in worlds) >= 3
    assert not any(is_changed for runs in worlds for is_changed in changed(runs).values())
    assert not any(runs["none"][1] for runs in worlds)
    assert sum(runs["alone"][1] > 0 for runs in worlds) >= 8
    assert any(runs["fill"][1] for runs in worlds if "fill" in runs)


def test_an_evaluation_beside_a_race_would_change_what_is_trained() -> None:
    with with_bug(FILL_A_RACE):  # one tail-batching world in forty shows it, seed 15 first
        assert changed(runs_of(15)) == {"alone": False, "fill": True}
