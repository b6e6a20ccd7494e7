"""Past failures stay fixed: every file of `tests/replays` holds."""

from pathlib import Path

import pytest

from tests.fuzz.replays import rule_broken_in

REPLAYS = sorted(path for path in (Path(__file__).parent / "replays").iterdir() if path.suffix in {".json", ".jsonl"})


@pytest.mark.parametrize("path", REPLAYS, ids=lambda path: path.name)
def test_what_once_failed_holds(path, tmp_path):
    assert rule_broken_in(path, tmp_path) is None
