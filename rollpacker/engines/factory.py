"""Makes the engine or judge's model that a configuration names; each implementation is imported when it is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.engine import EngineSection
    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.core.ids import EngineId
    from rollpacker.protocols.engine import Engine
    from rollpacker.protocols.judging import JudgeModel


def make_engine(engine: EngineId, config: RunConfig) -> Engine:
    """Start an engine in this process, for the running event loop.

    It holds no policy yet; raises `UserError` when it cannot serve the model.
    """
    max_tokens_per_seq = config.data.max_prompt_tokens + config.longest_response_tokens
    match config.engine.name:
        case "torch":
            from rollpacker.engines.torch.engine import TorchEngine

            return TorchEngine(
                engine=engine,
                model_path=config.model.directory,
                section=config.engine,
                max_tokens_per_seq=max_tokens_per_seq,
                dtype=config.model.dtype,
                drafts=config.system.speculative_decoding,
            )
        case "vllm":
            from rollpacker.engines.vllm.start import start_vllm

            return start_vllm(
                engine=engine,
                model_path=config.model.directory,
                section=with_priorities(config.engine) if config.evaluation.when == "fill" else config.engine,
                max_tokens_per_seq=max_tokens_per_seq,
                dtype=config.model.dtype,
            )


def with_priorities(section: EngineSection) -> EngineSection:
    """Let vLLM take heed of `GenerationRequest.priority`, when it starts requests and when it preempts one."""
    arguments = {"scheduling_policy": "priority"} | section.vllm.arguments
    return section.model_copy(update={"vllm": section.vllm.model_copy(update={"arguments": arguments})})


def open_judge(section: JudgeSection) -> JudgeModel:
    """Load a judge's model in this process, for the running event loop; raises `UserError` when it cannot be."""
    match section.engine:
        case "torch" | "streamed":
            from rollpacker.engines.torch.judge import TorchJudge

            return TorchJudge(section)
        case "vllm":
            from rollpacker.engines.vllm.start import start_vllm_judge

            return start_vllm_judge(section)
