"""Judges' models by torch: the numbers are those of a plain forward pass, however prompts are batched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from rollpacker.config.sections.judge import JudgeSection
from rollpacker.config.sections.model import ModelSection
from rollpacker.core.errors import ConfigError
from rollpacker.engines.judging import batches_by_length
from rollpacker.engines.torch.judge import TorchJudge
from tests.engines.tiny import (
    CONFIGS,
    LONG_FACTOR,
    LONGROPE_LIMIT,
    VOCABULARY,
    longrope_config,
    make_model,
    make_model_of,
)
from tests.judges import first_token_logprobs

if TYPE_CHECKING:
    from pathlib import Path

CANDIDATES = (7, 3, 21)


def prompts_of_many_lengths(num: int, longest: int = 60) -> list[Any]:
    numbers = np.random.default_rng(0)
    return [numbers.integers(2, VOCABULARY, size).astype(np.int32) for size in numbers.integers(1, longest + 1, num)]


def make_judge(folder: Path, architecture: str = "qwen2", **keys: Any) -> tuple[TorchJudge, Any]:
    model = make_model(architecture)
    model.save_pretrained(folder)
    return TorchJudge(JudgeSection(model=ModelSection(path=folder, dtype="float32"), **keys)), model


@pytest.mark.parametrize("architecture", sorted(CONFIGS))
async def test_logprobs_are_those_of_a_plain_forward_pass_whatever_else_is_in_the_batch(
    architecture: str, tmp_path: Path
) -> None:
    judge, model = make_judge(tmp_path, architecture, max_batch_tokens=200)
    prompts = prompts_of_many_lengths(20)
    answers = await judge.next_token_logprobs(prompts, CANDIDATES)
    await judge.close()
    expected = torch.stack([first_token_logprobs(model, prompt)[list(CANDIDATES)] for prompt in prompts])
    assert torch.allclose(torch.tensor(answers), expected, atol=1e-4)


@pytest.mark.parametrize("keys", [{}, {"engine": "streamed", "num_slots": 1}], ids=["torch", "streamed"])
@pytest.mark.parametrize(("longest", "factor"), [(LONGROPE_LIMIT - 1, 1.0), (60, LONG_FACTOR)])
async def test_a_longrope_has_the_factors_of_the_longest_prompt_whatever_else_is_in_the_batch(
    keys: dict[str, Any], longest: int, factor: float, tmp_path: Path
) -> None:
    make_model_of(longrope_config()).save_pretrained(tmp_path)
    reference = make_model_of(longrope_config(short_factor=factor))
    model = ModelSection(path=tmp_path, dtype="float32")
    judge = TorchJudge(JudgeSection(model=model, max_prompt_tokens=longest, max_batch_tokens=200, **keys))
    prompts = prompts_of_many_lengths(20, longest)
    answers = await judge.next_token_logprobs(prompts, CANDIDATES)
    await judge.close()
    expected = torch.stack([first_token_logprobs(reference, prompt)[list(CANDIDATES)] for prompt in prompts])
    assert torch.allclose(torch.tensor(answers), expected, atol=1e-4)


async def test_tokens_that_the_model_does_not_have_are_the_users_mistake(tmp_path: Path) -> None:
    judge, _ = make_judge(tmp_path)
    with pytest.raises(ConfigError, match="tokenizer of another model"):
        await judge.next_token_logprobs([np.array([3], np.int32)], (VOCABULARY,))
    await judge.close()


def test_a_batch_holds_what_it_may_with_padding_and_a_long_prompt_is_alone() -> None:
    prompts = prompts_of_many_lengths(50)
    batches = list(batches_by_length(prompts, 40))
    assert sorted(index for batch in batches for index in batch) == list(range(50))
    for batch in batches:
        longest = max(len(prompts[index]) for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= 40
