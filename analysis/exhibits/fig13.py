"""Fig 13: what the reward scheduler does: a judge beside the engines, one that streams, timeouts that adapt.

a: the step when the judge scores each response beside the engines, on their GPUs, over the step when it scores the
batch at the end of the rollout. The paper compares with and without MPS and names no model: at most 1.21x (its text:
1.25x).
b: how long the judge takes when none of its layers stays on the GPU: the next layer is copied while one computes, or
waited for; by policy and length limit, and ours of the smallest by the response's length, too. c: rollout and exposed
reward of code alone, with an adaptive timeout of programs and the fixed one of 30 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean

import pandas as pd
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Source, Value, comparing, paper_rows, speedups
from rollpacker.analysis.plots import compare_panels
from rollpacker.analysis.rounds import rounds_of
from rollpacker.analysis.runs import Run, Runs, shared_steps
from rollpacker.analysis.style import CYCLE_STEPS

JUDGES = {"pipeline": "piped", "nopipeline": "not"}
TIMEOUTS = {"adpt_timeout": "adaptive", "adpt_notimeout": "fixed"}
"""Variants of conf/experiment/benchmark_fig13.yaml and benchmark_fig13-judge.yaml, and what they are called."""

PAPER_TIMEOUTS = {"w/ Adpt. Timeout": "adaptive", "w/o Adpt. Timeout": "fixed"}

LENGTHS = {"<512": (0, 512), "<2k": (512, 2048), "longer": (2048, 1 << 30)}
"""Tokens of a response."""

BESIDE = "a: step (% of judging at the end)"
PIPED = "b: judge's time, piped (% of not piped)"
BY_LENGTH = "b: judge's time by tokens, smallest policy (s)"
TIMED = "c: rollout and reward, code (s)"
PANELS = (BESIDE, PIPED, BY_LENGTH, TIMED)

MODEL = "Qwen2.5-7B"
"""Of a and c, and the smallest policy of b."""
MODELS = {MODEL: "7B/8k", "Qwen2.5-14B": "14B/16k", "Qwen2.5-32B": "32B/32k"}
"""The policies, which write what is judged, as the paper names them with their limits."""

NUM_STEPS = 6
"""Of a; the fifth is a long round."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """By step, means over the seeds; of the judge, means over responses, each the time of the batch that it was in."""
    model = runs.model(MODEL)
    beside, after = (runs.of(model=model, study=f"fig13-{variant}") for variant in ("mps", "nomps"))
    judges = {
        policy: {label: runs.of(model=policy, study=f"fig13-{variant}") for variant, label in JUDGES.items()}
        for policy in runs.models(*MODELS)
    }
    timeouts = {label: runs.of(model=model, study=f"fig13-{variant}") for variant, label in TIMEOUTS.items()}
    points: list[Point | None] = list(_of_paper()) if runs.are_papers_size else []
    points += [
        _step_place(step + 1).ours(_ratios(beside, after, partial(_step_s, step=step))) for step in range(NUM_STEPS)
    ]
    for policy, of_policy in judges.items():
        points.append(_model_place(policy).ours(_ratios(of_policy["piped"], of_policy["not"], _judging_s)))
    for name, (low, high) in LENGTHS.items():
        for label, found in judges.get(model, {}).items():
            values = [Value(run, _judging_s(run, low, high)) for run in found]
            points.append(Place(panel=BY_LENGTH, x=f"{name},\n{label}", unit="s").ours(values))
    for label, found in timeouts.items():
        for step in shared_steps(found):
            place = Place(panel=TIMED, x=float(step + 1), unit="s", series=label)
            points.append(place.ours(Value(run, float(_rollout_and_reward_s(run.steps)[step])) for run in found))
    yield from sorted(comparing(points), key=lambda point: PANELS.index(point.panel))
    if runs.are_papers_size:
        yield _claim_of_judge(beside, after)
        yield from _claims_of_pipeline(points)
        yield from _claims_of_timeouts(timeouts)


def _of_paper() -> Iterator[Point]:
    for row in paper_rows("fig13a"):
        if row.series == "w/ MPS":
            yield _step_place(int(row.x)).paper(row.y)
    for row in paper_rows("fig13b"):
        if row.series == "w/ Pipe":
            yield Place(panel=PIPED, x=row.x, unit="%").paper(row.y)
    for row in paper_rows("fig13c"):
        yield Place(panel=TIMED, x=float(row.x), unit="s", series=PAPER_TIMEOUTS[row.series]).paper(row.y)


def _step_place(step: int) -> Place:
    return Place(panel=BESIDE, x=f"{step}" if step % CYCLE_STEPS else f"{step}\nlong", unit="%")


def _model_place(model: str) -> Place:
    return Place(panel=PIPED, x=MODELS.get(model, model), unit="%")


def _ratios(own: Iterable[Run], base: Iterable[Run], value_of: Callable[[Run], float]) -> list[Value]:
    """Of one number of the run and of the base with its seed, in per cent; NaN where either has none."""
    by_seed = {run.seed: value_of(run) for run in base}
    return [Value(run, 100 * value_of(run) / by_seed[run.seed]) for run in own if run.seed in by_seed]


def _step_s(run: Run, step: int) -> float:
    return float(run.steps["step_time_s"].get(step, float("nan")))


def _judging_s(run: Run, low: int = 0, high: int = 1 << 30) -> float:
    """Mean over the scored responses of such a length; NaN without one."""
    responses = run.responses
    is_judged = responses["reward_time_s"] > 0
    return float(responses[is_judged & responses["length_tokens"].between(low, high - 1)]["reward_time_s"].mean())


def _rollout_and_reward_s(steps: pd.DataFrame) -> pd.Series:
    return steps["rollout_time_s"] + steps["exposed_reward_time_s"]


def _claim_of_judge(beside: Iterable[Run], after: Iterable[Run]) -> Claim:
    of_paper = [row.y for row in paper_rows("fig13a") if row.series == "w/ MPS"]
    gains = speedups([run.first(NUM_STEPS) for run in after], [run.first(NUM_STEPS) for run in beside])
    return Claim(
        text="a judge beside the engines: step over that with a judge at the end, six steps",
        paper=fmean(of_paper),
        ours=Place(panel=BESIDE, x="mean", unit="%").ours(Value(run, 100 / gain) for run, gain in gains),
        unit="%",
        neutral=100.0,
    )


def _claims_of_pipeline(points: Iterable[Point | None]) -> Iterator[Claim]:
    shares = {(point.x, point.source is Source.PAPER): point for point in points if point and point.panel == PIPED}
    for model in MODELS.values():
        text = f"a judge whose layers are piped, {model}: its time over that without"
        paper, ours = shares[model, True].y, shares.get((model, False))
        yield Claim(text=text, paper=paper, ours=ours, unit="%", neutral=100.0)


def _claims_of_timeouts(timeouts: Mapping[str, Sequence[Run]]) -> Iterator[Claim]:
    """Means over the rounds of a kind, and what adaptive timeouts gain."""
    for kind in ("short", "long"):
        of_kind = [row for row in paper_rows("fig13c") if (int(row.x) % CYCLE_STEPS == 0) == (kind == "long")]
        of_paper = {label: fmean(row.y for row in of_kind if PAPER_TIMEOUTS[row.series] == label) for label in timeouts}

        def mean_s(run: Run, kind: str = kind) -> float:
            return float(_rollout_and_reward_s(rounds_of(run, kind)).mean())

        for label, found in timeouts.items():
            ours = Place(panel=TIMED, x=kind, unit="s").ours(Value(run, mean_s(run)) for run in found)
            text = f"rollout and reward of {kind} rounds of code, {label} timeouts (s)"
            yield Claim(text=text, paper=of_paper[label], ours=ours, unit="s")
        text = f"adaptive timeouts: rollout and reward of {kind} rounds of code over those with the fixed one"
        ours = Place(panel=TIMED, x=kind, unit="%").ours(_ratios(timeouts["adaptive"], timeouts["fixed"], mean_s))
        paper = 100 * of_paper["adaptive"] / of_paper["fixed"]
        yield Claim(text=text, paper=paper, ours=ours, unit="%", neutral=100.0)


def draw(numbers: Numbers) -> Figure:
    """A panel for each number, in the order of a, b and c."""
    shares = (BESIDE, PIPED)
    return compare_panels(
        numbers,
        xlabels={TIMED: "training step (5, 10, 15, 20: long rounds)"},
        num_columns=2,
        axis_of=lambda panel: "" if panel in shares else panel,
    )


EXHIBIT = Exhibit(
    name="fig13",
    title="What the reward scheduler does: overlap, a judge's pipeline, adaptive timeouts (Fig 13)",
    experiments=("benchmark_fig13", "benchmark_fig13-judge"),
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
