"""A trial's modelled run, reduced to numbers per step of the steady state: a row of `plan.parquet`.

A trial is short, and the share of long rounds in it depends on where it stops. So means are taken over short and long
rounds apart and weighted by the shares of the steady state: each short round defers d prompts and a long round takes
P0 of them, so long rounds are d / (P0 + d) of all. Of a system with a length history, rounds before the first one that
knows its prompts do not count.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import numpy.typing as npt

from rollpacker.analysis.plan.trials import Trial, run_of
from rollpacker.sim.run_facts import ModelledRunFacts
from rollpacker.timeline.run_tables import ASYNC
from rollpacker.timeline.stretches import MOVES, request_names

if TYPE_CHECKING:
    import pandas as pd

    from rollpacker.config.schema import RunConfig


_NAMED_DEGREE = r"^engine-tp(\d+)-"
"""Of modelled engines that the configured ones take turns with, as `rollpacker.sim.backend` names them."""


class Outcome(TypedDict):
    """What came of one trial, per step of its steady state. Modelled, all of it."""

    step_time_s: float
    rollout_time_s: float
    train_time_s: float
    long_share: float
    """Of rounds."""
    has_seen_long: bool
    """False when prompts were deferred and no long round came: the means are then of short rounds only."""
    deferred_at_once: float
    """Prompts per round, known to be long by system.length_history. 0 with it: no round knew its prompts."""
    bubble_ratio: float
    wasted_share: float
    """Of generated tokens."""
    preemptions: float
    """Per step, over all engines."""
    kv_peak_share: float
    """Of an engine's KV cache, the largest over engines and time."""
    kv_tokens_per_engine: int
    num_all_gpus: int
    """With those of a judge that has its own."""
    gpu_hours_per_1000_steps: float
    modelled: bool
    """True: nothing here was measured."""


def attempt(task: tuple[RunConfig, Trial, Path]) -> Outcome:
    """Model the run of a trial of a system; what the run writes below the given folder is removed."""
    from rollpacker import pipeline
    from rollpacker.metrics.tables import read_frame

    base, trial, folder = task
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    run = run_of(base, trial, run_dir)
    try:
        pipeline.run(run)
        steps, responses, intervals = (read_frame(run_dir, name) for name in ("steps", "responses", "intervals"))
    finally:
        shutil.rmtree(run_dir.parent, ignore_errors=True)
    cluster = ModelledRunFacts(run).cluster()
    capacities = {trial.setting.tensor_parallel: cluster.kv_tokens_per_engine}
    degrees = {*steps["tensor_parallel"], *steps["escalated_from"].dropna()}
    for other in degrees - set(capacities):  # a planner chose it, or a round ended on it
        num_engines = trial.setting.num_gpus // int(other)
        engine = run.engine.model_copy(update={"tensor_parallel": int(other), "num_engines": num_engines})
        capacities[int(other)] = (
            ModelledRunFacts(run.model_copy(update={"engine": engine})).cluster().kv_tokens_per_engine
        )
    return outcome_of(trial, steps, responses, intervals, kv_tokens_by_degree=capacities, num_all_gpus=cluster.num_gpus)


def outcome_of(
    trial: Trial,
    steps: pd.DataFrame,
    responses: pd.DataFrame,
    intervals: pd.DataFrame,
    *,
    kv_tokens_by_degree: Mapping[int, int],
    num_all_gpus: int,
) -> Outcome:
    """Reduce a run's tables."""
    peak_share = kv_peak_share(steps, responses, intervals, kv_tokens_by_degree, trial.setting.tensor_parallel)
    at_once = steps["num_prompts_deferred_at_once"]
    if at_once.any():
        steps = steps[steps["step"] >= steps.loc[at_once > 0, "step"].min()]
    is_long = steps["round_kind"] == "long"
    others = steps[~is_long]
    num_prompts = float(steps["num_prompts"].mean())
    num_decided = others["num_prompts"] + others["num_prompts_dropped"]
    num_deferred = float((others["num_prompts_launched"] - num_decided + others["num_prompts_deferred_at_once"]).mean())
    long_share = num_deferred / (num_prompts + num_deferred) if is_long.any() else 0.0

    def mean(column: str) -> float:
        short, long = steps[~is_long][column].mean(), steps[is_long][column].mean()
        return float((1 - long_share) * short + long_share * long if is_long.any() else short)

    step_time_s = mean("step_time_s")
    busy, idle = mean("decode_slot_steps_busy"), mean("decode_slot_steps_idle")
    return Outcome(
        step_time_s=step_time_s,
        rollout_time_s=mean("rollout_time_s"),
        train_time_s=mean("train_time_s"),
        long_share=long_share,
        has_seen_long=bool(is_long.any()) or num_deferred == 0,
        deferred_at_once=mean("num_prompts_deferred_at_once"),
        bubble_ratio=idle / max(1.0, busy + idle),
        wasted_share=mean("tokens_wasted") / max(1.0, mean("tokens_generated")),
        preemptions=mean("num_preemptions"),
        kv_peak_share=peak_share,
        kv_tokens_per_engine=kv_tokens_by_degree[trial.setting.tensor_parallel],
        num_all_gpus=num_all_gpus,
        gpu_hours_per_1000_steps=1000 * step_time_s * num_all_gpus / 3600,
        modelled=True,
    )


