"""`rollpacker plan`: what tail batching would save on given lengths, model and GPUs, by modelled runs."""

from __future__ import annotations

import tempfile
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.analysis.plan.question import Question, folder_of, space_of, split_arguments
from rollpacker.cli.command_help import KEYS_OF_TRAIN, CommandHelp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollpacker.analysis.plan.lengths import LengthFacts
    from rollpacker.analysis.plan.outcomes import Outcome
    from rollpacker.analysis.plan.search import Space
    from rollpacker.cli.arguments import Arguments

NOT_IN_TABLE = {"trial", "has_seen_long"}

NUM_QUANTILES = 200
"""Of the written distribution of lengths."""

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
        ("gpus", "How many you have in mind; half and twice as many are tried, too."),
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
    from rollpacker.analysis.plan.lengths import length_facts
    from rollpacker.analysis.plan.screen import show
    from rollpacker.analysis.processes import end_like_ctrl_c
    from rollpacker.cli.screen import output

    question, keys = split_arguments(arguments.words)
    folder = folder_of(question)
    space = space_of(question, keys, folder)
    lengths = length_facts(space.bases[space.baseline])
    space = replace(space, varies_rho=not lengths.names_prompts)
    end_like_ctrl_c()
    console = output()
    outcomes, num_left_out = _search(space, question)

    from rollpacker.analysis.plan.figure import draw
    from rollpacker.metrics.files import publish_folder, storage_errors
    from rollpacker.metrics.plans import read_plan

    with storage_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with publish_folder(folder) as temporary:
        _write(temporary, outcomes, lengths, space)
        draw(*read_plan(temporary), temporary / "plan")
    show(console, outcomes, lengths, space, num_left_out=num_left_out)
    console.print(f"written to {folder}: plan.parquet, lengths.parquet, plan.png, plan.pdf", soft_wrap=True)


def _search(space: Space, question: Question) -> tuple[list[Outcome], int]:
    """Run the stages; gives the outcomes, and how many runs the time did not allow."""
    from rollpacker.analysis.plan.outcomes import attempt
    from rollpacker.analysis.plan.search import count_trials, search
    from rollpacker.analysis.processes import open_processes
    from rollpacker.cli.screen import plan_progress

    began = time.monotonic()
    outcomes: list[Outcome] = []
    num_trials = count_trials(space)
    stages = search(space)
    with (
        plan_progress(num_trials, question.num_workers) as progress,
        tempfile.TemporaryDirectory(prefix="rollpacker-plan-", ignore_cleanup_errors=True) as scratch,
        open_processes(question.num_workers) as processes,
    ):
        stage = next(stages)
        while True:
            progress.stage(STAGE_TITLES[stage.name])
            tasks = [(space.bases[trial.setting.system], trial, Path(scratch)) for trial in stage.trials]
            found = []
            may_begin = _Allowance(stage.num_needed, began + question.seconds)
            for _, outcome in processes.results(attempt, tasks, may_begin):
                found.append(outcome)
                progress.advance()
            outcomes += found
            try:
                stage = stages.send(found)
            except StopIteration:
                break
    order = {trial: index for index, trial in enumerate(dict.fromkeys(each.trial for each in outcomes))}
    outcomes.sort(key=lambda each: order[each.trial])
    return outcomes, num_trials - len(outcomes)


class _Allowance:
    """Lets runs begin until the time is up, and those without which there is no answer in any case."""

    def __init__(self, num_needed: int, deadline_s: float) -> None:
        self._num_needed = num_needed
        self._deadline_s = deadline_s

    def __call__(self) -> bool:
        self._num_needed -= 1
        return self._num_needed >= 0 or time.monotonic() < self._deadline_s


def _write(folder: Path, outcomes: Sequence[Outcome], lengths: LengthFacts, space: Space) -> None:
    from rollpacker.analysis.plan.advice import speedups_by_trial
    from rollpacker.metrics.plans import write_plan

    speedups = speedups_by_trial(outcomes, space.baseline)
    rows = [_row(outcome, speedups.get(outcome.trial), space) for outcome in outcomes]
    write_plan(folder, rows, list(_length_rows(lengths)))


def _row(outcome: Outcome, speedup: float | None, space: Space) -> dict[str, object]:
    trial = outcome.trial
    numbers = {field.name: getattr(outcome, field.name) for field in fields(outcome) if field.name not in NOT_IN_TABLE}
    setting = {field.name: getattr(trial.setting, field.name) for field in fields(trial.setting)}
    return {
        **setting,
        **numbers,
        "seed": trial.seed,
        "num_steps": trial.num_steps,
        "speedup": speedup,
        "gpu_hours_per_1000_steps": outcome.gpu_hours_per_1000_steps,
        "is_asked": (trial.setting.num_gpus, trial.setting.rho) == (space.num_gpus, space.rho),
        "modelled": True,
    }


def _length_rows(lengths: LengthFacts) -> Iterator[dict[str, object]]:
    for domain, drawn in lengths.drawn.items():
        ranked = sorted(drawn)
        for rank in range(NUM_QUANTILES + 1):
            p = rank / NUM_QUANTILES
            yield {
                "domain": domain,
                "p": p,
                "length_tokens": ranked[round(p * (len(ranked) - 1))],
                "limit_tokens": lengths.limit,
                "modelled": True,
            }
