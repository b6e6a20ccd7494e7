"""Past failures stay fixed: every file of `tests/replays` holds."""

from pathlib import Path

import pytest

from rollpacker.fuzz.replays import rule_broken_in

REPLAYS = sorted(path for path in (Path(__file__).parent / "replays").iterdir() if path.suffix in {".json", ".jsonl"})

WAIT_FOR_A_FIX = {
    "crashed-engine-asked-for-statistics.json": "Driver._ask_stats lets EngineFailed end a run that has other engines",
    "engine-dies-before-it-joined.json": "Driver._lose reports the loss of an engine that was never reported to join",
    "hung-engine-asked-for-statistics.json": "Driver._ask_stats waits without a deadline",
}
"""Found, and not fixed yet."""


def _case(path: Path):
    reason = WAIT_FOR_A_FIX.get(path.name)
    marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
    return pytest.param(path, id=path.name, marks=marks)


@pytest.mark.parametrize("path", [_case(path) for path in REPLAYS])
def test_what_once_failed_holds(path, tmp_path):
    assert rule_broken_in(path, tmp_path) is None
