"""Records of a run that cannot be written, and what its event log has of those that were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.core.errors import StorageFailed
from rollpacker.metrics.event_log import attempt_path, read_event_log
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.runtime.run.callbacks import Callbacks
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.composed import config_of
from tests.sim.test_systems import SMALL
from tests.sim.test_turns import TurnsBackend


def test_a_step_whose_records_cannot_be_written_is_said_to_fail_during_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_space(*_: object) -> None:
        raise StorageFailed("steps.parquet could not be written", "Files written before are complete", "Make room")

    monkeypatch.setattr(MetricsWriter, "write_step", no_space)
    with pytest.raises(StorageFailed):
        pipeline.run(compose([*SMALL, f"run.dir={tmp_path}", "system=verl", "run.progress=plain"]))
    assert "failed during recording, after 0 of 5 steps" in capsys.readouterr().out


def test_the_event_log_has_every_event_before_an_evaluation_and_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held.jsonl").write_text('{"id": "h", "domain": "math", "prompt": "x", "ground_truth": "1"}\n')
    words = [f"evaluation.path={tmp_path}/held.jsonl", "evaluation.every_steps=2", "run.checkpoint_every_steps=1"]
    config = config_of(tmp_path / "run", [*SMALL, *words, "system=verl"], num_steps=2)
    num_events = 0
    recorded: list[tuple[str, bool]] = []

    def watch(*_: object) -> Any:
        def on_event(*_: object) -> None:
            nonlocal num_events
            num_events += 1

        return on_event

    def look(kind: str) -> Any:
        def call(*_: object) -> None:
            log = read_event_log(attempt_path(tmp_path / "run", 0))
            recorded.append((kind, len(log.records) == num_events))

        return call

    monkeypatch.setattr(Callbacks, "on_evaluation", look("evaluation"))
    monkeypatch.setattr(Callbacks, "on_checkpoint", look("checkpoint"))
    run_in_virtual_time(pipeline.train(config, TurnsBackend(config, num_sharing=3), watch))
    assert recorded == [(kind, True) for kind in ("evaluation", "checkpoint", "evaluation", "checkpoint")]
