"""Advice from the outcomes: means and spreads, whether tail batching pays, and what to ask the cluster for.

Pure functions of outcomes. Speedups are paired: a seed's plain run against the same seed's run of the other system,
with the same prompts. A gain counts only when it is larger than its spread over seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rollpacker.analysis.plan.outcomes import Outcome, gpu_hours
from rollpacker.analysis.plan.search import fastest
from rollpacker.analysis.plan.trials import Setting, Trial

HALF_IS_ENOUGH = 1.25
"""Half the GPUs are suggested when a step takes at most so many times as long: it then costs at least 37 % fewer
GPU-hours."""

DOUBLE_PAYS = 0.6
"""Twice the GPUs are suggested when a step takes at most this share of the time: at least 83 % of the added GPUs' work
counts."""

FULL_KV = 0.9
"""Of a KV cache in use at its peak; from here on memory is tight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of one number over seeds."""

    mean: float
    deviation: float
    """Standard deviation; 0 of a single seed, which says nothing."""
    num_seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One setting over its seeds."""

    setting: Setting
    step_time_s: Spread
    speedup: Spread | None
    """Over the baseline's best setting on as many GPUs; None for want of a common seed."""
    long_share: float
    bubble_ratio: float
    wasted_share: float
    preemptions: float
    kv_peak_share: float
    kv_tokens_per_engine: int
    num_all_gpus: int

    @property
    def gpu_hours_per_1000_steps(self) -> float:
        return gpu_hours(self.step_time_s.mean, self.num_all_gpus)


