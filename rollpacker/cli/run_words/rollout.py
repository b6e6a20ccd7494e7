"""What a step asks for, in words: its batch, its rounds, and how many steps there are."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from rollpacker.core.quotas import apportion, scale_up
from rollpacker.report.words import plural
from rollpacker.sim.variance import share_without_variance

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.system import SystemSection
    from rollpacker.core.settings import AsyncSettings, LengthHistorySettings, SchedulerSettings
    from rollpacker.runtime.run.preflight import ResolvedRun


def batch_words(config: RunConfig, settings: SchedulerSettings) -> str:
    """Give prompts and responses of a step, of each domain, and the updates that they are trained in."""
    num_prompts, num_responses = settings.num_prompts, settings.num_responses
    per_step = plural(num_prompts * num_responses, "response")
    text = f"{plural(num_prompts, 'prompt')} x {plural(num_responses, 'response')} = {per_step} per step"
    quotas = apportion(num_prompts, dict(settings.domain_weights))
    if len(quotas) > 1:
        text += "\nof each domain: " + ", ".join(f"{domain} {quota}" for domain, quota in quotas.items())
    if config.trainer.num_minibatches > 1:
        text += f"\ntrained in {config.trainer.num_minibatches} updates"
    return text


def rollout_words(config: RunConfig, settings: SchedulerSettings) -> str:
    """Say which responses a batch waits for, and which prompts dynamic sampling drops."""
    text = _rounds(config, settings)
    if settings.dynamic_sampling is None:
        return text
    at_most = math.floor(settings.dynamic_sampling.max_launch_factor * settings.num_prompts)
    text += (
        "\na prompt whose rewards are all equal is dropped, and another one launched in its place; "
        f"a step launches at most {at_most:,} prompts"
    )
    if settings.dynamic_sampling.max_active_requests is not None:
        text += f", with {plural(settings.dynamic_sampling.max_active_requests, 'response')} at a time"
    if config.workload is not None and config.backend.name == "sim":
        share = share_without_variance(
            config.workload.solve_rate, config.workload.solve_rate_rho, settings.num_responses
        )
        text += f"\nexpected: {share:.0%} of the prompts are dropped, at workload.solve_rate and solve_rate_rho" + (
            f"; a batch takes {settings.num_prompts / (1 - share):,.0f} prompts" if share < 1 else ""
        )
    return text


def _rounds(config: RunConfig, settings: SchedulerSettings) -> str:
    num_prompts, num_responses = settings.num_prompts, settings.num_responses
    if settings.asynchronous:
        return _asynchronous(config.system, settings.asynchronous, num_prompts)
    if settings.batching == "plain":
        rewards = "as they finish" if settings.overlap_rewards else "after the last one"
        return f"{config.system.name}: a step waits for every response of its batch; they are scored {rewards}"
    num_launched = scale_up(num_prompts, settings.eta_prompts)
    num_samples = scale_up(num_responses, settings.eta_responses)
    short = (
        f"short rounds launch {plural(num_launched, 'prompt')} x {plural(num_samples, 'response')} "
        f"and take the first {num_prompts} x {num_responses}"
    )
    num_deferred = num_launched - num_prompts
    if settings.length_history:
        return _rounds_by_history(config, settings, settings.length_history, short, num_launched)
    if not num_deferred:
        return f"{config.system.name}: {short}; no prompt is deferred, so there are no long rounds"
    ratio = Fraction(num_prompts, num_deferred)
    slower = "slowest prompt is" if num_deferred == 1 else f"{num_deferred} slower prompts are"
    return (
        f"{config.system.name}: {short}; the {slower} deferred\n"
        f"long rounds run {plural(num_prompts, 'deferred prompt')} x {plural(num_responses, 'response')} to their end\n"
        f"expected: {_number(ratio, 'short round')} per long round"
    )


def _asynchronous(system: SystemSection, rules: AsyncSettings, num_prompts: int) -> str:
    num_ahead = math.floor(rules.lookahead * num_prompts)
    goes_on = "with its KV cache" if rules.interrupt == "keep" else "from its tokens"
    taken = "in the order of their prompts" if rules.order == "fifo" else "as they complete, those that are due first"
    return (
        f"{system.name}: a step ends with its batch, and what is unfinished goes on under the new weights {goes_on}\n"
        f"{num_prompts + num_ahead} prompts are admitted at first and {num_prompts} in each step: {num_ahead} ahead\n"
        f"a batch takes {num_prompts} of the complete groups, {taken}; nothing is aborted\n"
        f"expected: trained responses began {plural(float(rules.lookahead), 'step')} before their step on average, "
        f"and {rules.max_staleness} at most"
    )


def _rounds_by_history(
    config: RunConfig, settings: SchedulerSettings, history: LengthHistorySettings, short: str, num_launched: int
) -> str:
    num_prompts, num_responses = settings.num_prompts, settings.num_responses
    num_drawn = scale_up(num_launched, 1 / (1 - history.share))
    num_waiting = num_drawn - num_launched
    waiting = (
        "one with the longest responses so far waits"
        if num_waiting == 1
        else f"{num_waiting} with the longest responses so far wait"
    )
    if history.races_at_first:
        at_first = (
            f"launch {plural(scale_up(num_prompts, history.first_eta_prompts), 'prompt')} x "
            f"{plural(scale_up(num_responses, history.first_eta_responses), 'response')}"
        )
    else:
        at_first = "wait for every response"
    text = (
        f"{config.system.name}: {short}\n"
        f"{num_drawn} prompts are drawn for one, and the {waiting} for a long round at once\n"
        f"long rounds run {plural(num_prompts, 'prompt')} x {plural(num_responses, 'response')} to their end\n"
        f"rounds whose prompts are not all known, as in the first epoch, {at_first} (system.first_epoch)\n"
        f"expected: {_number(Fraction(num_prompts, num_drawn - num_prompts), 'short round')} per long round once they "
        "are"
    )
    return text + "\nsystem.length_history has no effect in one epoch" if config.run.num_epochs == 1 else text


def num_steps_of(config: RunConfig, resolved: ResolvedRun) -> int:
    """Steps of a run, by `run.num_steps` and `run.num_epochs`; of epochs about as many, since a batch may need more."""
    if config.run.num_epochs is None:
        return config.run.num_steps
    return min(math.ceil(_steps_per_epoch(config, resolved) * config.run.num_epochs), config.run.num_steps)


def step_words(config: RunConfig, resolved: ResolvedRun) -> str:
    """Give the number of steps, how often they go through the prompts, and what of the schedule they end before."""
    per_epoch = _steps_per_epoch(config, resolved)
    if config.run.num_epochs is not None:
        num_steps = num_steps_of(config, resolved)
        limit = "run.num_epochs" if num_steps < config.run.num_steps else "run.num_steps"
        text = f"about {num_steps:,}, limited by {limit}; an epoch is {_number(per_epoch, 'step')}"
        return text + (_schedule_beyond(config, num_steps) if num_steps < config.run.num_steps else "")
    epochs = Fraction(config.run.num_steps) / per_epoch
    return f"{config.run.num_steps:,}, which is {_number(epochs, 'epoch')} of {_number(per_epoch, 'step')}"


def _schedule_beyond(config: RunConfig, num_steps: int) -> str:
    """Say what of the learning rate's schedule comes after the steps that the epochs give."""
    trainer, text = config.trainer, ""
    if num_steps < trainer.warmup_steps <= config.run.num_steps:
        text += (
            f"\nthe run ends before its learning rate is trainer.learning_rate={trainer.learning_rate:g}: "
            f"trainer.warmup_steps={trainer.warmup_steps:,}"
        )
    if trainer.lr_schedule != "constant":
        text += (
            f"\nthe learning rate decays over run.num_steps={config.run.num_steps}; set it to {num_steps} to have it "
            "decay over the epochs"
        )
    return text


def _steps_per_epoch(config: RunConfig, resolved: ResolvedRun) -> Fraction:
    return Fraction(sum(resolved.num_prompts_by_domain.values()), config.rollout.num_prompts)


def _number(value: Fraction, noun: str) -> str:
    return f"less than 0.1 {noun}s" if 0 < value < Fraction("0.05") else plural(round(float(value), 1), noun)
