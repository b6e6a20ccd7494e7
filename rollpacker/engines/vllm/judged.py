"""The engine settings of a judge that runs in vLLM; imports no vLLM."""

from __future__ import annotations

from rollpacker.config.sections.engine import EngineSection, VllmSection
from rollpacker.config.sections.judge import JudgeSection

MAX_NUM_SEQS = 256
"""Prompts of one forward pass; the tokens of a batch are the tighter bound."""


def judge_as_engine(section: JudgeSection) -> EngineSection:
    """Return the engine settings that match a judge's."""
    return EngineSection(
        name="vllm",
        max_num_seqs=MAX_NUM_SEQS,
        tensor_parallel=section.tensor_parallel,
        num_threads=section.num_threads,
        vllm=VllmSection(
            memory_share=section.memory_share,
            kv_cache_mb=section.kv_cache_mb,
            enforce_eager=section.enforce_eager,
            # one pass for the longest prompt: on a CPU vLLM computes a prompt in one
            max_num_batched_tokens=max(section.max_batch_tokens, section.max_prompt_tokens + 1),
        ),
    )
