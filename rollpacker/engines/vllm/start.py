"""Starts an engine of vLLM in this process, or reports why it cannot start.

vLLM is imported here and in the modules that only this one imports, after the environment is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import UserError
from rollpacker.engines.vllm.environment import prepare_environment
from rollpacker.engines.vllm.installed import check_vllm, check_vllm_installed
from rollpacker.engines.vllm.judged import judge_as_engine
from rollpacker.engines.vllm.servable import refuse_experts

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.config.sections.engine import EngineSection
    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.core.ids import EngineId
    from rollpacker.engines.vllm.engine import VllmEngine
    from rollpacker.engines.vllm.judge import VllmJudge


def start_vllm(
    engine: EngineId,
    model_path: Path,
    section: EngineSection,
    max_tokens_per_seq: int,
    dtype: str,
    *,
    keeps_requests: bool = False,
) -> VllmEngine:
    """Start vLLM's processes and wait until they are ready: seconds for a small model, minutes for a large one.

    Must be called in a running event loop, the one in which the engine will be used. It is blocked meanwhile.

    Args:
        engine: Its name in responses.
        model_path: A local Hugging Face directory.
        section: Slots, GPUs, memory.
        max_tokens_per_seq: Prompt and response together.
        dtype: Of weights and KV cache, such as `bfloat16`.
        keeps_requests: Whether it takes weights with requests in flight, and keeps their KV cache.

    Raises:
        UserError: vLLM is not installed, does not take an argument, or cannot serve the model on this machine.
        EngineFailed: It did not start.
    """
    check_vllm(section.vllm)
    refuse_experts(model_path)
    prepare_environment(section)
    from rollpacker.engines.vllm.engine import VllmEngine

    return VllmEngine(engine, model_path, section, max_tokens_per_seq, dtype, keeps_requests=keeps_requests)


def start_vllm_judge(section: JudgeSection) -> VllmJudge:
    """Start vLLM for a judge, as `start_vllm` does for an engine.

    Raises:
        UserError: vLLM is not installed, or cannot serve the judge's model on this machine.
        EngineFailed: It did not start.
    """
    check_vllm_installed("reward.judge.engine=vllm", "reward.judge.engine=torch")
    prepare_environment(judge_as_engine(section))
    from rollpacker.engines.vllm.judge import VllmJudge

    try:
        return VllmJudge(section)
    except UserError as error:
        raise type(error)(
            error.problem,
            error.allowed,
            "Change reward.judge.tensor_parallel, dtype or memory_share, or choose reward.judge.engine=torch.",
        ) from error
