"""Fig 6: preemptions and rollout time of short and long rounds, by the engines' tensor parallelism.

One number is fitted and no claim: the time of short rounds at TP 1, which the scale of the modelled lengths follows
(conf/experiment/fig06.yaml). The paper has no numbers of a run with its planner; ours stand alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Place, Point, Value, over, paper_rows
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.rounds import means
from rollpacker.analysis.runs import Run, Runs

MODEL = "Qwen3-8B"
PANELS = {
    "fig06a": ("preemptions of a {} round", "num_preemptions", "preemptions"),
    "fig06b": ("rollout of a {} round (s)", "rollout_time_s", "s"),
}

FITTED = ("fig06b", "short", 1)
"""Of the panels, the kinds and the degrees."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Means over the rounds of a kind: short ones want a larger degree, says the paper, and long ones a smaller."""
    fixed = {degree: fixed_runs(runs, degree) for degree in (1, 2)}
    planned = planned_runs(runs)
    for name, (title, column, unit) in PANELS.items():
        paper = {(row.series.split()[0].lower(), int(row.x.removeprefix("TP="))): row.y for row in paper_rows(name)}
        for kind in ("short", "long"):
            panel = title.format(kind)
            for degree, of_degree in fixed.items():
                is_fitted = (name, kind, degree) == FITTED
                place = Place(panel=panel, x=f"TP {degree}" + " (fitted)" * is_fitted, unit=unit)
                ours = place.ours(means(of_degree, kind, column))
                yield place.paper(paper[kind, degree])
                yield ours
                if not is_fitted:
                    text = f"TP {degree}: {panel}"
                    yield Claim(text=text, paper=paper[kind, degree], ours=ours, unit=unit)
            yield Place(panel=panel, x="planner", unit=unit).ours(means(planned, kind, column))
            yield Claim(
                text=f"TP 2 instead of TP 1: {panel.removesuffix(' (s)')}",
                paper=100 * (paper[kind, 2] / paper[kind, 1] - 1),
                ours=Place(panel=panel, x="change", unit="%").ours(changes(fixed[1], fixed[2], kind, column)),
                unit="%",
                neutral=0.0,
            )


def fixed_runs(runs: Runs, degree: int) -> list[Run]:
    """Of engines of so many GPUs."""
    return runs.of(model=MODEL, study="fig06", system="tail-reward", tensor_parallel=degree)


def planned_runs(runs: Runs) -> list[Run]:
    """Under the planner."""
    return runs.of(model=MODEL, study="fig06", system="tail-reward-planner")


def changes(before: Iterable[Run], after: Iterable[Run], kind: str, column: str) -> list[Value]:
    """By how many per cent each run's mean is above that of the run before with its seed."""
    ratios = over(means(after, kind, column), means(before, kind, column))
    return [Value(run, 100 * (ratio - 1)) for run, ratio in ratios]


EXHIBIT = Exhibit(
    name="fig06",
    title="Preemptions and rollout time by tensor parallelism, Qwen3-8B on 8 GPUs (Fig 6)",
    experiments=("fig06", "fig06-tp2", "fig06-planner"),
    gather=gather,
    draw=partial(compare_bars, number="{:,.0f}", num_columns=2),
)
