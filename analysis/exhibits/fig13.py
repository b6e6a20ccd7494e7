"""Fig 13: what the reward scheduler does: rewards during the rollout, a judge that streams, timeouts that adapt.

a: the reward time that a step waits for, when a batch is scored at its end (`tail`) and when each response is as it
finishes (`tail-reward`). b: how long the judge takes, by the response's length, when none of its layers stays on the
GPU: the next layer is copied while one computes, or waited for. c: steps of code alone, with an adaptive timeout of
programs and the fixed one of 30 s. The paper's own numbers of this figure are not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, comparing
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.rounds import means
from rollpacker.analysis.runs import Run, Runs

OVERALL = {"tail": "batch", "tail-reward": "per sample"}
JUDGES = {"pipeline": "piped", "nopipeline": "not"}
TIMEOUTS = {"adpt_timeout": "adaptive", "adpt_notimeout": "fixed"}
"""Systems, or variants of conf/experiment/benchmark_fig13.yaml, and what they are called."""

LENGTHS = {"<512": (0, 512), "<2k": (512, 2048), "longer": (2048, 1 << 30)}
"""Tokens of a response."""


def gather(runs: Runs) -> Numbers:
    """Means over rounds; of the judge, over responses, each the time of the batch that it was in."""
    points: list[Point | None] = []
    for model in runs.models("Qwen2.5-7B", "Qwen2.5-14B"):
        place = f"a: exposed reward, {model} (s)"
        overall = {label: runs.of(model=model, system=system, task="mix") for system, label in OVERALL.items()}
        points += _rounds(place, overall, "exposed_reward_time_s")
    judges = {label: runs.of(study=f"fig13-{variant}") for variant, label in JUDGES.items()}
    for name, (low, high) in LENGTHS.items():
        for label, found in judges.items():
            values = [Value(run, _judging_s(run, low, high)) for run in found]
            points.append(Place(panel="b: judge, by tokens (s)", x=f"{name},\n{label}", unit="s").ours(values))
    timeouts = {label: runs.of(study=f"fig13-{variant}") for variant, label in TIMEOUTS.items()}
    for title, column in (("step", "step_time_s"), ("exposed reward", "exposed_reward_time_s")):
        points += _rounds(f"c: {title}, code (s)", timeouts, column)
    return Numbers(points=comparing(points), missing=runs.missing)


def _rounds(panel: str, compared: Mapping[str, list[Run]], column: str) -> list[Point | None]:
    """Short rounds of all that are compared, then long ones."""
    return [
        Place(panel=panel, x=f"{kind},\n{label}", unit="s").ours(means(found, kind, column))
        for kind in ("short", "long")
        for label, found in compared.items()
    ]


def _judging_s(run: Run, low: int, high: int) -> float:
    """Mean over the scored responses of such a length; NaN without one."""
    responses = run.responses
    is_judged = responses["reward_time_s"] > 0
    return float(responses[is_judged & responses["length_tokens"].between(low, high - 1)]["reward_time_s"].mean())


def draw(numbers: Numbers) -> Figure:
    """One panel for each number, in the order of a, b and c."""
    return compare_bars(numbers, ylabel="", num_columns=3, axis_of=lambda panel: panel.partition(",")[0])


EXHIBIT = Exhibit(
    name="fig13",
    title="What the reward scheduler does: overlap, a judge's pipeline, adaptive timeouts (Fig 13)",
    experiments=("table2", "benchmark_fig13"),
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
