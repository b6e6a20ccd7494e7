"""What an evaluation costs by a model: for a person who chooses between `evaluation.when=alone` and `fill`.

One round is played on the fullest engine (`core.round_time_model`) without the held-out responses and with them. Left
out are rewards, the time after which an evaluation that fills a round is stopped, and the start of engines with new
weights, which comes once, with or without an evaluation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from rollpacker.config.sections.base import exact
from rollpacker.core.ids import PromptId, RequestId, held_out_prompt
from rollpacker.core.round_time_model import round_s
from rollpacker.protocols.backend import EvaluationCost
from rollpacker.protocols.rollout import GenerationRequest

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.sim.plan import ClusterPlan
    from rollpacker.sim.workload import Workload

_NO_TOKENS = np.zeros(0, dtype=np.int32)


def evaluation_cost(config: RunConfig, workload: Workload, plan: ClusterPlan) -> EvaluationCost:
    """Model one evaluation beside the kind of round that can be filled, a plain or a long one."""
    degree = config.engine.tensor_parallel
    prompt_tokens = max(1, config.workload.prompt_tokens if config.workload else 1)
    costs = plan.degree_costs(degree, config.engine.max_num_seqs, prompt_tokens)
    training, held_out = round_lengths(config, workload), _held_out_lengths(config, workload)
    alone_s, by_itself_s, filled_s = (
        round_s(costs, lengths, prompt_tokens) for lengths in (held_out, training, [*training, *held_out])
    )
    return EvaluationCost(alone_s=alone_s, filled_s=max(filled_s - by_itself_s, 0.0), round_s=by_itself_s)


def round_lengths(config: RunConfig, workload: Workload) -> list[int]:
    """Of a plain round; with tail batching of a long one, which has the slowest prompts of as many as deferred it."""
    rollout, eta = config.rollout, exact(config.system.eta_prompts)
    num_launched = rollout.num_prompts
    if config.system.batching == "tail" and eta > 1:
        num_launched = int(rollout.num_prompts * eta / (eta - Fraction(1)))
    groups = [
        _lengths(workload, PromptId(0, key), rollout.num_responses, rollout.max_response_tokens)
        for key in list(workload.prompts)[:num_launched]
    ]
    slowest = sorted(groups, key=max, reverse=True)[: rollout.num_prompts]
    return [length for group in slowest for length in group]


def _held_out_lengths(config: RunConfig, workload: Workload) -> list[int]:
    return [
        length
        for rule in config.evaluation.rules
        for key in workload.held_out[rule.name]
        for length in _lengths(
            workload,
            held_out_prompt(rule.name, key),
            rule.num_samples or 1,
            rule.max_response_tokens or config.rollout.max_response_tokens,
        )
    ]


def _lengths(workload: Workload, prompt: PromptId, num_samples: int, limit: int) -> list[int]:
    return [workload.length_of(request).num_tokens for request in _requests(prompt, num_samples, limit)]


def _requests(prompt: PromptId, num_samples: int, limit: int) -> Iterable[GenerationRequest]:
    for sample in range(num_samples):
        digest = hashlib.blake2b(f"{prompt}/{sample}".encode(), digest_size=8).digest()
        yield GenerationRequest(
            request=RequestId(0, prompt, sample),
            prompt_token_ids=_NO_TOKENS,
            seed=int.from_bytes(digest, "little") >> 1,
            max_response_tokens=limit,
            temperature=1.0,
        )
