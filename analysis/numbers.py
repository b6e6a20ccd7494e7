"""What an exhibit shows: numbers of runs beside those of the paper, and how far they agree.

Invariant: a point knows where it comes from (`paper`, `modelled` or `measured`), and so does everything made of it: the
runs of an exhibit are of one kind (`Runs`).
Over several seeds a point is the mean, with the smallest and the largest beside it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pandas as pd

from rollpacker.analysis.runs import Run, shared_steps
from rollpacker.report.words import digits

PAPER = Path(__file__).parent / "paper"

GOOD_WITHIN = 0.10
"""Relative error up to which a number counts as reproduced."""

HALF_THE_EFFECT = 0.5
"""Share of the paper's effect below which a number is nearer to no effect than to the paper's: it does not reproduce an
effect of some per cent, however near it is."""

FELT_FROM = 0.10
"""Share of the paper's effect from which ours goes in its direction; less says nothing."""

PAPER_SYSTEMS = {"veRL": "verl", "RLHFuse": "rlhfuse", "Flexes": "rollpacker"}
"""Flexes is the name of RollPacker's submission."""


PAPERS, OURS = "paper", "ours"
"""The two series of a panel that has no others."""


class Source(StrEnum):
    """Where a number comes from."""

    PAPER = "paper"
    MODELLED = "modelled"
    MEASURED = "measured"


class Value(NamedTuple):
    """What one run says."""

    run: Run
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number of an exhibit."""

    panel: str
    series: str
    x: str | float
    y: float
    unit: str
    source: Source
    y_low: float | None = None
    """The smallest over the seeds."""
    y_high: float | None = None
    num_seeds: int | None = None
    """None of the paper, which does not say."""

    @property
    def quantity(self) -> tuple[str, str, str | float, str]:
        """What it is a number of: the same of ours and of the paper's."""
        series = "" if self.series in {PAPERS, OURS} else self.series
        return self.panel, series, self.x, self.unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in an exhibit a number stands, ours beside the paper's."""

    panel: str
    x: str | float
    unit: str
    series: str | None = None
    """None: the paper's numbers are one series and ours another."""

    def paper(self, y: float) -> Point:
        """The paper's number."""
        return self._point(self.series or PAPERS, y, Source.PAPER)

    def ours(self, values: Iterable[Value]) -> Point | None:
        """The mean over runs that differ in their seed; None without any, or when none knows its number."""
        values = [value for value in values if not math.isnan(value.y)]
        if not values:
            return None
        numbers = [value.y for value in values]
        source = Source.MODELLED if any(value.run.is_modelled for value in values) else Source.MEASURED
        spread = {"y_low": min(numbers), "y_high": max(numbers), "num_seeds": len(numbers)}
        return self._point(self.series or OURS, mean(numbers), source, **spread)

    def _point(self, series: str, y: float, source: Source, **spread: float) -> Point:
        return Point(panel=self.panel, series=series, x=self.x, y=y, unit=self.unit, source=source, **spread)  # type: ignore[arg-type]


class Standing(StrEnum):
    """How far runs bear out what the paper says."""

    REPRODUCED = "reproduced"
    DIRECTION = "direction only"
    NOT = "not reproduced"
    UNKNOWN = "no runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence of the paper with its number, and ours."""

    text: str
    paper: float
    ours: Point | None
    unit: str
    neutral: float | None = None
    """What says nothing: 1 for a speedup. A number on the paper's side of it has the paper's direction; None: there is
    no direction, as in a time or a share."""

    @property
    def standing(self) -> Standing:
        if self.ours is None:
            return Standing.UNKNOWN
        is_near = abs(self.ours.y - self.paper) <= GOOD_WITHIN * abs(self.paper)
        if self.neutral is None or self.paper == self.neutral:
            return Standing.REPRODUCED if is_near else Standing.NOT
        share_of_effect = (self.ours.y - self.neutral) / (self.paper - self.neutral)
        if is_near and share_of_effect >= HALF_THE_EFFECT:
            return Standing.REPRODUCED
        return Standing.DIRECTION if share_of_effect >= FELT_FROM else Standing.NOT

    @property
    def paper_said(self) -> str:
        """The paper's number, for people."""
        return said(self.paper, self.unit)

    @property
    def ours_said(self) -> str:
        """Our number and where it comes from, for people; empty without any."""
        return "" if self.ours is None else f"{said(self.ours.y, self.unit)} ({self.ours.source})"


def said(y: float, unit: str) -> str:
    """A number for people, in three digits or whole, with its unit."""
    return f"{digits(y)} {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """All that an exhibit shows."""

    points: Sequence[Point]
    claims: Sequence[Claim] = ()
    missing: Sequence[str] = field(default_factory=list)

    def frame(self) -> pd.DataFrame:
        """One row per point; ours with the paper's number of the same quantity, if any, and the relative error."""
        columns = [*Point.__dataclass_fields__, "paper", "relative_error"]
        of_paper = {point.quantity: point.y for point in self.points if point.source is Source.PAPER}
        rows = []
        for point in self.points:
            row = asdict(point) | {"source": str(point.source)}
            if point.source is not Source.PAPER and (paper := of_paper.get(point.quantity)) is not None:
                row |= {"paper": paper, "relative_error": point.y / paper - 1 if paper else None}
            rows.append(row)
        return pd.DataFrame(rows, columns=columns)


def comparing(points: Iterable[Point | None]) -> list[Point]:
    """Leave out the points that no run gave."""
    return [point for point in points if point is not None]


def largest(points: Iterable[Point | None]) -> Point | None:
    """The point with the largest number; None where any is missing, which may be larger."""
    known = list(points)
    found = comparing(known)
    return max(found, key=lambda point: point.y) if found and len(found) == len(known) else None


class PaperRow(NamedTuple):
    """One number of the paper, as the CSV files have them."""

    panel: str
    series: str
    x: str
    y: float
    note: str


def paper_rows(name: str) -> list[PaperRow]:
    """The paper's numbers of one exhibit, in their order; none where there is no file."""
    file = PAPER / f"{name}.csv"
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        return [PaperRow(row["panel"], row["series"], row["x"], float(row["y"]), row["note"]) for row in rows]


def speedups(baselines: Iterable[Run], runs: Iterable[Run], *, column: str = "step_time_s") -> list[Value]:
    """Each run's speedup over the baseline of its seed.

    A ratio of sums over the steps that both have, as the paper's published speedups are; of step times, or of another
    time of the `steps` table.
    """
    by_seed = {run.seed: run for run in baselines}
    values = []
    for run in runs:
        if run.seed in by_seed:
            base, own = by_seed[run.seed].steps[column], run.steps[column]
            if shared := shared_steps([by_seed[run.seed], run]):
                values.append(Value(run, float(base[shared].sum() / own[shared].sum())))
    return values


def over(values: Iterable[Value], bases: Iterable[Value]) -> list[Value]:
    """Each number over that of the base with its seed; none where that is missing or 0."""
    by_seed = {run.seed: y for run, y in bases}
    return [Value(run, y / by_seed[run.seed]) for run, y in values if by_seed.get(run.seed)]
