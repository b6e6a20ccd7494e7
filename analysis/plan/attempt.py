"""One trial, tried: the real pipeline in virtual time, in a folder that goes with it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.analysis.plan.outcomes import Outcome, outcome_of
from rollpacker.analysis.plan.trials import Trial, cluster_of, run_of

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


def attempt(task: tuple[RunConfig, Trial, Path]) -> Outcome:
    """Try a trial of a system's run; what the run wrote below the given folder is removed."""
    from rollpacker import pipeline
    from rollpacker.metrics.tables import read_frame

    base, trial, folder = task
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    run = run_of(base, trial, run_dir)
    try:
        pipeline.run(run)
        steps, responses = read_frame(run_dir, "steps"), read_frame(run_dir, "responses")
    finally:
        shutil.rmtree(run_dir.parent, ignore_errors=True)
    cluster = cluster_of(run)
    capacities = {trial.setting.tensor_parallel: cluster.kv_tokens_per_engine}
    for other in set(steps["tensor_parallel"]) - set(capacities):  # a planner chose it
        engine = run.engine.model_copy(update={"tensor_parallel": int(other)})
        capacities[int(other)] = cluster_of(run.model_copy(update={"engine": engine})).kv_tokens_per_engine
    return outcome_of(trial, steps, responses, kv_tokens_by_degree=capacities, num_all_gpus=cluster.num_gpus)
