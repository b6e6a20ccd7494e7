"""Runs to compare."""

import pytest

from tests.analysis.comparisons import SHORT_AND_LONG, write
from tests.analysis.written_runs import write_scores


@pytest.fixture
def both(tmp_path):
    idle = {"decode_slot_steps_idle": 30, "decode_slot_steps_busy": 10}
    tail = {"decode_slot_steps_idle": 10, "decode_slot_steps_busy": 30, "tokens_generated": 100, "tokens_wasted": 25}
    return [
        write(tmp_path / "verl", "verl", [4.0] * 10, **idle),
        write(tmp_path / "rollpacker", "rollpacker", SHORT_AND_LONG, **tail),
    ]


@pytest.fixture
def seeds(tmp_path):
    """Two systems with three seeds each, as a multirun leaves them."""
    for seed, (plain_s, tail_s, gain) in enumerate([(4.0, 2.0, 0.01), (6.0, 2.0, 0.02), (8.0, 4.0, 0.03)]):
        for system, time_s, score in (("rollpacker", tail_s, 0.8 + gain), ("verl", plain_s, 0.8)):
            folder = write(tmp_path / "runs" / f"{system}-{seed}", system, [time_s] * 10, seed=seed)
            write_scores(folder, {0: 0.5, 10: score + seed / 10})
    (tmp_path / "runs" / "multirun.yaml").write_text("")
    return tmp_path / "runs"
