"""Ours: what interrupting responses costs: an update stops them, and their tokens are computed once more after it.

By the lead, which is about how many updates a response lives through, and by the longest response; Qwen3-8B, 24 GPUs
generate and 8 train. The engines' share is what prefilling these tokens takes by the model of the cluster, over all
engines' time. 15 runs of 16 steps, five of them those of `flash_lead`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, comparing
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs
from rollpacker.config.schema import RunConfig
from rollpacker.sim.plan import plan_cluster

TOKENS, ENGINES = "recomputed per trained token", "share of engines' time (%)"
LEADS: Final = ("0.25", "0.5", "1", "2", "4")
STUDIES: Final = {4096: "flash-interrupt-4096", 16384: "flash-interrupt-16384", 32768: "flash-lead-8"}
"""By the longest response."""


def gather(runs: Runs) -> Numbers:
    """Sums over all steps."""
    return Numbers(points=comparing(_points(runs)), missing=runs.missing)


def _points(runs: Runs) -> Iterator[Point | None]:
    for longest, study in STUDIES.items():
        for lead in LEADS:
            found = runs.of(setup="flash", study=f"{study}-{lead}")
            place = Place(panel=TOKENS, x=float(lead), unit="tokens", series=f"at most {longest:,} tokens")
            steps = [(run, run.steps[["tokens_recomputed", "tokens_trained"]].sum()) for run in found]
            yield place.ours(Value(run, float(sums.iloc[0] / sums.iloc[1])) for run, sums in steps)
            place = Place(panel=ENGINES, x=float(lead), unit="%", series=f"at most {longest:,} tokens")
            yield place.ours(Value(run, _share_percent(run)) for run in found)


def _share_percent(run: Run) -> float:
    """Of all engines' time; each response is prefilled with the mean of what all of them had."""
    sums = run.steps[["num_requests_continued", "tokens_recomputed", "step_time_s"]].sum()
    number = int(sums["num_requests_continued"])
    if not number:
        return 0.0
    config = RunConfig.model_validate(run.config)
    mean_tokens = round(float(sums["tokens_recomputed"]) / number)
    costs = plan_cluster(config, needs_judge=False).engine
    spent_s = number * costs.prefill_pass_s(0, [(0, mean_tokens)])
    return 100 * spent_s / (config.engine.num_engines * float(sums["step_time_s"]))


def draw(numbers: Numbers) -> Figure:
    """Tokens beside time, over the lead."""
    return compare_lines(numbers, xlabel="lead (batches)", ylabel="", are_sizes=True)


EXHIBIT = Exhibit(
    name="flash_interrupt",
    title="What interrupted responses cost that are computed once more, 24 of 32 GPUs generate (ours)",
    experiments=("flash-lead", "flash-interrupt"),
    gather=gather,
    draw=draw,
)
