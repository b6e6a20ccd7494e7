"""A judge's model in vLLM, for `protocols.judging.JudgeModel`: requests of one token, with its probabilities.

`logprob_token_ids` asks for the log-probabilities of given tokens and no others (vLLM 0.25 and later). With
`raw_logprobs` they are those of the model's logits, before anything that sampling does to them. vLLM batches the
requests by itself, and computes the common prefix of several prompts only once. Weights are read from the model's
directory, and nothing changes them.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from rollpacker.core.errors import EngineFailed
from rollpacker.engines.judging import check_candidates
from rollpacker.engines.vllm.arguments import make_llm
from rollpacker.engines.vllm.judged import judge_as_engine
from rollpacker.engines.vllm.lifeline import SHUTDOWN_S
from rollpacker.engines.vllm.stats import StepTotals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.outputs import RequestOutput

    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.protocols.rollout import TokenIds


class VllmJudge:
    """Reads prompts with vLLM's processes, which it starts and ends. `start.start_vllm_judge` makes it."""

    def __init__(self, section: JudgeSection) -> None:
        self._llm = make_llm(
            section.model.directory,
            judge_as_engine(section),
            section.max_prompt_tokens + 1,  # vLLM has no request without a token to generate
            section.model.dtype,
            StepTotals,
            load_format="auto",
            logprobs_mode="raw_logprobs",
        )
        model = self._llm.vllm_config.model_config
        self._num_words: int = model.get_vocab_size()
        self._has_sleep_mode: bool = model.enable_sleep_mode
        self._keys = itertools.count()
        self._is_closed = False

    async def next_token_logprobs(
        self, prompts: Sequence[TokenIds], candidates: Sequence[int]
    ) -> Sequence[tuple[float, ...]]:
        """Judge all prompts; vLLM cuts them into batches.

        Raises:
            EngineFailed: One of vLLM's processes ended.
        """
        check_candidates(candidates, self._num_words)
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprob_token_ids=list(candidates),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        try:
            outputs = await asyncio.gather(*(self._ask(prompt, params) for prompt in prompts))
        except (EngineDeadError, EngineGenerateError) as error:
            raise EngineFailed(
                f"vLLM stopped judging: {error}", "", "The log of this judge says more; it may be memory."
            ) from error
        return [tuple(logprobs[token].logprob for token in candidates) for logprobs in map(_first, outputs)]

    async def sleep(self) -> None:
        """Move the weights to host memory, and drop the KV cache."""
        await self._llm.sleep(level=1 if self._has_sleep_mode else 0)

    async def wake(self) -> None:
        await self._llm.wake_up(None if self._has_sleep_mode else ["scheduling"])

    async def describe_work(self) -> str:
        return ""

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._llm.shutdown, SHUTDOWN_S)
            del self._llm  # it complains when it is deleted only at the interpreter's end

    async def _ask(self, prompt: TokenIds, params: SamplingParams) -> RequestOutput:
        key = f"judge-{next(self._keys)}"
        async for output in self._llm.generate(tokens_input(prompt.tolist()), params, key):
            if output.finished:
                return output
        raise EngineFailed(f"vLLM ended {key} without an answer.")


def _first(output: RequestOutput) -> dict[int, Any]:
    """The log-probabilities at the first token, by token."""
    logprobs: dict[int, Any] = output.outputs[0].logprobs[0]
    return logprobs