Verdict = Literal["pays", "within the spread", "loses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The advice, each part with its reason in a sentence."""

    verdict: Verdict
    summary: str
    setting: Setting
    """The one to run: of plain batching where nothing else pays."""
    num_gpus: int
    reasons: tuple[tuple[str, str], ...]
    """Of eta, TP and GPUs, in this order; what was not varied is left out."""


def summarise(outcomes: Sequence[Outcome], baseline: str) -> list[Summary]:
    """Reduce trials to settings, in the order in which they were first tried."""
    by_setting: dict[Setting, list[Outcome]] = {}
    for outcome in outcomes:
        by_setting.setdefault(outcome.trial.setting, []).append(outcome)
    return [_summary(setting, own, _baseline_of(outcomes, setting, baseline)) for setting, own in by_setting.items()]


def advise(summaries: Sequence[Summary], *, baseline: str, num_gpus: int, rho: float) -> Advice:
    """Compare the best racing system with plain batching, and choose.

    Args:
        summaries: Of everything that was tried.
        baseline: The system of plain batching.
        num_gpus: That the user asked about.
        rho: That the answer is given for.
    """
    here = [each for each in summaries if each.setting.rho == rho and each.setting.num_gpus == num_gpus]
    plain = _best(each for each in here if each.setting.system == baseline)
    racing = [each for each in here if each.setting.eta is not None]
    best = _least_speculation(racing)
    verdict = verdict_of(best.speedup)
    without = next((each for each in racing if each.setting == replace(best.setting, eta=1.0)), None)
    chosen = best if verdict == "pays" else plain
    reasons = []
    if chosen.setting.eta is not None:
        reasons.append(("eta", _why_eta(chosen, racing)))
    reasons.append(("TP", _why_degree(chosen, here)))
    elsewhere = [each for each in summaries if each.setting.rho == rho and each.setting.system == chosen.setting.system]
    gpus, why = _why_gpus(chosen, elsewhere)
    reasons.append(("GPUs", why))
    return Advice(
        verdict=verdict,
        summary=_say_verdict(verdict, best, plain, without),
        setting=chosen.setting,
        num_gpus=gpus,
        reasons=tuple(reasons),
    )


def speedups_by_trial(outcomes: Sequence[Outcome], baseline: str) -> dict[Trial, float]:
    """Each trial against plain batching of the same seed at its best, where there is one."""
    speedups: dict[Trial, float] = {}
    for outcome in outcomes:
        plain = _baseline_of(outcomes, outcome.trial.setting, baseline)
        paired = [each.step_time_s for each in plain if each.trial.seed == outcome.trial.seed]
        if paired:
            speedups[outcome.trial] = paired[0] / outcome.step_time_s
    return speedups


def verdict_of(speedup: Spread | None) -> Verdict:
    """A gain or a loss counts when it is larger than its standard deviation over at least two seeds."""
    if speedup is None or speedup.num_seeds < 2:  # noqa: PLR2004  (one seed has no spread)
        return "within the spread"
    if speedup.mean - 1 > speedup.deviation:
        return "pays"
    return "loses" if 1 - speedup.mean > speedup.deviation else "within the spread"


def speedup_range(outcomes: Sequence[Outcome], system: str, baseline: str, num_gpus: int) -> dict[float, float]:
    """Mean paired speedup of a system's best setting at each rho that was tried for both."""
    ranges: dict[float, float] = {}
    for rho in sorted({outcome.trial.setting.rho for outcome in outcomes}):
        own = [each for each in outcomes if each.trial.setting.rho == rho and each.trial.setting.num_gpus == num_gpus]
        if {system, baseline} <= {each.trial.setting.system for each in own}:
            best = fastest(own, system)
            summary = next(each for each in summarise(own, baseline) if each.setting == best)
            if summary.speedup is not None:
                ranges[rho] = summary.speedup.mean
    return ranges


def _summary(setting: Setting, own: Sequence[Outcome], plain: Sequence[Outcome]) -> Summary:
    plain_s = {each.trial.seed: each.step_time_s for each in plain}
    ratios = [plain_s[each.trial.seed] / each.step_time_s for each in own if each.trial.seed in plain_s]

    def mean(values: Sequence[float]) -> float:
        return statistics.fmean(values)

    return Summary(
        setting=setting,
        step_time_s=_spread([each.step_time_s for each in own]),
        speedup=_spread(ratios) if ratios else None,
        long_share=mean([each.long_share for each in own]),
        bubble_ratio=mean([each.bubble_ratio for each in own]),
        wasted_share=mean([each.wasted_share for each in own]),
        preemptions=mean([each.preemptions for each in own]),
        kv_peak_share=max(each.kv_peak_share for each in own),
        kv_tokens_per_engine=own[0].kv_tokens_per_engine,
        num_all_gpus=own[0].num_all_gpus,
    )


def _baseline_of(outcomes: Sequence[Outcome], setting: Setting, baseline: str) -> list[Outcome]:
    """The trials of plain batching at its best, on as many GPUs and with the same correlation."""
    plain = [
        each
        for each in outcomes
        if each.trial.setting.system == baseline
        and (each.trial.setting.num_gpus, each.trial.setting.rho) == (setting.num_gpus, setting.rho)
    ]
    if not plain:
        return []
    best = fastest(plain, baseline)
    return [each for each in plain if each.trial.setting == best]


def _spread(values: Sequence[float]) -> Spread:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(mean=statistics.fmean(values), deviation=deviation, num_seeds=len(values))


def _best(summaries: Iterable[Summary]) -> Summary:
    """The fastest of those that were tried most often: of settings tried once the fastest was lucky."""
    return min(summaries, key=lambda each: (-each.step_time_s.num_seeds, each.step_time_s.mean))


def _least_speculation(racing: Sequence[Summary]) -> Summary:
    """Of the settings that are as fast as the fastest, to within the spread, the one that launches least."""
    best = _best(racing)
    as_fast = [
        each
        for each in racing
        if each.setting.tensor_parallel == best.setting.tensor_parallel
        and each.setting.system == best.setting.system
        and each.step_time_s.num_seeds == best.step_time_s.num_seeds
        and each.step_time_s.mean - best.step_time_s.mean <= _noise(each, best)
    ]
    return min([*as_fast, best], key=lambda each: each.setting.eta or 1.0)


def _noise(one: Summary, other: Summary) -> float:
    """Standard error of the difference of two means."""
    return float(
        (
            one.step_time_s.deviation**2 / one.step_time_s.num_seeds
            + other.step_time_s.deviation**2 / other.step_time_s.num_seeds
        )
        ** 0.5
    )


def _say_verdict(verdict: Verdict, best: Summary, plain: Summary, without: Summary | None) -> str:
    if best.speedup is None or best.speedup.num_seeds < 2:  # noqa: PLR2004  (one seed has no spread)
        return "Not decided: a single seed has no spread. Give the plan more time (seconds=...)."
    spread = f"{best.speedup.mean:.2f} x, give or take {best.speedup.deviation:.2f} over {best.speedup.num_seeds} seeds"
    saved_h = plain.gpu_hours_per_1000_steps - best.gpu_hours_per_1000_steps
    match verdict:
        case "pays":
            text = f"{best.setting.system} pays: {spread}; {saved_h:,.0f} GPU·h saved per 1,000 steps."
            if best.setting.eta == 1:
                return f"{text} It does so at eta 1, by its other parts: tail batching itself does not pay here."
            if without is None or without.speedup is None:
                return text
            return f"{text} With eta 1, its other parts alone, it has {without.speedup.mean:.2f} x."
        case "loses":
            return f"{best.setting.system} does not pay, it loses: {spread}. Run {plain.setting.system}."
        case _:
            return f"{best.setting.system} does not pay: {spread}, no more than its spread. Run {plain.setting.system}."


def _why_eta(chosen: Summary, racing: Sequence[Summary]) -> str:
    others = sorted(
        (
            each
            for each in racing
            if each.setting.system == chosen.setting.system
            and each.setting.tensor_parallel == chosen.setting.tensor_parallel
            and each.setting.eta != chosen.setting.eta
        ),
        key=lambda each: each.setting.eta or 1.0,
    )
    seconds = ", ".join(f"{each.setting.eta:g} takes {each.step_time_s.mean:.0f} s" for each in others)
    text = f"{chosen.step_time_s.mean:.0f} s a step"
    if any(each.step_time_s.mean < chosen.step_time_s.mean for each in others):
        return f"{text}; {seconds}: no difference beyond the spread is in favour of launching more."
    return f"{text}; {seconds}." if others else f"{text}; no other was tried."


def _why_degree(chosen: Summary, here: Sequence[Summary]) -> str:
    alike = [each for each in here if each.setting.system == chosen.setting.system]
    by_degree: dict[int, Summary] = {}
    for each in alike:  # of each degree the one nearest to the chosen setting
        degree = each.setting.tensor_parallel
        if degree not in by_degree or each.setting.eta == chosen.setting.eta:
            by_degree[degree] = each
    others = [each for degree, each in sorted(by_degree.items()) if degree != chosen.setting.tensor_parallel]
    if not others:
        return "the only degree that was tried."
    return f"{chosen.step_time_s.mean:.0f} s a step; {'; '.join(_against(others, chosen))}."


def _against(others: Sequence[Summary], chosen: Summary) -> Iterator[str]:
    """Why the other degrees are worse: short memory one by one, time together."""
    short = [each for each in others if each.preemptions > max(1.0, 2 * chosen.preemptions)]
    for each in short:
        yield (
            f"at TP {each.setting.tensor_parallel} an engine holds {each.kv_tokens_per_engine:,} tokens of KV and "
            f"{each.preemptions:.0f} responses a step are preempted ({each.step_time_s.mean:.0f} s)"
        )
    roomy = [each for each in others if each not in short]
    degree = chosen.setting.tensor_parallel
    if lower := [each for each in roomy if each.setting.tensor_parallel < degree]:
        yield f"{_degrees(lower)}: the longest response decodes more slowly"
    if higher := [each for each in roomy if each.setting.tensor_parallel > degree]:
        yield f"{_degrees(higher)}: fewer engines, and more communication than it gains"


def _degrees(summaries: Sequence[Summary]) -> str:
    return ", ".join(f"TP {each.setting.tensor_parallel} {each.step_time_s.mean:.0f} s" for each in summaries)


def _why_gpus(chosen: Summary, alike: Sequence[Summary]) -> tuple[int, str]:
    """Compare with half and twice the GPUs."""
    num_gpus = chosen.setting.num_gpus
    times = {
        each.setting.num_gpus: each.step_time_s.mean / chosen.step_time_s.mean
        for each in sorted(alike, key=lambda each: -each.step_time_s.mean)
        if each.setting.num_gpus != num_gpus
    }
    if not times:
        return num_gpus, "no other number was tried."
    said = "; ".join(f"{other} take {ratio:.2f} times as long a step" for other, ratio in sorted(times.items()))
    fewer = [other for other, ratio in times.items() if other < num_gpus and ratio <= HALF_IS_ENOUGH]
    more = [other for other, ratio in times.items() if other > num_gpus and ratio <= DOUBLE_PAYS]
    if fewer:
        return min(fewer), f"{said}: half of the {num_gpus} do nearly as well, for far fewer GPU·h."
    if more:
        return max(more), f"{said}: twice as many are used nearly as well."
    return num_gpus, f"{said}: fewer wait longer than they save, more are used worse."
