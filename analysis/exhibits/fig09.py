"""Fig 9: the time of each of 40 steps under veRL, RLHFuse and RollPacker, by model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import PAPER_SYSTEMS, Claim, Place, Point, Value, largest, paper_rows, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs, shared_steps

PANELS = {"Qwen2.5-7B": "fig09a", "Qwen2.5-14B": "fig09b", "Qwen2.5-32B": "fig09c"}
SYSTEMS = ("verl", "rlhfuse", "rollpacker")

NUM_STEPS = 40
"""Of each run of the paper."""

# What the paper says in its text alone.
SPEEDUP_32B = 2.56
"""Over veRL; the steps of 32B are not at hand."""
MOST_OVER_RLHFUSE = 2.24
"""Of any model."""
SHORT_PER_LONG = 4.0
"""Rounds, at eta 1.25."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Step times, and the published speedups: ratios of their sums, over the steps that the runs have."""
    by_model: dict[str, dict[str, list[Run]]] = {}
    for model in runs.models(*PANELS):
        found = {system: runs.of(model=model, system=system, task="mix") for system in SYSTEMS}
        by_model[model] = found
        if runs.are_papers_size:
            runs.note_shorter(itertools.chain(*found.values()), NUM_STEPS)
        paper: dict[str, dict[float, float]] = {system: {} for system in SYSTEMS}
        for row in paper_rows(PANELS[model]) if runs.are_papers_size else []:
            system = PAPER_SYSTEMS[row.series]
            yield Place(panel=model, x=float(row.x), unit="s", series=system).paper(row.y)
            paper[system][float(row.x)] = row.y
        for system in SYSTEMS:
            yield from _step_times(model, system, found[system])
        if all(paper.values()):
            yield from _claims(model, paper, found)
    if runs.are_papers_size:
        yield from _claims_of_the_text(by_model)


def _step_times(model: str, system: str, found: Sequence[Run]) -> Iterator[Point | None]:
    for step in shared_steps(found):
        place = Place(panel=model, x=float(step + 1), unit="s", series=system)
        yield place.ours(Value(run, float(run.steps["step_time_s"][step])) for run in found)


def _claims(
    model: str, paper: Mapping[str, Mapping[float, float]], found: Mapping[str, Sequence[Run]]
) -> Iterator[Claim]:
    for base in ("verl", "rlhfuse"):
        shared = {float(step + 1) for step in shared_steps([*found[base], *found["rollpacker"]])}
        steps = [x for x in paper["rollpacker"] if not shared or x in shared]
        place = Place(panel=model, x=base, unit="x")
        yield Claim(
            text=f"{model}: rollpacker over {base}, ratio of the sums of {len(steps)} steps",
            paper=sum(paper[base][x] for x in steps) / sum(paper["rollpacker"][x] for x in steps),
            ours=place.ours(speedups(found[base], found["rollpacker"])),
            unit="x",
            neutral=1.0,
        )


def _claims_of_the_text(by_model: Mapping[str, Mapping[str, Sequence[Run]]]) -> Iterator[Claim]:
    of_32b = by_model["Qwen2.5-32B"]
    yield Claim(
        text="Qwen2.5-32B: rollpacker over verl, as the text has it",
        paper=SPEEDUP_32B,
        ours=Place(panel="Qwen2.5-32B", x="verl", unit="x").ours(speedups(of_32b["verl"], of_32b["rollpacker"])),
        unit="x",
        neutral=1.0,
    )
    over_rlhfuse = (
        Place(panel=model, x="rlhfuse", unit="x").ours(speedups(found["rlhfuse"], found["rollpacker"]))
        for model, found in by_model.items()
    )
    yield Claim(
        text="the most that rollpacker gains over rlhfuse with any model",
        paper=MOST_OVER_RLHFUSE,
        ours=largest(over_rlhfuse),
        unit="x",
        neutral=1.0,
    )
    for model, found in by_model.items():
        counted = ((run, run.steps["round_kind"].value_counts()) for run in found["rollpacker"])
        yield Claim(
            text=f"{model}: short rounds per long round",
            paper=SHORT_PER_LONG,
            ours=Place(panel=model, x="rounds", unit="rounds").ours(
                Value(run, float(kinds.get("short", 0) / kinds["long"])) for run, kinds in counted if "long" in kinds
            ),
            unit="rounds",
        )


EXHIBIT = Exhibit(
    name="fig09",
    title="Time of each of 40 steps (Fig 9)",
    experiments=("e2e_performance",),
    gather=gather,
    draw=partial(compare_lines, xlabel="training step", ylabel="step time (s)"),
    setups=ALL_SETUPS,
)
