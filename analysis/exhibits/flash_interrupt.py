"""Ours: what interrupting responses costs: an update stops them, and their tokens are computed once more, or kept.

By the lead, which is about how many updates a response lives through, and by the longest response; Qwen3-8B, 24 GPUs
generate and 8 train. The engines' share is what prefilling these tokens takes by the model of the cluster, over all
engines' time. The third panel compares the whole run's time with that of `system.interrupt=keep`, which computes
nothing twice; other responses are complete first then, so some of it is chance. 24 runs of 16 steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from pydantic import ValidationError

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Place, Point, Value, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs
from rollpacker.config.schema import RunConfig
from rollpacker.sim.plan import plan_cluster

TOKENS, ENGINES, LOST = "recomputed per token", "share of engine time (%)", "slower than keep (%)"
LEADS: Final = ("0.5", "1", "2", "4")
LONGEST: Final = (8192, 16384, 32768)
"""Tokens of a response, at most."""


def gather(runs: Runs) -> Iterator[Point | None]:
    """Sums over all steps."""
    for longest in LONGEST:
        for lead in LEADS:
            recompute, keep = (
                runs.of(setup="flash", study=f"flash-interrupt-{interrupt}-{longest}-{lead}")
                for interrupt in ("recompute", "keep")
            )
            for panel, unit, values in (
                (TOKENS, "tokens", [Value(run, run.ratio("tokens_recomputed", "tokens_trained")) for run in recompute]),
                (ENGINES, "%", [Value(run, _share_percent(run)) for run in recompute]),
                (LOST, "%", [Value(run, 100 * (ratio - 1)) for run, ratio in speedups(recompute, keep)]),
            ):
                yield Place(panel=panel, x=float(lead), unit=unit, series=f"at most {longest:,} tokens").ours(values)


def _share_percent(run: Run) -> float:
    """Of all engines' time, each response prefilled with the mean of what all had; NaN of a run of another version."""
    sums = run.steps[["num_requests_continued", "tokens_recomputed", "step_time_s"]].sum()
    number = int(sums["num_requests_continued"])
    if not number:
        return 0.0
    try:
        config = RunConfig.model_validate(run.config)
    except ValidationError:
        return float("nan")
    mean_tokens = round(float(sums["tokens_recomputed"]) / number)
    costs = plan_cluster(config, needs_judge=False).engine
    spent_s = number * costs.prefill_pass_s(0, [(0, mean_tokens)])
    return 100 * spent_s / (config.engine.num_engines * float(sums["step_time_s"]))


EXHIBIT = Exhibit(
    name="flash_interrupt",
    title="What it costs to interrupt responses for an update, 24 of 32 GPUs generate (ours)",
    experiments=("flash-interrupt",),
    gather=gather,
    draw=partial(compare_lines, xlabel="lead (batches)", are_sizes=True),
)
