"""A few of the runs whose environments fail; `python -m tests.fuzz.environment_world` makes many."""

import pytest

from tests.fuzz.environment_world import EnvironmentRun

DEADLOCK, SPIN, STRANDED, OUTDATED = 195, 13, 20348, 108925
"""Worlds in which held-out trajectories once found no place among suspended ones, in which the timer of the starts of a
minute once came a rounding error too early for ever, in which a next turn waited although only lent engines were left,
and in which an engine was given up for a turn, told of twice, of an episode that had begun again since."""


@pytest.mark.parametrize("seed", [*range(0, 40, 4), SPIN, DEADLOCK, STRANDED, OUTDATED])
def test_a_run_whose_environments_fail_trains_or_drops_each_prompt_once(seed, tmp_path):
    EnvironmentRun(seed, tmp_path).run()
