"""The recipe gsm8k as on GPUs, on a CPU: 64 rows, a tiny model, and what placement=auto chooses for two GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.cli.inputs import CONFIG, write_tokenizer
from tests.e2e.launched import LaunchedRun, rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}="


def write_model(folder: Path) -> Path:
    """Random weights, a tokenizer with a chat template."""
    torch.manual_seed(0)
    sizes = {name: value for name, value in CONFIG.items() if name not in {"architectures", "model_type"}}
    Qwen2ForCausalLM(Qwen2Config(**sizes)).save_pretrained(folder)
    write_tokenizer(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    return folder


def write_rows(file: Path, num_rows: int) -> Path:
    rows = [
        {"id": f"g{number}", "domain": "math", "prompt": f"{number} + 1", "ground_truth": str(number + 1)}
        for number in range(num_rows)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def test_the_recipe_trains_two_steps_as_it_would_on_two_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # not real: what is chosen for them works on cores
    write_model(tmp_path / "model")
    run = LaunchedRun(
        tmp_path / "run",
        "experiment=gsm8k",
        f"model.path={tmp_path / 'model'}",
        f"data.path={write_rows(tmp_path / 'gsm8k.jsonl', 64)}",
        "rollout.num_prompts=8",
        "rollout.num_responses=4",
        "rollout.max_response_tokens=24",
        "run.num_steps=2",
        "backend.deadlines.start_s=600",
    )
    assert run.wait() == 0, run.output()
    steps = rows(run.run_dir, "steps")
    assert [row["tokens_trained"] > 0 for row in steps] == [True, True]
    config = yaml.safe_load((run.run_dir / "config.yaml").read_text())
    assert (config["placement"]["engine"], config["placement"]["trainer"]) == ("all", "all")
    assert (config["trainer"]["name"], config["trainer"]["data_parallel"]) == ("fsdp", 2)
    assert (config["trainer"]["logits_chunk_tokens"], config["model"]["dtype"]) == (1024, "bfloat16")
    intervals = rows(run.run_dir, "intervals")
    assert {"asleep"} <= {row["activity"] for row in intervals if row["role"] == "engine"}  # they took turns
