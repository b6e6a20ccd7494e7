"""`rollpacker plan`: what tail batching would save on given lengths, model and GPUs, before anyone asks for them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from rollpacker.cli.plan_words import Question, folder_of, space_of, split_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rollpacker.cli.arguments import Arguments
    from rollpacker.whatif.lengths import LengthFacts
    from rollpacker.whatif.outcomes import Outcome
    from rollpacker.whatif.search import Space

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


def run(arguments: Arguments) -> None:
    """Judge everything, search, write, and show."""
    import signal

    from rollpacker.cli.plan_screen import show
    from rollpacker.cli.screen import output
    from rollpacker.whatif.lengths import length_facts

    question, words = split_words(arguments.words)
    folder = folder_of(question)
    space = space_of(question, words, folder)
    lengths = length_facts(space.bases[space.baseline])
    space = replace(space, varies_rho=not lengths.names_prompts)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends workers and files as Ctrl-C does
    console = output()
    outcomes, num_left_out = _search(space, question)

    from rollpacker.metrics.files import publish_folder, storage_errors

    with storage_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with publish_folder(folder) as temporary:
        _write(temporary, outcomes, lengths, space)
        drawing_problem = _draw(temporary)
    show(console, outcomes, lengths, space, num_left_out=num_left_out)
    files = [name for name in ("plan.parquet", "lengths.parquet", "plan.png", "plan.pdf") if (folder / name).exists()]
    console.print(f"written to {folder}: {', '.join(files)}", soft_wrap=True)
    if drawing_problem:
        console.print(f"no figure: {drawing_problem}", soft_wrap=True, markup=False)


def show_help() -> None:
    """Print what `rollpacker plan` takes."""
    from rollpacker.cli.help import show_plan_help

    show_plan_help()


def _search(space: Space, question: Question) -> tuple[list[Outcome], int]:
    """Run the stages; gives outcomes, and how many runs the time did not allow."""
    import time

    from rollpacker.cli.screen import plan_progress
    from rollpacker.whatif.search import count_trials, search
    from rollpacker.whatif.workers import open_workers

    began = time.monotonic()
    outcomes: list[Outcome] = []
    num_trials = count_trials(space)
    stages = search(space)
    with plan_progress(num_trials, question.num_workers) as progress, open_workers(question.num_workers) as workers:
        stage = next(stages)
        while True:
            progress.stage(STAGE_TITLES[stage.name])
            tasks = [(space.bases[trial.setting.system], trial) for trial in stage.trials]
            found = []
            may_begin = _Allowance(stage.num_needed, began + question.seconds)
            for outcome in workers.outcomes(tasks, may_begin):
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
        import time

        self._num_needed -= 1
        return self._num_needed >= 0 or time.monotonic() < self._deadline_s


def _write(folder: Path, outcomes: Sequence[Outcome], lengths: LengthFacts, space: Space) -> None:
    from rollpacker.metrics.plans import write_plan
    from rollpacker.whatif.advice import speedups_by_trial

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


def _draw(folder: Path) -> str:
    """Have the figure drawn by `analysis.plan` in a process of its own; gives what went wrong."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "analysis.plan", "--plan", str(folder), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own command)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
