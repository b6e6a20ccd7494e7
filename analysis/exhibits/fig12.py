"""Fig 12: the parallelism planner: as responses grow longer, and step by step against engines of a fixed degree.

a: rollouts whose length limit grows from 8k to 32k, by 2k a step; the planner goes from TP 1 to TP 2 at step 4 and to
TP 4 at step 9. The paper measured every second limit (steps 2, 6, 8, 10 and 12 are midpoints of their neighbours) and
names neither model nor GPUs, so it stands alone here: not modelled. Changing saves 1.20x at step 4 and 1.25x at step 9;
the text's 1.9x cannot be derived. b and c: preemptions and rollout time under the planner over those without; the fifth
step is a long round. Ours are the runs of Fig 6, whose engines preempt: Qwen3-8B that begins with TP 1. The paper's
text, labels and bars disagree about c (1.07 to 1.39x).

`larger_models` has models of the end-to-end comparison by degree, which preempt nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.fig06 import changes, fixed_runs, planned_runs
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Value, over, paper_rows
from rollpacker.analysis.plots import compare_panels
from rollpacker.analysis.runs import Run, Runs
from rollpacker.analysis.style import CYCLE_STEPS

ADAPTIVE, FIXED = "TP changes", "TP does not change"
GROWING, DEGREE = "a: rollout (s), longer limits (paper alone)", "a: TP degree (paper alone)"
SERIES = {
    "rollout time (adaptive TP)": (GROWING, ADAPTIVE, "s"),
    "rollout time (TP not adjusted)": (GROWING, FIXED, "s"),
    "TP size": (DEGREE, ADAPTIVE, "GPUs"),
}
"""What the paper's series are called here, and where they are drawn."""

PLANNED = {
    "fig12b": ("b: preemptions (% of without planner)", "num_preemptions", "preemptions"),
    "fig12c": ("c: rollout time (% of without planner)", "rollout_time_s", "rollout time"),
}

NUM_STEPS = 6
"""Of b and c."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """By step, means over the seeds."""
    for row in paper_rows("fig12a"):
        panel, series, unit = SERIES[row.series]
        yield Place(panel=panel, x=float(row.x), unit=unit, series=series).paper(row.y)
    fixed = [run.first(NUM_STEPS) for run in fixed_runs(runs, 1)]
    planned = [run.first(NUM_STEPS) for run in planned_runs(runs)]
    for name, (panel, column, quantity) in PLANNED.items():
        of_paper = {int(row.x): row.y for row in paper_rows(name) if row.series == "w/ Planner"}
        for step, y in of_paper.items():
            place = Place(panel=panel, x=f"{step}" if step % CYCLE_STEPS else f"{step}\nlong", unit="%")
            yield place.paper(y)
            ratios = over(_of_step(planned, step, column), _of_step(fixed, step, column))
            yield place.ours(Value(run, 100 * ratio) for run, ratio in ratios)
        yield from _claims(quantity, column, of_paper, fixed, planned)


def _of_step(runs: list[Run], step: int, column: str) -> list[Value]:
    """Of the runs that have the step."""
    return [Value(run, float(run.steps[column][step - 1])) for run in runs if step - 1 in run.steps.index]


def _claims(
    quantity: str, column: str, of_paper: dict[int, float], fixed: list[Run], planned: list[Run]
) -> Iterator[Claim]:
    """Of short rounds, the mean of the steps' shares in the paper, and of ours the change of the mean."""
    shares = {
        "short": [y for step, y in of_paper.items() if step % CYCLE_STEPS],
        "long": [y for step, y in of_paper.items() if not step % CYCLE_STEPS],
    }
    for kind, of_kind in shares.items():
        yield Claim(
            text=f"the planner changes the {quantity} of {kind} rounds, six steps",
            paper=sum(of_kind) / len(of_kind) - 100,
            ours=Place(panel=quantity, x=kind, unit="%").ours(changes(fixed, planned, kind, column)),
            unit="%",
            neutral=0.0,
        )


def draw(numbers: Numbers) -> Figure:
    """The paper's rollouts with a growing limit above, preemptions and rollout time under the planner below."""
    xlabels = dict.fromkeys((GROWING, DEGREE), "step (limit 8k at 1, 32k at 13)")
    return compare_panels(numbers, xlabels=xlabels, num_columns=2, axis_of=lambda _: "")


EXHIBIT = Exhibit(
    name="fig12",
    title="The parallelism planner; ours are Qwen3-8B on 8 GPUs (Fig 12)",
    experiments=("fig06", "fig06-planner"),
    gather=gather,
    draw=draw,
)
