"""What a configuration tells the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import exact
from rollpacker.core.first_guess import DegreeCosts
from rollpacker.core.ids import Domain, EngineId
from rollpacker.core.settings import (
    DynamicSamplingSettings,
    ParallelismSettings,
    RewardBudgetSettings,
    SchedulerSettings,
    StreamSettings,
)
from rollpacker.core.stream_scaling import can_lend

NOTHING_TO_LEND = (
    "it shares GPUs with engines, and no half of them has the GPUs of whole replicas, which could work alone"
)
"""Why `system.stream` changes nothing, where it does not."""


def scheduler_settings(
    config: RunConfig,
    num_prompts_by_domain: Mapping[Domain, int],
    degrees: Sequence[int] = (1,),
    *,
    trainer_parts: Sequence[tuple[int, ...]] = (),
    costs: Sequence[DegreeCosts] = (),
    prompt_tokens: int = 0,
) -> SchedulerSettings:
    """What the scheduler is told; without `data.domain_weights` every domain has its share of the prompts.

    Args:
        config: Which machines take part.
        num_prompts_by_domain: In the order of the data.
        degrees: Tensor-parallel degrees of which the backend has engines, the first one awake. The planner has nothing
            to choose among fewer than two.
        trainer_parts: The GPUs of each part of the trainer that can work alone; empty if it shares none with engines.
        costs: What engines of each degree take for their work, where that is known: the planner's first guess.
        prompt_tokens: Mean length of the prompts, for the same.
    """
    weights = {Domain(name): exact(weight) for name, weight in config.data.domain_weights.items()} or {
        domain: Fraction(count) for domain, count in num_prompts_by_domain.items()
    }
    return SchedulerSettings(
        batching=config.system.batching,
        num_prompts=config.rollout.num_prompts,
        num_responses=config.rollout.num_responses,
        eta_prompts=exact(config.system.eta_prompts),
        eta_responses=exact(config.system.eta_responses),
        overlap_rewards=config.system.reward != "batch",
        domain_weights=tuple(weights.items()),
        dynamic_sampling=(
            DynamicSamplingSettings(
                max_active_requests=config.system.max_active_requests,
                max_launch_factor=exact(config.system.max_launch_factor),
            )
            if config.system.dynamic_sampling
            else None
        ),
        reward_budget=_reward_budget(config) if config.system.reward == "scheduled" else None,
        parallelism=(
            ParallelismSettings(
                degrees=tuple(sorted(degrees)),
                initial=degrees[0],
                costs=tuple(sorted(costs, key=lambda each: each.degree)),
                prompt_tokens=prompt_tokens,
            )
            if config.system.planner and len(degrees) > 1
            else None
        ),
        stream=_stream_settings(config, trainer_parts) if config.system.stream else None,
    )


def _reward_budget(config: RunConfig) -> RewardBudgetSettings:
    """The paper's limits, none of them above what the run gives a test case at most."""
    paper = RewardBudgetSettings()
    reward = config.reward
    longest_s = reward.timeout_s if reward.name == "modelled" else reward.sandbox.max_case_s
    return replace(paper, min_limit_s=min(paper.min_limit_s, longest_s), max_limit_s=longest_s)


def can_stream(
    config: RunConfig, trainer_parts: Sequence[tuple[int, ...]], engines: Mapping[EngineId, tuple[int, ...]]
) -> bool:
    """Tell whether groups can ever stream to the trainer, by its parts' GPUs and the engines'."""
    return not trainer_parts or can_lend(_stream_settings(config, trainer_parts), engines)


def _stream_settings(config: RunConfig, trainer_parts: Sequence[tuple[int, ...]]) -> StreamSettings:
    adaptive = StreamSettings(replicas=tuple(trainer_parts), max_response_tokens=config.rollout.max_response_tokens)
    if config.system.stream_at is None:
        return adaptive
    share = exact(config.system.stream_at)
    return replace(adaptive, first_share=share, last_share=max(share, adaptive.last_share), must_fit=False)
