"""The recipe gsm8k as on GPUs, on a CPU: 64 rows, a tiny model, and what placement=auto chooses for two GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import Qwen2Config, Qwen2ForCausalLM

from rollpacker.config.compose import compose
from tests.cli.inputs import CONFIG, write_tokenizer
from tests.data.files import write_cached, write_parquet
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


def write_gsm8k(cache: Path) -> None:
    """As `hf download openai/gsm8k --repo-type dataset` leaves it in the cache, with fewer problems."""
    files = {}
    for split, first, num_rows in (("train", 0, 64), ("test", 1000, 6)):
        rows = [
            {"question": f"{number} + 1", "answer": f"One more.\n#### {number + 1:,}"}
            for number in range(first, first + num_rows)
        ]
        files[f"main/{split}-00000-of-00001.parquet"] = write_parquet(cache / f"{split}.parquet", rows)
    write_cached(cache, "dataset", "openai/gsm8k", files)


def test_the_recipe_trains_and_evaluates_as_it_would_on_two_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # not real: what is chosen for them works on cores
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    write_model(tmp_path / "model")
    write_gsm8k(tmp_path / "hub")
    run = LaunchedRun(
        tmp_path / "run",
        "experiment=gsm8k",
        f"model.path={tmp_path / 'model'}",
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
    evaluations = rows(run.run_dir, "evaluations")
    assert [(row["step"], row["set"], row["num_prompts"]) for row in evaluations] == [(0, "gsm8k", 6), (2, "gsm8k", 6)]
    assert config["data"]["path"] == f"hf://openai/gsm8k@{'c' * 40}/main"


@pytest.mark.parametrize("recipe", ["gsm8k", "dapo-math"])
def test_every_word_of_a_recipe_is_legal(recipe):
    config = compose([f"experiment={recipe}", "model.path=m", "run.dir=r"])
    assert config.evaluation.rules[0].columns.keys() == config.data.files[0].columns.keys()
