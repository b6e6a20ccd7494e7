"""What a configuration tells the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import exact
from rollpacker.core.ids import Domain
from rollpacker.core.settings import (
    ParallelismSettings,
    RewardBudgetSettings,
    SchedulerSettings,
    StreamSettings,
)


def scheduler_settings(
    config: RunConfig,
    num_prompts_by_domain: Mapping[Domain, int],
    degrees: Sequence[int] = (1,),
    replicas: Sequence[tuple[int, ...]] = (),
) -> SchedulerSettings:
    """What the scheduler is told; without `data.domain_weights` every domain has its share of the prompts.

    Args:
        config: Which machines take part.
        num_prompts_by_domain: In the order of the data.
        degrees: Tensor-parallel degrees of which the backend has engines, the first one awake. The planner has nothing
            to choose among fewer than two.
        replicas: The GPUs of each training replica, where engines work on them too. Without, none can be lent.
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
        reward_budget=RewardBudgetSettings() if config.system.reward == "scheduled" else None,
        parallelism=(
            ParallelismSettings(degrees=tuple(sorted(degrees)), initial=degrees[0])
            if config.system.planner and len(degrees) > 1
            else None
        ),
        stream=(
            StreamSettings(replicas=tuple(replicas), max_response_tokens=config.rollout.max_response_tokens)
            if config.system.stream and len(replicas) > 1
            else None
        ),
    )
