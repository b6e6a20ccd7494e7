"""Fig 9: the time of each of 40 steps under veRL, RLHFuse and RollPacker, by model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.exhibit import ALL_SETUPS, Exhibit
from analysis.numbers import PAPER_SYSTEMS, Claim, Numbers, Place, Point, Value, comparing, paper_rows, speedups
from analysis.plots import compare_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.figure import Figure

    from analysis.runs import Run, Runs

PANELS = {"Qwen2.5-7B": "fig09a", "Qwen2.5-14B": "fig09b", "Qwen2.5-32B": "fig09c"}
SYSTEMS = ("verl", "rlhfuse", "rollpacker")


def gather(runs: Runs) -> Numbers:
    """Step times, and the published speedups: ratios of their sums."""
    points: list[Point | None] = []
    claims: list[Claim] = []
    for model in runs.models(*PANELS):
        found = {system: runs.of(model=model, system=system, task="mix") for system in SYSTEMS}
        sums = dict.fromkeys(SYSTEMS, 0.0)
        for row in paper_rows(PANELS[model]) if runs.are_papers_size else []:
            system = PAPER_SYSTEMS[row.series]
            points.append(Place(panel=model, x=float(row.x), unit="s", series=system).paper(row.y))
            sums[system] += row.y
        points += [point for system in SYSTEMS for point in _step_times(model, system, found[system])]
        if all(sums.values()):
            claims += _claims(model, sums, found)
    return Numbers(points=comparing(points), claims=claims, missing=runs.missing)


def _step_times(model: str, system: str, found: Sequence[Run]) -> Iterator[Point | None]:
    for step in range(min((len(run.steps) for run in found), default=0)):
        place = Place(panel=model, x=float(step + 1), unit="s", series=system)
        yield place.ours(Value(run, float(run.steps["step_time_s"].iloc[step])) for run in found)


def _claims(model: str, sums: Mapping[str, float], found: Mapping[str, Sequence[Run]]) -> Iterator[Claim]:
    for base in ("verl", "rlhfuse"):
        place = Place(panel=model, x=base, unit="x")
        yield Claim(
            text=f"{model}: rollpacker over {base}, ratio of the sums of 40 steps",
            paper=sums[base] / sums["rollpacker"],
            ours=place.ours(speedups(found[base], found["rollpacker"])),
            unit="x",
            neutral=1.0,
        )


def draw(numbers: Numbers) -> Figure:
    """One panel per model: ours as lines, the paper's as points."""
    return compare_lines(numbers, xlabel="training step", ylabel="step time (s)")


EXHIBIT = Exhibit(
    name="fig09",
    title="Time of each of 40 steps (Fig 9)",
    experiments=("e2e_performance",),
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
