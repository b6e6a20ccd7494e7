"""`rollpacker plan`: what tail batching would save on given lengths, model and GPUs, by modelled runs."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.analysis.plan.question import Question, folder_of, space_of, split_arguments
from rollpacker.cli.command_help import KEYS_OF_TRAIN, CommandHelp

if TYPE_CHECKING:
    import pandas as pd

    from rollpacker.analysis.plan.search import Space, Stage
    from rollpacker.analysis.plan.trials import Trial
    from rollpacker.cli.arguments import Arguments

STAGE_TITLES = {
    "degrees": "degrees of tensor parallelism",
    "eta": "speculation factors",
    "gpus": "half and twice the GPUs",
    "seeds": "further seeds",
    "rho": "other correlations of lengths",
}


HELP = CommandHelp(
    purpose=(
        "Model what tail batching would save: many short runs of the real scheduler in virtual time, from coarse to "
        "fine, under plain and tail batching, with the eta, TP and GPUs to ask for. Nothing is measured; it needs no "
        "GPU and takes about a minute on two cores."
    ),
    usage="gpus=N model=OPTION [hardware=OPTION] [key=value | group=option] ...",
    arguments=(
        ("gpus", "How many you have in mind; without hardware.profile half and twice as many are tried, too."),
        (
            "workload.lengths",
            (
                "Your response lengths: a CSV, Parquet or JSONL file with the column length_tokens (and prompt and "
                "domain where known), or a recorded run.dir. Default: the paper's."
            ),
        ),
        ("out", "The folder to write to. Default: a fresh one below runs/plan"),
        ("seconds", "No further modelled run begins after so long. Default: 60"),
        ("seeds", "Repetitions of what is compared. Default: 3"),
        ("systems", "Compared with the first. Default: verl,rlhfuse,rollpacker, where there"),
        ("workers", "Processes. Default: one per core"),
        ("engine.tensor_parallel", "Fixes TP; else all degrees that fit are tried."),
        KEYS_OF_TRAIN,
    ),
    examples=(
        (
            "rollpacker plan model=qwen2.5-14b hardware=h800 gpus=32 \\\n"
            "    workload.lengths=lengths.parquet rollout.num_prompts=128 \\\n"
            "    rollout.max_response_tokens=16384"
        ),
    ),
)


def run(arguments: Arguments) -> None:
    """Validate everything, search, write, and show."""
    from rollpacker.analysis.plan.screen import show
    from rollpacker.analysis.processes import end_like_ctrl_c
    from rollpacker.cli.screen import output

    question, keys = split_arguments(arguments.words)
    folder = folder_of(question)
    space, lengths = space_of(question, keys, folder)
    end_like_ctrl_c()
    console = output()
    outcomes, left_out = _search(space, question)

    from rollpacker.analysis.plan.figure import draw
    from rollpacker.metrics.files import publish_folder, storage_errors

    quantiles = lengths.quantiles()
    with storage_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with publish_folder(folder) as temporary, storage_errors(folder):
        outcomes.to_parquet(temporary / "plan.parquet", index=False)
        quantiles.to_parquet(temporary / "lengths.parquet", index=False)
        draw(outcomes, quantiles, temporary / "plan")
    show(console, outcomes, lengths, space, left_out=left_out)
    console.print(f"written to {folder}: plan.parquet, lengths.parquet, plan.png, plan.pdf", soft_wrap=True)


def _search(space: Space, question: Question) -> tuple[pd.DataFrame, dict[str, int]]:
    """Model the trials.

    Returns:
        A row for each, in the order of the search; and by title of a stage, how many the time did not allow.
    """
    import pandas as pd

    from rollpacker.analysis.plan.advice import add_speedups
    from rollpacker.analysis.plan.outcomes import attempt
    from rollpacker.analysis.plan.search import count_trials, search
    from rollpacker.analysis.processes import open_processes
    from rollpacker.cli.screen import plan_progress

    deadline_s = time.monotonic() + question.seconds
    rows: list[dict[str, object]] = []
    left_out: dict[str, int] = {}
    with (
        plan_progress(count_trials(space), question.num_workers) as progress,
        tempfile.TemporaryDirectory(prefix="rollpacker-plan-", ignore_cleanup_errors=True) as scratch,
        open_processes(question.num_workers) as processes,
    ):

        def model(stage: Stage) -> dict[Trial, float]:
            if stage.trials:
                progress.stage(STAGE_TITLES[stage.name])
            tasks = [(space.bases[trial.setting.system], trial, Path(scratch)) for trial in stage.trials]
            numbers = itertools.count(1)
            found = {}
            for (_, trial, _), outcome in processes.results(
                attempt, tasks, lambda: next(numbers) <= stage.num_needed or time.monotonic() < deadline_s
            ):
                found[trial] = outcome
                progress.advance()
            ordered = [trial for trial in stage.trials if trial in found]
            if num_left_out := len(stage.trials) - len(ordered):
                left_out[STAGE_TITLES[stage.name]] = num_left_out
            rows.extend(trial.setting._asdict() | trial._asdict() | found[trial] for trial in ordered)
            return {trial: found[trial]["step_time_s"] for trial in ordered}

        search(space, model)
    outcomes = pd.DataFrame(rows).drop(columns="setting").astype({"eta": float})
    is_asked = (outcomes["num_gpus"] == space.num_gpus) & (outcomes["rho"] == space.rho)
    return add_speedups(outcomes.assign(is_asked=is_asked), space.baseline), left_out
