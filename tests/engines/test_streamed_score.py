"""`rollpacker score` with a judge: the streamed model gives the rewards that the plain one gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from rollpacker.cli.main import main
from tests.engines.streamable import save_model
from tests.judges import make_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

JUDGE = [
    *[
        "reward=judge",
        "reward.judge.model.path=judge",
        "reward.judge.model.dtype=float32",
        "reward.judge.reward=graded",
    ],
    *["reward.judge.yes=[Y]", "reward.judge.no=[N]", "reward.judge.min_mass=0", "reward.judge.max_prompt_tokens=2000"],
]


def test_a_file_of_responses_gets_the_same_rewards_from_streamed_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained("judge")
    save_model(tmp_path / "judge", vocab_size=len(tokenizer), max_position_embeddings=2048)
    prompt = {"id": "p", "domain": "qa", "prompt": "Capital of France?", "rubric": "names the capital"}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(prompt))
    texts = ["Paris", "Lyon, I think. " * 9, "It is Paris.", ""]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps({"id": "p", "response": text}) + "\n" for text in texts))
    scores: dict[str, list[float]] = {}
    for engine, words in (("torch", []), ("streamed", ["reward.judge.resident_share=0"])):
        out = tmp_path / f"{engine}.jsonl"
        files = ["data.path=prompts.jsonl", "responses=answers.jsonl", f"out={out.name}"]
        assert main(["score", *files, *JUDGE, f"reward.judge.engine={engine}", *words]) == 0
        scores[engine] = [json.loads(line)["reward"] for line in out.read_text().splitlines()]
    assert scores["streamed"] == pytest.approx(scores["torch"], abs=1e-5)
    assert len(set(scores["torch"])) > 1
