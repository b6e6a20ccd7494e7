"""What a real run leaves when it ends: engine and trainer in this process, two steps."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from rollpacker.metrics.tables import read_table
from rollpacker.runtime.run import opening
from tests.golden.real import BackendHere
from tests.runtime.run.test_failures import Notes

CALLBACK = """
import json

class Keeps:
    def __init__(self, run_dir):
        self.run_dir = run_dir

    def keep(self, *what):
        with (self.run_dir / "kept.jsonl").open("a") as file:
            file.write(json.dumps(what, default=str) + "\\n")

    def on_step(self, row):
        self.keep("step", row)

    def on_checkpoint(self, path):
        self.keep("checkpoint", (path / "meta.json").is_file())

    def on_end(self, error):
        self.keep("end", (self.run_dir / "model" / "config.json").is_file())
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    torch.set_num_threads(1)
    make_model(tmp_path / "model", num_iterations=2)
    (tmp_path / "prompts.jsonl").write_text(task.prompt_file(24, random.Random(2)))
    (tmp_path / "mine.py").write_text(CALLBACK)
    return [
        *(f"run.dir={tmp_path}/run", f"model.path={tmp_path}/model", f"data.path={tmp_path}/prompts.jsonl"),
        *("system=verl", "reward=walk", "engine.num_engines=1", "data.max_prompt_tokens=16", "run.num_steps=2"),
        *("rollout.num_prompts=4", "rollout.num_responses=2", "rollout.max_response_tokens=16"),
        *("trainer.learning_rate=1e-3", f"run.callbacks=[{tmp_path}/mine.py:Keeps]"),
    ]


def train(words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    notes = Notes()
    monkeypatch.setattr(opening, "make_progress", lambda *_, **__: notes)
    config = compose(words)
    asyncio.run(pipeline.train(config, BackendHere(config)))
    return notes.lines


def test_a_run_leaves_its_model_tells_its_callbacks_and_records_the_peaks_of_its_gpus(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_gb, trainer_gb = iter([1.0, 2.5, 2.0]), iter([7.5, 8.0])  # the engines are asked once before the first step
    monkeypatch.setattr("rollpacker.engines.torch.engine.gpu_memory_peak_gb", lambda: next(engine_gb))
    monkeypatch.setattr("rollpacker.trainers.grpo.gpu_memory_peak_gb", lambda: next(trainer_gb))
    notes = train(words, monkeypatch)
    run_dir = tmp_path / "run"
    assert notes[-1] == f"The trained model is in {run_dir}/model (bfloat16)."

    trained = load_file(run_dir / "checkpoints" / "step-000002" / "trainer" / "model" / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(run_dir / "model", dtype="auto")
    weights = model.state_dict()
    assert all(torch.equal(weights[name], trained[name].to(torch.bfloat16)) for name in trained)
    assert AutoTokenizer.from_pretrained(run_dir / "model")("3 20 :").input_ids
    assert "| steps | 2 of 2 |" in (run_dir / "model" / "README.md").read_text()

    rows = read_table(run_dir, "steps").to_pylist()
    assert [dict(row["gpu_memory_peak_gb"]) for row in rows] == [
        {"engine": 2.5, "trainer": 7.5},
        {"engine": 2.0, "trainer": 8.0},
    ]
    kept = [json.loads(line) for line in (run_dir / "kept.jsonl").read_text().splitlines()]
    assert [kind for kind, _ in kept] == ["step", "step", "checkpoint", "end"]
    assert [row["loss"] for kind, row in kept if kind == "step"] == [row["loss"] for row in rows]
    assert [value for kind, value in kept if kind != "step"] == [True, True]


def test_without_gpus_there_are_no_peaks_and_without_a_type_there_is_no_model(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train([*words, "model.export_dtype=null"], monkeypatch) == []
    assert not (tmp_path / "run" / "model").exists()
    assert [row["gpu_memory_peak_gb"] for row in read_table(tmp_path / "run", "steps").to_pylist()] == [None, None]
