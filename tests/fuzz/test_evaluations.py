"""What is held out changes no training batch: worlds without faults, with nothing held out, alone, and with fill."""

from __future__ import annotations

import pytest

from tests.fuzz.bugs.evaluating import FILL_A_RACE
from tests.fuzz.bugs.harness import with_bug
from tests.fuzz.held_out import batches_of, changed, worlds_of


@pytest.mark.parametrize("first", [0, 10, 20])
def test_no_evaluation_changes_what_is_trained(first: int) -> None:
    ways = [changed(seed) for seed in range(first, first + 10)]
    assert sum("fill" in each for each in ways) >= 3
    assert not any(is_changed for each in ways for is_changed in each.values())


def test_the_worlds_evaluate(tmp_path) -> None:
    nums_scored = []
    for seed in range(8):
        for number, world in enumerate(worlds_of(seed)):
            folder = tmp_path / f"{seed}-{number}"
            folder.mkdir()
            nums_scored.append((number, batches_of(world, folder)[1] if world else 0))
    assert not any(scored for number, scored in nums_scored if number == 0)
    assert all(scored for number, scored in nums_scored if number == 1)
    assert any(scored for number, scored in nums_scored if number == 2)


def test_an_evaluation_beside_a_race_would_change_what_is_trained() -> None:
    with with_bug(FILL_A_RACE):  # one tail-batching world in forty shows it, seed 74 first
        assert changed(74) == {"alone": False, "fill": True}
