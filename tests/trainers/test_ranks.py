"""The processes that run what other tests ask of several ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.trainers.fsdp_scenarios import crash_once

if TYPE_CHECKING:
    from pathlib import Path

    from tests.trainers.ranks import Ranks


def test_what_crashes_once_is_run_once_more_and_says_so(two_ranks: Ranks, tmp_path: Path):
    with pytest.warns(UserWarning, match="run once more"):
        assert two_ranks.run(crash_once, tmp_path / "marker") == [0, 1]


def test_what_crashes_again_fails(two_ranks: Ranks):
    with pytest.warns(UserWarning, match="run once more"), pytest.raises(AssertionError, match="process died: -6"):
        two_ranks.run(os.abort)
