"""What is said of a run whose records cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.core.errors import StorageFailed
from rollpacker.metrics.table_writer import MetricsWriter
from tests.sim.test_systems import SMALL


def test_a_step_whose_records_cannot_be_written_is_said_to_fail_during_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_space(*_: object) -> None:
        raise StorageFailed("steps.parquet could not be written", "Files written before are complete", "Make room")

    monkeypatch.setattr(MetricsWriter, "write_step", no_space)
    with pytest.raises(StorageFailed):
        pipeline.run(compose([*SMALL, f"run.dir={tmp_path}", "system=verl", "run.progress=plain"]))
    assert "failed during recording, after 0 of 5 steps" in capsys.readouterr().out