def kv_peak_share(
    steps: pd.DataFrame,
    responses: pd.DataFrame,
    intervals: pd.DataFrame,
    kv_tokens_by_degree: Mapping[int, int],
    tensor_parallel: int,
) -> float:
    """The largest share of a KV cache that was in use, reconstructed from when responses came to engines and left them.

    In between a response's cache is taken to grow evenly, from what it had. It grows faster when few are left, so the
    sum is 4 to 20 % above that of the modelled engines; what preemption took back is not seen, so it is cut at the
    cache's size. Responses of an asynchronous run are together in a cache whatever step trains them. A round may begin
    on engines of one degree and end on others: the engines that are not of `tensor_parallel`, the configured one, have
    theirs in their names.
    """
    stays = _stays(responses, intervals)
    degrees = stays["engine"].str.extract(_NAMED_DEGREE, expand=False).fillna(str(tensor_parallel)).astype("int64")
    tokens = ["num_prompt_tokens", "num_begun", "num_ended"]
    stays[tokens] = stays[tokens].div(degrees.map(dict(kv_tokens_by_degree)), axis="index")
    together = ["engine"] if ASYNC in set(steps["round_kind"]) else ["engine", "step"]
    return min(max((_peak(rows) for _, rows in stays.groupby(together, sort=False)), default=0.0), 1.0)


def _stays(responses: pd.DataFrame, intervals: pd.DataFrame) -> pd.DataFrame:
    """What was in the engines' caches: a row per turn of a response, and per engine that it moved to."""
    import pandas as pd

    names = request_names(responses)
    moves = intervals[intervals["activity"].isin(MOVES)].sort_values("started_at_s", kind="stable")
    moves = moves[moves["subject"].isin(names)]
    failed = (moves["activity"] == "failed").astype("int64")  # after which it begins again, with nothing
    life = moves["subject"] + "." + (failed.groupby(moves["subject"]).cumsum() - failed).astype(str)
    num_ended = moves["num_tokens"].groupby(life).cumsum()
    earlier = pd.DataFrame(
        {
            "step": moves["step"],
            "engine": moves["actor"],
            "began_s": moves["started_at_s"],
            "ended_s": moves["ended_at_s"],
            "num_prompt_tokens": moves["subject"].map(dict(zip(names, responses["num_prompt_tokens"], strict=True))),
            "num_begun": num_ended - moves["num_tokens"],
            "num_ended": num_ended,
        }
    )
    last = pd.DataFrame(
        {
            "step": responses["step"],
            "engine": responses["engine"],
            "began_s": responses["finished_at_s"] - responses["generation_time_s"],
            "ended_s": responses["finished_at_s"],
            "num_prompt_tokens": responses["num_prompt_tokens"],
            "num_begun": names.map(num_ended.mask(failed > 0, 0).groupby(moves["subject"]).last()).fillna(0),
            "num_ended": responses["length_tokens"],
        }
    )
    return pd.concat([earlier, last], ignore_index=True)


def _peak(rows: pd.DataFrame) -> float:
    """Of one engine: the sum is largest just before some response leaves."""
    rows = rows[rows["ended_s"] > rows["began_s"]]
    columns = ("began_s", "ended_s", "num_prompt_tokens", "num_begun", "num_ended")
    began, ended, prompt, begun, length = (rows[name].to_numpy(dtype=float) for name in columns)
    rate = (length - begun) / (ended - began)
    in_order, leaving = np.argsort(began), np.argsort(ended)
    moments = ended[leaving]
    num_come, num_gone = np.searchsorted(began[in_order], moments), np.searchsorted(moments, moments)

    def of_those_there(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Their sum at each moment."""
        come, gone = (np.append(0.0, np.cumsum(values[order])) for order in (in_order, leaving))
        sums: npt.NDArray[np.float64] = come[num_come] - gone[num_gone]
        return sums

    in_use = of_those_there(prompt + begun - rate * began) + moments * of_those_there(rate)
    return float(in_use.max(initial=0.0))
