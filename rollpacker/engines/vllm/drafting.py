"""Speculative decoding by vLLM: how it is configured, and the trial that it passes before it generates for training.

vLLM's draft length is a number of its start, with an upper limit of the batch beyond which it drafts nothing; no call
changes either while it runs (its scheduler looks them up in a table of its own process). So the rules of
`use_draft_lengths` are not carried out here, one of length 0 neither: passes are counted under them, with the length
that they had.

On processors vLLM 0.32 draws wrongly with drafts, whatever proposes them, unless all requests are greedy.
`rejection_sampler.apply_sampling_constraints` spreads each request's temperature, top-k and top-p over its draft
tokens by `expand_kernel`. Its stand-in for processors, `vllm.utils.cpu_triton_utils._expand_kernel_impl`, converts the
output to 64-bit integers, which copies it unless it is one, and fills the copy: what divides the logits is memory that
nobody wrote. The stand-ins beside it copy their outputs back. The trial finds it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from vllm import __version__ as vllm_version
from vllm.inputs import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams

from rollpacker.engines.draft_trial import FEWEST_DRAFTED, Trial, judge_draws, require_lossless

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

    from rollpacker.engines.vllm.stats import StepTotals

NUM_TEXTS = 8
NUM_SAMPLES = 8
"""Of each text. With 32 tokens each these are 2,048 tokens: a mean surprisal that is 0.2 nats off has a z of 8."""

MOST_ATTEMPTS = 4
"""Until enough draft tokens were verified."""

MOST_TOKENS = 32
"""Of a sample. A text and its repetition are twice as long."""

NUM_LIKELIEST = 20
"""Log-probabilities per token that vLLM gives unless it is told otherwise."""

_LOG = logging.getLogger(__name__)


async def try_drafts(llm: AsyncLLM, totals: StepTotals) -> Trial | None:
    """Draw with drafts, read again without, and compare; None where vLLM has no drafter.

    Raises:
        WrongSampling: The drafts change what is drawn.
    """
    config = llm.vllm_config.speculative_config
    if config is None:
        return None
    before = totals.num_drafted, totals.num_accepted
    logprobs: list[float] = []
    likeliest: list[list[float]] = []
    for attempt in range(MOST_ATTEMPTS):
        await _draw(llm, asyncio.Semaphore(totals.most_drafting), attempt, logprobs, likeliest)
        if totals.num_drafted - before[0] >= FEWEST_DRAFTED:
            break
    trial = judge_draws(
        np.array(logprobs), np.array(likeliest), totals.num_drafted - before[0], totals.num_accepted - before[1]
    )
    require_lossless(trial, config.method, f"vLLM {vllm_version} on {current_platform.device_name}")
    if trial.num_drafted < FEWEST_DRAFTED:
        _LOG.warning(
            "A trial of vLLM's drafts (%s) verified %d draft tokens, too few to prove that they are lossless. "
            "Column surprisal_z of `steps` shows it.",
            config.method,
            trial.num_drafted,
        )
    return trial


async def _draw(
    llm: AsyncLLM, room: asyncio.Semaphore, attempt: int, logprobs: list[float], likeliest: list[list[float]]
) -> None:
    """Draw samples, and append the policy's log-probabilities of their tokens, and of the likeliest ones."""
    config = llm.vllm_config.model_config
    num_words = config.get_vocab_size()
    num_tokens = min(MOST_TOKENS, (config.max_model_len - 2) // 4)
    generate = partial(_generate, llm, room, attempt * NUM_TEXTS * NUM_SAMPLES)
    # what the policy writes, repeated, so that drafts are found in it
    firsts = [[int(word)] for word in np.linspace(attempt, num_words - 1, NUM_TEXTS)]
    texts = await generate(firsts, num_tokens=num_tokens)
    repeated = [first + 2 * text.outputs[0].token_ids for first, text in zip(firsts, texts, strict=True)]
    prompts = [text for text in repeated for _ in range(NUM_SAMPLES)]
    drawn = await generate(prompts, num_tokens=num_tokens)
    whole = [prompt + each.outputs[0].token_ids for prompt, each in zip(prompts, drawn, strict=True)]
    num_likeliest = min(NUM_LIKELIEST, num_words)
    read = await generate(whole, num_tokens=1, prompt_logprobs=num_likeliest)
    for tokens, each in zip(whole, read, strict=True):
        for token, entries in list(zip(tokens, each.prompt_logprobs, strict=True))[-num_tokens:]:
            logprobs.append(entries[token].logprob)
            likeliest.append(sorted((entry.logprob for entry in entries.values()), reverse=True)[:num_likeliest])


async def _generate(
    llm: AsyncLLM,
    room: asyncio.Semaphore,
    seed: int,
    prompts: list[list[int]],
    *,
    num_tokens: int,
    prompt_logprobs: int | None = None,
) -> list[RequestOutput]:
    """Draw responses of exactly so many tokens at temperature 1, as many at a time as there is room for."""

    async def one(index: int, prompt: list[int]) -> RequestOutput:
        params = SamplingParams(
            temperature=1.0,
            seed=seed + index,
            max_tokens=num_tokens,
            ignore_eos=True,
            detokenize=False,
            prompt_logprobs=prompt_logprobs,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        last = None
        async with room:
            async for output in llm.generate(tokens_input(prompt), params, f"trial-{seed}-{len(prompt)}-{index}"):
                last = output
        assert last is not None, "vLLM reports the end of a request"
        return last

    return list(await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(prompts))))
