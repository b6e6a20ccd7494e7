"""What the parallelism planner should decide, computed from all rounds so far."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from rollpacker.core.commands import Command, RoundKind, UseParallelism
from rollpacker.core.events import RoundMeasured
from rollpacker.core.settings import ParallelismSettings
from tests.fuzz.oracle.round_time import fastest_degree


class MeasuredRound(NamedTuple):
    """What the planner is told of a round."""

    kind: RoundKind
    degree: int
    num_preemptions: int
    num_tokens: int
    time_s: float
    switch_s: float
    lengths: tuple[int, ...]
    kinds: tuple[RoundKind, ...]
    """Of all rounds that had begun by then."""
    was_filled: bool = False
    """By an evaluation: nothing is learned of it but what the change before it took."""


class PlannerModel:
    """All rounds so far, and the degree in use."""

    def __init__(self, settings: ParallelismSettings | None) -> None:
        self._settings = settings
        self.measured: list[MeasuredRound] = []
        self.degree = settings.initial if settings else 0
        self.is_measurable = False

    def end_round(self) -> None:
        self.is_measurable = self._settings is not None

    def check(
        self,
        event: RoundMeasured,
        commands: tuple[Command, ...],
        kinds: Sequence[RoundKind],
        next_kind: RoundKind,
        *,
        was_filled: bool,
        in_use: int,
    ) -> None:
        """Check what was ordered after a measurement; the engines have the degree that is in use."""
        assert self._settings is not None
        self.is_measurable = False
        self.measured.append(
            MeasuredRound(
                kinds[-1],
                self.degree,
                event.num_preemptions,
                event.num_tokens,
                event.rollout_time_s,
                event.switch_time_s,
                event.lengths_tokens,
                tuple(kinds),
                was_filled,
            )
        )
        degree = degree_after(self.measured, next_kind, self._settings)
        is_worth_it = pays(self.measured, next_kind, self.degree, degree, self._settings)
        self.degree = degree if is_worth_it else self.degree
        expected = () if self.degree == in_use else (UseParallelism(tensor_parallel=self.degree),)
        assert commands == expected, f"after {self.measured} another degree"


def degree_after(history: Sequence[MeasuredRound], kind: RoundKind, planner: ParallelismSettings) -> int:
    """Work out the degree that a kind of round wants, from all rounds so far."""
    degree, before, counts = planner.initial, None, list[int]()
    for number, each in enumerate(history):
        if each.kind is not kind or each.was_filled:
            continue
        past = history[: number + 1]
        wanted = degree
        if len(learned(past, kind)) == 1 and planner.costs and each.lengths:
            wanted = fastest_degree(planner.costs, each.lengths, planner.prompt_tokens)
            if wanted != degree:
                degree, before, counts = wanted, each.degree if each.degree != wanted else None, []
            continue
        if each.degree != degree:
            continue
        is_worse = before is not None and is_slower(past, kind, degree, before, planner)
        if before is not None and is_worse and pays(past, kind, degree, before, planner):
            degree, before, counts = before, None, []
            continue
        counts.append(each.num_preemptions)
        if len(counts) > 1 and each.num_preemptions > planner.max_growth * counts[-2]:
            wanted = degree * 2
        elif len(counts) > 1 and len(counts) >= planner.patience and not any(counts[-planner.patience :]):
            wanted = degree // 2
        if wanted != degree and wanted in planner.degrees and pays(past, kind, degree, wanted, planner):
            degree, before, counts = wanted, degree, []
    return degree


def is_slower(
    history: Sequence[MeasuredRound], kind: RoundKind, here: int, there: int, planner: ParallelismSettings
) -> bool:
    """Work out whether a kind's rounds on a degree were slower than those on another, as far as is remembered."""
    rate_here, rate_there = rate_on(history, kind, here, planner), rate_on(history, kind, there, planner)
    return rate_here is not None and rate_there is not None and rate_here < rate_there


def pays(
    history: Sequence[MeasuredRound], kind: RoundKind, here: int, there: int, planner: ParallelismSettings
) -> bool:
    """Work out whether a kind's rounds on another degree save at least what the change takes, or nobody knows."""
    rate_here, rate_there = rate_on(history, kind, here, planner), rate_on(history, kind, there, planner)
    if rate_here is None or rate_there is None:
        return True
    if not rate_here or not rate_there:
        return rate_there >= rate_here
    of_kind = learned(history, kind)
    saved_s = of_kind[-1].num_tokens / rate_here - of_kind[-1].num_tokens / rate_there
    took = {each.degree: each.switch_s for each in history if each.switch_s}
    cost_s, in_a_row = took.get(there, 0.0), float(planner.num_rounds_remembered)
    kinds = history[-1].kinds
    if len(set(kinds)) > 1:
        num_rows = sum(name is kind for name, _ in groupby(kinds))
        in_a_row = min(in_a_row, len(of_kind) / num_rows)
        cost_s += took.get(here, took.get(there, 0.0))
    return saved_s >= 0 and saved_s * in_a_row >= cost_s


def rate_on(
    history: Sequence[MeasuredRound], kind: RoundKind, degree: int, planner: ParallelismSettings
) -> float | None:
    """Tokens per second over the rounds of a kind on a degree, except those that are long ago."""
    lately = learned(history, kind)[-planner.num_rounds_remembered - 1 :]
    there = [each for each in lately if each.degree == degree]
    seconds = sum(each.time_s for each in there)
    return sum(each.num_tokens for each in there) / seconds if seconds else None


def learned(history: Sequence[MeasuredRound], kind: RoundKind) -> list[MeasuredRound]:
    """The rounds of a kind that say something about it."""
    return [each for each in history if each.kind is kind and not each.was_filled]
