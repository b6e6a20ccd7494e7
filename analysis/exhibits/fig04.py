"""Fig 4: plain batches beside short and long rounds of tail batching alone, on code: lengths, and where the time goes.

Qwen2.5-14B with responses up to 16k. a: the lengths of what is trained in each of five steps; of the paper's outliers
those between 8,112 and 13,657 tokens are missing, and its lengths are not the sample of Fig 2a, which ours are drawn
from. b: five steps, that is four short rounds and a long one; the paper's sums are drawn from rounded shares, precise
to 2 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, PaperRow, Place, Point, Value, paper_rows
from rollpacker.analysis.plots import compare_bars, compare_lines
from rollpacker.analysis.rounds import rounds_of
from rollpacker.analysis.runs import Run, Runs
from rollpacker.analysis.style import CYCLE_STEPS

SYSTEMS = {"verl": "plain batches", "tail": "tail batching"}
PAPER_SYSTEMS = {"veRL": "verl", "Tail Batching": "tail", "Tail Batch.": "tail"}

SETUP = "Qwen2.5-14B, code"

SHORT_PER_LONG = 4.0
"""Section 3: with a factor of 1.25 for prompts, each short round defers a quarter of a batch."""

LONGEST = "longest"
LEVELS = {"median": 0.5, "third quartile": 0.75, LONGEST: 1.0}
BOXES = {"median": "median", "q3": "third quartile"}
"""What the paper's rows of a box are called here; the longest is the farthest of its outliers."""

STAGES: Mapping[str, tuple[str, tuple[str, ...], str | None]] = {
    "Rollout": ("rollout", ("rollout_time_s",), None),
    "Short Rollout": ("short\nrollouts", ("rollout_time_s",), "short"),
    "Long Rollout": ("long\nrollout", ("rollout_time_s",), "long"),
    "Reward": ("reward", ("exposed_reward_time_s",), None),
    "Training": ("training", ("train_time_s", "weight_sync_time_s"), None),
    "Total": ("total", ("step_time_s",), None),
}
"""The paper's stages, what they are called here, their columns, and the kind of the rounds; they add up to the step, so
the weight sync is counted with training."""


def _code_runs(runs: Runs, system: str) -> list[Run]:
    return runs.of(model="Qwen2.5-14B", system=system, task="code")


def gather_lengths(runs: Runs) -> Iterator[Point | Claim | None]:
    """Of the trained responses of each of the first five steps."""
    of_paper = list(_boxes(paper_rows("fig04a")))
    yield from of_paper
    found = {system: _code_runs(runs, system) for system in SYSTEMS}
    lengths = {
        system: [(run, _quantiles(run)) for run in of_system if not run.responses.empty]
        for system, of_system in found.items()
    }
    for system, panel in SYSTEMS.items():
        for step in range(CYCLE_STEPS):
            told = [(run, of_run) for run, of_run in lengths[system] if step in of_run.index]
            for name, level in LEVELS.items():
                place = Place(panel=panel, x=float(step + 1), unit="tokens", series=name)
                yield place.ours(Value(run, float(of_run[level].loc[step])) for run, of_run in told)
    yield from _claims_of_rounds(found["tail"], lengths["tail"], of_paper)


def _quantiles(run: Run) -> pd.DataFrame:
    """A row per step, a column per level."""
    trained = run.responses[run.responses["accepted"]]
    return trained.groupby("step")["length_tokens"].quantile(np.array(list(LEVELS.values()))).unstack()


def _boxes(rows: Sequence[PaperRow]) -> Iterator[Point]:
    """Median and third quartile of each of the paper's boxes, and its longest response."""
    longest: dict[tuple[str, str], float] = {}
    for row in rows:
        system = PAPER_SYSTEMS[row.series]
        longest[system, row.x] = max(row.y, longest.get((system, row.x), 0.0))
        if (name := BOXES.get(row.note.partition(";")[0])) is not None:
            yield _place_of_box(system, row.x, name).paper(row.y)
    for (system, iteration), y in longest.items():
        yield _place_of_box(system, iteration, LONGEST).paper(y)


