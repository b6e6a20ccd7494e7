"""Makes the engine or judge's model that a configuration names; each implementation is imported when it is chosen."""

from __future__ import annotations

import json

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.engine import EngineSection
from rollpacker.config.sections.judge import JudgeSection
from rollpacker.core.ids import EngineId
from rollpacker.engines.vllm.installed import drafter_of, eagle_method
from rollpacker.protocols.judging import JudgeModel
from rollpacker.protocols.members import MemberEngine


def make_engine(engine: EngineId, config: RunConfig) -> MemberEngine:
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
                keeps_requests=config.system.interrupt == "keep",
            )
        case "vllm":
            from rollpacker.engines.vllm.start import start_vllm

            return start_vllm(
                engine=engine,
                model_path=config.model.directory,
                section=vllm_section(config),
                max_tokens_per_seq=max_tokens_per_seq,
                dtype=config.model.dtype,
                keeps_requests=config.system.interrupt == "keep",
            )


def vllm_section(config: RunConfig) -> EngineSection:
    """The section with the arguments of vLLM that follow from the rest of the configuration."""
    section = with_priorities(config.engine) if config.evaluation.when == "fill" else config.engine
    return with_drafter(section) if config.system.speculative_decoding else section


def with_priorities(section: EngineSection) -> EngineSection:
    """Let vLLM take heed of `GenerationRequest.priority`, when it starts requests and when it preempts one."""
    return _with_argument(section, "scheduling_policy", "priority")


def with_drafter(section: EngineSection) -> EngineSection:
    """Let vLLM verify draft tokens, of the drafter that the section names or this environment has."""
    vllm, method = section.vllm, drafter_of(section.vllm)
    drafter: dict[str, object] = {"method": method, "num_speculative_tokens": vllm.draft_length}
    if method == "ngram":
        drafter |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}  # a single token matches too often by chance
    if vllm.draft_model is not None:  # its weights come from its directory, the policy's from the trainer
        drafter |= {"method": eagle_method(vllm.draft_model), "model": str(vllm.draft_model)}
        drafter["draft_load_config"] = {"load_format": "auto"}
        section = _with_argument(section, "sleep_preserve_parameter_names", json.dumps(["draft.*"]))
    if (largest := vllm.draft_max_sequences) is not None and largest < section.max_num_seqs:
        schedule = [[1, largest, vllm.draft_length], [largest + 1, section.max_num_seqs, 0]]
        drafter["num_speculative_tokens_per_batch_size"] = schedule
    return _with_argument(section, "speculative_config", json.dumps(drafter))


def _with_argument(section: EngineSection, name: str, value: str) -> EngineSection:
    """Add an argument of vLLM, unless the user has set it."""
    arguments = {name: value} | section.vllm.arguments
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
