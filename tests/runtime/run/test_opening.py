"""What a run needs of its backend before its first step."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.core.errors import DataError
from rollpacker.core.ids import Domain
from rollpacker.metrics.tables import read_table
from rollpacker.runtime.run import opening
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.composed import config_of, small


class RealTime(ModelledBackend):
    """Modelled workers of a run whose event loop is watched."""

    is_modelled = False


def test_prompts_are_ordered_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def contents_of(_: object) -> dict[Domain, int]:
        threads.append(threading.current_thread())
        raise DataError("That is all.")

    monkeypatch.setattr(opening, "contents_of", contents_of)
    config = config_of(tmp_path / "run", small())
    with pytest.raises(DataError, match="That is all"):
        asyncio.run(pipeline.train(config, RealTime(config)))
    assert threads != [threading.main_thread()]


def test_a_run_that_trains_nothing_needs_no_workers_though_its_configuration_is_of_one_that_has_them(
    tmp_path: Path,
) -> None:
    held_out = tmp_path / "held.jsonl"
    held_out.write_text('{"id": "h", "domain": "math", "prompt": "x"}\n')
    words = small(f"evaluation.path={held_out}", "evaluation.num_samples=2")
    elastic = config_of(tmp_path / "run", [*words, "elastic=sim"], num_steps=0)
    without_workers = config_of(tmp_path / "run", words, num_steps=0)
    run_in_virtual_time(pipeline.train(elastic, ModelledBackend(without_workers)))
    assert len(read_table(tmp_path / "run", "evaluation_responses")) == 2