def _place_of_box(system: str, iteration: str, name: str) -> Place:
    return Place(panel=SYSTEMS[system], x=float(iteration) + 1, unit="tokens", series=name)


def _claims_of_rounds(
    tail: Sequence[Run], lengths: Sequence[tuple[Run, pd.DataFrame]], of_paper: Iterable[Point]
) -> Iterator[Claim]:
    counted = [(run, len(rounds_of(run, "short")), len(rounds_of(run, "long"))) for run in tail]
    ours = Place(panel="rounds", x="short per long", unit="rounds").ours(
        Value(run, num_short / num_long) for run, num_short, num_long in counted if num_long
    )
    yield Claim(text=f"{SETUP}: short rounds per long round", paper=SHORT_PER_LONG, ours=ours, unit="rounds")
    of_short = [point for point in of_paper if point.panel == SYSTEMS["tail"] and point.x != CYCLE_STEPS]
    for name, level in LEVELS.items():
        told = ((run, of_run[of_run.index.isin(rounds_of(run, "short")["step"])]) for run, of_run in lengths)
        values = [Value(run, float(of_run[level].mean())) for run, of_run in told if len(of_run)]
        yield Claim(
            text=f"{SETUP}, short rounds: length, {name}, mean over the rounds",
            paper=fmean(point.y for point in of_short if point.series == name),
            ours=Place(panel=SYSTEMS["tail"], x=name, unit="tokens").ours(values),
            unit="tokens",
        )


def draw_lengths(numbers: Numbers) -> Figure:
    """A panel per system: lengths on a logarithmic axis over the steps, of which the fifth is a long round."""
    figure = compare_lines(numbers, xlabel="training step (5: a long round)", ylabel="response length (tokens)")
    for axes in figure.axes:
        axes.set_yscale("log")
        axes.set_ylim(200, 25_000)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xticks(range(1, CYCLE_STEPS + 1))
    return figure


FIG04A = Exhibit(
    name="fig04a",
    title="Lengths of what is trained in each step, plain and under tail batching: code, Qwen2.5-14B (Fig 4a)",
    experiments=("table1", "fig04"),
    gather=gather_lengths,
    draw=draw_lengths,
)


def gather_stages(runs: Runs) -> Iterator[Point | Claim | None]:
    """Seconds in five steps: of whole cycles of tail batching, and of as many plain steps."""
    found = {system: [_whole_cycles(run) for run in _code_runs(runs, system)] for system in SYSTEMS}
    for row in paper_rows("fig04b"):
        system = PAPER_SYSTEMS[row.series]
        name, columns, kind = STAGES[row.x]
        place = Place(panel=f"{SYSTEMS[system]}: five steps (s)", x=name, unit="s")
        ours = place.ours(Value(run, _cycle_s(run, columns, kind)) for run in found[system] if len(run.steps))
        yield place.paper(row.y)
        yield ours
        text = f"{SETUP}, {SYSTEMS[system]}: {' '.join(name.split())} of five steps"
        yield Claim(text=text, paper=row.y, ours=ours, unit="s")


def _whole_cycles(run: Run) -> Run:
    """The run with its cycles of which no step is missing."""
    in_cycles = run.steps.groupby(run.steps.index // CYCLE_STEPS)
    return replace(run, steps=in_cycles.filter(lambda cycle: len(cycle) == CYCLE_STEPS))


def _cycle_s(run: Run, columns: Iterable[str], kind: str | None) -> float:
    steps = run.steps if kind is None else rounds_of(run, kind)
    return float(sum(steps[column].sum() for column in columns) * CYCLE_STEPS / len(run.steps))


FIG04B = Exhibit(
    name="fig04b",
    title="Where the time of five steps goes, plain and under tail batching: code, Qwen2.5-14B (Fig 4b)",
    experiments=("table1", "fig04"),
    gather=gather_stages,
    draw=compare_bars,
)
