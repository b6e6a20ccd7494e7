"""What a run needs of its backend before its first step."""

from __future__ import annotations

from pathlib import Path

from rollpacker import pipeline
from rollpacker.metrics.tables import read_table
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.composed import config_of, small


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
