"""What the probes send: requests as long and as many as those of a run of the same configuration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollpacker.config.sections.base import exact
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.core.quotas import scale_up
from rollpacker.protocols.rollout import GenerationRequest, TokenizedPrompt

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

WINDOW_PASSES = 24
"""Decoding passes that one probe times: 50 ms of the fastest engines, so clock and wake-up times are negligible."""

LEAST_TOKENS = 1 + WINDOW_PASSES + 2
"""Of the longest sequence: a prompt of one token, and passes of which the first and the last are not timed."""

HIGHEST_TEMPERATURE = {"torch": 10.0, "vllm": 2.0}
"""Of the probes: nearly every token is as likely as any other, so few responses end early. vLLM allows at most 2."""

NUM_PROMPTS_READ = 256
"""Prompts of the data whose tokens the probes consist of."""


class Workload:
    """Makes requests from the prompts of a run; each call uses a round number of its own."""

    def __init__(self, config: RunConfig, prompts: Sequence[TokenizedPrompt]) -> None:
        self._config = config
        self._prompts = prompts
        self._tokens = np.concatenate([prompt.token_ids for prompt in prompts[:NUM_PROMPTS_READ]])
        self._rounds = itertools.count()
        self.hot = HIGHEST_TEMPERATURE[config.engine.name]

    def batch_sizes(self) -> list[int]:
        """Powers of 2 up to the slots of an engine, less two for the reference requests of a probe."""
        largest = max(self._config.engine.max_num_seqs - 2, 1)
        return sorted({min(1 << power, largest) for power in range(largest.bit_length() + 1)})

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of a run, prompt and response."""
        return self._config.data.max_prompt_tokens + self._config.rollout.max_response_tokens

    def contexts(self) -> list[int]:
        """Prompt lengths: the median of the data, up to the longest that leaves room for a window."""
        room = max(self.longest - WINDOW_PASSES - 2, 1)
        typical = min(int(np.median([len(prompt.token_ids) for prompt in self._prompts])), room)
        return sorted({typical, max(typical, room // 3), room})

    def launched(self) -> tuple[int, int]:
        """The largest numbers of prompts of a round, and of responses of each, that a run launches."""
        rollout = self._config.rollout
        of_prompts, of_responses = map(exact, self._config.system.largest_factors)
        num_prompts = scale_up(rollout.num_prompts, of_prompts)
        return min(num_prompts, len(self._prompts)), scale_up(rollout.num_responses, of_responses)

    def num_launched(self) -> int:
        """Requests of a round."""
        return math.prod(self.launched())

    def next_round(self) -> int:
        return next(self._rounds)

    def requests(self, context: int, limits: Sequence[int], temperature: float) -> list[GenerationRequest]:
        """Make a request per limit with prompts of `context` tokens; groups of the run's size share a prompt.

        No other call has the same prompts: an engine may keep what it has computed of a prompt.
        """
        number = self.next_round()
        group_size = self._config.rollout.num_responses
        names = [prompt.prompt.key for prompt in self._prompts]
        begins = np.random.default_rng(number).integers(len(self._tokens), size=len(limits))
        return [
            GenerationRequest(
                request=RequestId(number, PromptId(0, names[index // group_size % len(names)]), index),
                prompt_token_ids=np.resize(np.roll(self._tokens, -begins[index // group_size]), context).astype(
                    np.int32
                ),
                seed=hash((number, index)) & (2**63 - 1),
                max_response_tokens=limit,
                temperature=temperature,
            )
            for index, limit in enumerate(limits)
        ]

    def round_of_data(self) -> list[list[GenerationRequest]]:
        """Make the requests of a round of the data, by prompt."""
        rollout = self._config.rollout
        num_prompts, num_samples = self.launched()
        number = self.next_round()
        return [
            [
                GenerationRequest(
                    request=RequestId(number, PromptId(0, prompt.prompt.key), sample),
                    prompt_token_ids=prompt.token_ids,
                    seed=hash((number, index, sample)) & (2**63 - 1),
                    max_response_tokens=rollout.max_response_tokens,
                    temperature=rollout.temperature,
                )
                for sample in range(num_samples)
            ]
            for index, prompt in enumerate(self._prompts[:num_prompts])
        ]
