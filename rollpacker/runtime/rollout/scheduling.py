"""What a configuration and its prompts tell the scheduler, and whether the prompts fill every batch."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from rollpacker.config.entry_names import key_below, word_below
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import exact
from rollpacker.config.sections.elastic import ElasticSection
from rollpacker.config.sections.environment import EnvironmentSection
from rollpacker.config.sections.modelled_environment import ModelledEnvironmentSection
from rollpacker.config.words import counted
from rollpacker.core.commands import FailRun
from rollpacker.core.elastic_settings import BalanceSettings, ElasticSettings, SeedingSettings
from rollpacker.core.errors import ConfigError, DataError
from rollpacker.core.ids import Domain, EngineId
from rollpacker.core.quotas import apportion
from rollpacker.core.round_time_model import DegreeCosts
from rollpacker.core.settings import (
    AsyncSettings,
    DynamicSamplingSettings,
    EnvironmentSettings,
    EvaluationSettings,
    FillSettings,
    HeldOutSet,
    LengthHistorySettings,
    ParallelismSettings,
    RestartSettings,
    RewardBudgetSettings,
    SchedulerSettings,
    SpeculativeDecodingSettings,
    StreamSettings,
)
from rollpacker.core.stream_scaling import can_lend
from rollpacker.core.tail_escalation_settings import TailEscalationSettings
from rollpacker.data.domains import refuse_unknown_domains
from rollpacker.runtime.placing.fleets import costs_of, degrees_of

NOTHING_TO_LEND = (
    "it shares GPUs with engines, and no half of them has the GPUs of whole replicas, which could work alone; in an "
    "asynchronous run none is lent"
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
    held_out: Mapping[str, Collection[str]] | None = None,
    largest_engines: Sequence[tuple[int, ...]] = (),
) -> SchedulerSettings:
    """What the scheduler is told; without `data.domain_weights` every domain has its share of the prompts.

    Args:
        config: Which machines take part.
        num_prompts_by_domain: In the order of the data.
        degrees: Tensor-parallel degrees that the backend has engines of, the first one awake. The planner has nothing
            to choose among fewer than two.
        trainer_parts: The GPUs of each part of the trainer that can work alone; empty if it shares none with engines.
        costs: What engines of each degree take for their work, where that is known: the planner's first guess.
        prompt_tokens: Mean length of the prompts, for the same.
        held_out: The keys of each held-out set, by its name.
        largest_engines: The GPUs of each engine of the largest degree; empty where they are unknown.

    Raises:
        ConfigError: A domain has no place in a batch.
    """
    weights = {Domain(name): exact(weight) for name, weight in config.data.domain_weights.items()} or {
        domain: Fraction(count) for domain, count in num_prompts_by_domain.items()
    }
    num_prompts = config.rollout.num_prompts
    if not config.trains:  # no batch is ever made
        weights = dict.fromkeys(num_prompts_by_domain, Fraction(1))
        num_prompts = len(weights)
    _check_places(num_prompts, weights)
    return SchedulerSettings(
        batching=config.system.batching,
        num_prompts=num_prompts,
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
        length_history=(
            _length_history(config) if config.system.length_history and config.system.batching == "tail" else None
        ),
        asynchronous=(
            AsyncSettings(
                max_staleness=config.system.max_staleness,
                lookahead=exact(config.system.lookahead),
                num_steps=config.run.num_steps,
                order=config.system.staleness_order,
                interrupt=config.system.interrupt,
            )
            if config.system.is_async and config.trains
            else None
        ),
        reward_budget=_reward_budget(config) if config.system.reward == "scheduled" else None,
        parallelism=(
            ParallelismSettings(
                degrees=tuple(sorted(degrees)),
                initial=degrees[0],
                costs=tuple(sorted(costs, key=lambda each: each.degree)),
                prompt_tokens=prompt_tokens,
                escalation=(
                    TailEscalationSettings(
                        max_response_tokens=config.rollout.max_response_tokens, gpus=tuple(largest_engines)
                    )
                    if config.system.escalate_tail and costs
                    else None
                ),
            )
            if config.system.planner and len(degrees) > 1
            else None
        ),
        speculative_decoding=(
            SpeculativeDecodingSettings(max_sequences=config.engine.max_num_seqs)
            if config.system.speculative_decoding
            else None
        ),
        stream=(
            _stream_settings(config, trainer_parts)
            if config.system.stream and not (config.system.is_async and trainer_parts)
            else None
        ),
        evaluation=_evaluation(config, held_out) if held_out else None,
        elastic=_elastic(config, trainer_parts) if config.elastic.is_on and config.trains else None,
        environment=_environment(config.environment or config.modelled_environment),
        routing=config.system.routing,
        restarts=RestartSettings(max_restarts=config.engine.max_restarts, first_pause_s=config.engine.restart_pause_s),
    )


def check_supply(config: RunConfig, num_prompts_by_domain: Mapping[Domain, int]) -> SchedulerSettings:
    """Check whether the prompts fill every batch, in all and of each domain; gives what the scheduler will be told.

    Raises:
        DataError: There are too few.
        ConfigError: Of a domain too few; or the configuration names domains that there are not.
    """
    return supplied_settings(config, enough_prompts(config, num_prompts_by_domain))


def prompt_source(config: RunConfig) -> str:
    """Where the prompts come from, in words."""
    others = "the environment" if config.takes_prompts_of_environment else "the workload"
    files = ", ".join(file.written for file in config.data.files) or others
    return f"{files}, as far as data.keep_solve_rate keeps it," if config.data.solve_rates else files


def enough_prompts(config: RunConfig, counts: Mapping[Domain, int]) -> Mapping[Domain, int]:
    """Give the counts back if they fill one batch; raises `DataError`."""
    total = sum(counts.values())
    if config.trains and total < config.rollout.num_prompts:
        raise DataError(
            f"{prompt_source(config)} has {counted(total, 'prompt')}, fewer than rollout.num_prompts="
            f"{config.rollout.num_prompts}.",
            "A prompt is in a batch once per epoch, so the data fills at least one batch.",
            f"Add prompts, or set rollout.num_prompts={total} or lower.",
        )
    return counts


def supplied_settings(config: RunConfig, num_prompts_by_domain: Mapping[Domain, int]) -> SchedulerSettings:
    """Give what the scheduler is told, as far as the files say it; raises `ConfigError` for domains that do not fit."""
    if not config.trains:
        return scheduler_settings(config, num_prompts_by_domain)
    weights, domains = config.data.domain_weights, list(num_prompts_by_domain)
    refuse_unknown_domains("data.domain_weights", weights, domains, prompt_source(config))
    if weights and (unweighted := [domain for domain in domains if domain not in weights]):
        raise ConfigError(
            f"data.domain_weights has no weight for {', '.join(unweighted)}, so these prompts would never be trained.",
            f"Every domain in {prompt_source(config)} has a weight, or none has.",
            f"Add {word_below('data.domain_weights', unweighted[0], '...')}, or remove its prompts from the file.",
        )
    is_real = config.backend.name == "ray"
    degrees = degrees_of(config) if is_real else (config.engine.tensor_parallel,)
    settings = scheduler_settings(config, num_prompts_by_domain, degrees, costs=costs_of(config) if is_real else ())
    for domain, quota in apportion(settings.num_prompts, dict(settings.domain_weights)).items():
        if num_prompts_by_domain[domain] < quota:
            raise ConfigError(
                f"Domain `{domain}` has {counted(num_prompts_by_domain[domain], 'prompt')}, but fills {quota} places "
                "of every batch.",
                "A prompt is in a batch once per epoch.",
                f"Add prompts of the domain, or lower {key_below('data.domain_weights', domain)} or "
                "rollout.num_prompts.",
            )
    return settings


def _check_places(num_prompts: int, weights: Mapping[Domain, Fraction]) -> None:
    """Refuse a batch that has no place for some domain."""
    for domain, num_places in apportion(num_prompts, weights).items():
        if not num_places:
            raise ConfigError(
                f"Domain {domain!r} gets no place in a batch of rollout.num_prompts={num_prompts}: its share is "
                f"{float(weights[domain] / sum(weights.values())):.2%}.",
                "Each domain has at least one place in every batch, or its prompts would never be trained.",
                f"Raise rollout.num_prompts or {key_below('data.domain_weights', domain)}, or remove the domain's "
                "prompts.",
            )


def _evaluation(config: RunConfig, held_out: Mapping[str, Collection[str]]) -> EvaluationSettings:
    """Filled rounds have the prompts of a set in random order, so that what is cut is no certain part of the file."""
    section = config.evaluation
    fills = section.when == "fill"
    keys = {rule.name: list(held_out[rule.name]) for rule in section.rules}
    if fills:
        for name, of_set in keys.items():
            random.Random(f"{section.seed}/{name}").shuffle(of_set)
    return EvaluationSettings(
        sets=tuple(
            HeldOutSet(name=rule.name, keys=tuple(keys[rule.name]), num_samples=rule.num_samples or 1)
            for rule in section.rules
        ),
        every_steps=section.every_steps,
        at_start=section.at_start,
        at_end=section.at_end,
        fill=(
            FillSettings(
                num_slots=config.engine.max_num_seqs,
                max_tokens=config.data.max_prompt_tokens + config.longest_response_tokens,
                grace_s=section.grace_s,
            )
            if fills
            else None
        ),
    )


def _elastic(config: RunConfig, trainer_parts: Sequence[tuple[int, ...]]) -> ElasticSettings:
    section = config.elastic
    return ElasticSettings(
        min_workers=section.min_workers,
        max_workers=section.max_workers,
        start_s=section.start_s,
        fetch_s=section.fetch_s,
        grace_s=section.grace_s,
        least_stay_s=section.least_stay_s,
        drain_lead_s=section.drain_lead_s,
        drain_margin_s=section.drain_margin_s,
        overlaps=config.system.stream or config.system.is_async,
        is_apart=not trainer_parts,
        seeding=_seeding(section),
        balance=BalanceSettings(
            num_slots=config.engine.max_num_seqs,
            max_pending=section.max_pending,
            max_moves=section.max_moves,
            every_s=section.balance_every_s,
            gain_s=section.balance_gain_s,
            max_response_tokens=config.longest_response_tokens,
        ),
    )


def _seeding(section: ElasticSection) -> SeedingSettings | None:
    if section.seeding == "off":
        return None
    return SeedingSettings(
        fixed_s=section.seeding_s,
        gain=exact(section.seeding_gain),
        remembers=section.seeding_memory,
        reclaim_after_s=section.reclaim_after_s,
    )


def _environment(section: EnvironmentSection | ModelledEnvironmentSection | None) -> EnvironmentSettings | None:
    if section is None:
        return None
    return EnvironmentSettings(
        max_turns=section.max_turns,
        max_open=section.max_open,
        max_restarts=section.max_restarts,
        opening_timeout_s=section.opening_timeout_s,
        reset_timeout_s=section.reset_timeout_s,
        turn_timeout_s=section.turn_timeout_s,
        episode_timeout_s=section.episode_timeout_s,
        starts_per_minute=section.starts_per_minute,
    )


def _length_history(config: RunConfig) -> LengthHistorySettings:
    factor = exact(config.system.first_factor)
    return LengthHistorySettings(
        share=exact(config.system.history_share), first_eta_prompts=factor, first_eta_responses=factor
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
    if config.system.is_async:
        return not trainer_parts
    seeds = config.elastic.is_on and config.elastic.seeding != "off"
    return not trainer_parts or can_lend(_stream_settings(config, trainer_parts), engines, has_workers=seeds)


def _stream_settings(config: RunConfig, trainer_parts: Sequence[tuple[int, ...]]) -> StreamSettings:
    adaptive = StreamSettings(replicas=tuple(trainer_parts), max_response_tokens=config.rollout.max_response_tokens)
    if config.system.stream_at is None:
        return adaptive
    share = exact(config.system.stream_at)
    return replace(adaptive, first_share=share, last_share=max(share, adaptive.last_share), must_fit=False)


def too_few_left(command: FailRun, *, has_environments: bool) -> DataError:
    """Say why a batch could not be filled."""
    launched = f"Round {command.round} launched {command.num_prompts_launched} prompts"
    if has_environments:
        what = f"{launched}, and {command.num_prompts_dropped} of them"
        return _environments_failed(what, "system.max_launch_factor")
    return DataError(
        f"{launched}, and {command.num_prompts_dropped} of them had all their rewards equal; "
        f"{command.num_prompts_needed} places of the batch are open.",
        "With system.dynamic_sampling a batch holds only prompts whose rewards differ, and a step launches at most "
        "system.max_launch_factor times the prompts that it needs.",
        "Take prompts that the model solves sometimes, or raise rollout.num_responses or system.max_launch_factor; "
        "`solve_rate` in the table `domains` says how hard they are.",
    )


def all_dropped(*, has_environments: bool) -> DataError:
    """Say why a run has not a single batch: its data has ended, and every prompt was dropped or too few were left."""
    if has_environments:
        what = "All prompts were launched, too few for one batch are left, and the others"
        return _environments_failed(what, "run.num_epochs")
    return DataError(
        "All prompts were launched, and too few for one batch are left: the others had all their rewards equal.",
        "With system.dynamic_sampling a batch holds only prompts whose rewards differ.",
        "Take prompts that the model solves sometimes, or raise rollout.num_responses or run.num_epochs.",
    )


def _environments_failed(what: str, setting: str) -> DataError:
    """Say why prompts were dropped that have environments, and which setting lets others take their places."""
    return DataError(
        f"{what} were dropped: their environments failed too often, or, with system.dynamic_sampling, all their "
        "rewards were equal.",
        "A trajectory begins again environment.max_restarts times; a prompt with too few left is dropped.",
        "Read the reasons in the lines `The environment of ... failed` that the run printed, or, with "
        "environment.nodes=all or nodes of their own, in logs/attempt-*/environments-*.log; "
        "environment.reset_timeout_s, environment.turn_timeout_s or environment.max_restarts may be too low. If there "
        "are no such lines, the first observations fill rollout.max_response_tokens: raise it. In a modelled run raise "
        "workload.environment.turn_timeout_s or max_restarts there, or lower its fail_stop_share. If rewards were "
        "equal, which `solve_rate` in the table `domains` near 0 or 1 tells, take prompts that the model solves "
        f"sometimes, or raise rollout.num_responses or {setting}.",
    )
