"""Makes the runs that exhibits lack: models them, or trains them on this machine.

Each experiment is run once, however many exhibits need it; a run that was stopped is begun again by the next call. For
one exhibit, the equivalent command is printed first.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.status import Status

from rollpacker.analysis.exhibit import TINY_SETUPS, Exhibit
from rollpacker.analysis.processes import open_processes
from rollpacker.analysis.progress import shown_progress
from rollpacker.analysis.sweeps import Asked, make_tiny_inputs, points_of, train_here, unfinished, words_of
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import ConfigError, RollpackerError
from rollpacker.demo.inputs import Inputs
from rollpacker.terminal import Terminal


def make_missing_runs(
    exhibits: Sequence[Exhibit],
    folder: Path,
    *,
    backend: str,
    scale: str | None,
    num_seeds: int,
    num_jobs: int,
    console: Terminal,
) -> dict[str, list[str]]:
    """Run what is missing of every experiment, with the progress on `console`.

    Args:
        exhibits: At least one.
        folder: Of all runs.
        backend: `sim` models, `ray` trains for real.
        scale: Of the runs; None: each exhibit's own.
        num_seeds: Of each run.
        num_jobs: Modelled runs at a time.
        console: That people read.

    Returns:
        By experiment, a sentence for each run of it that failed.

    Raises:
        ConfigError: None of the exhibits can be brought by this backend.
    """
    by_experiment: dict[str, Asked] = {}
    for exhibit in exhibits:
        setup = scale or exhibit.setups[0]
        if (setup in TINY_SETUPS) != (backend == "ray"):
            console.print(f"{exhibit.name}: {_why_not(exhibit, setup)}", style="dim", soft_wrap=True)
            continue
        asked = Asked(folder=folder, backend=backend, setup=setup, num_seeds=num_seeds)
        by_experiment |= dict.fromkeys(exhibit.experiments, asked)
    if not by_experiment:
        raise ConfigError(
            f"backend={backend} makes no run of {', '.join(exhibit.name for exhibit in exhibits)} at this scale.",
            f"`sim` models the scales of a cluster, `ray` trains those of this machine, {' and '.join(TINY_SETUPS)}.",
            "See `rollpacker analysis list` for the scales of each.",
        )
    if len(exhibits) == 1:
        for experiment, asked in by_experiment.items():
            line = f"rollpacker train {shlex.join(words_of(experiment, asked))}"
            console.print(line, style="dim", soft_wrap=True)
    if backend == "ray":
        return _train(by_experiment, console)
    return _model(by_experiment, num_jobs, console)


def _why_not(exhibit: Exhibit, setup: str) -> str:
    if setup in TINY_SETUPS:
        scale = "" if setup == exhibit.setups[0] else f" scale={setup}"
        return f"no model learns; for real runs: rollpacker analysis {exhibit.name}{scale} backend=ray"
    return f"runs at scale {setup} are for a cluster (hydra/launcher=slurm) or backend=sim"


def _model(by_experiment: dict[str, Asked], num_jobs: int, console: Terminal) -> dict[str, list[str]]:
    with Status("looking which runs are missing ...", console=console):
        to_do = {name: unfinished(points_of(name, asked)) for name, asked in by_experiment.items()}
    configs: dict[Path, RunConfig] = {config.run.dir: config for points in to_do.values() for config in points}
    if not configs:
        console.print("Every run is there.", style="dim")
        return {}
    folders = {name: {config.run.dir for config in points} for name, points in to_do.items()}
    failures: dict[str, list[str]] = {}
    with shown_progress(folders, console) as on_run, open_processes(num_jobs) as processes:
        for config, failure in processes.results(_model_one, configs.values()):
            for name in [name for name, own in folders.items() if failure and config.run.dir in own]:
                failures.setdefault(name, []).append(f"{config.run.dir} failed: {failure}")
            on_run(config.run.dir, bool(failure))
    return failures


def _model_one(config: RunConfig) -> str:
    """Model a run; gives what it failed of, which does not keep the others from being modelled."""
    from rollpacker import pipeline
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.runtime.run.preflight import validate

    try:
        validate(config, run_facts_of)
        pipeline.run(config)
    except RollpackerError as error:
        return str(error)
    return ""


def _train(by_experiment: dict[str, Asked], console: Terminal) -> dict[str, list[str]]:
    failures = {}
    for experiment, asked in by_experiment.items():
        inputs = Inputs(folder=asked.folder.parent / "inputs" / asked.setup, is_mixed=asked.setup == "tiny")

        def say(line: str) -> None:
            console.print(f"  {line}", style="dim", soft_wrap=True)

        make_tiny_inputs(inputs, say)
        try:
            train_here(experiment, asked, inputs, say)
        except RollpackerError as error:
            failures[experiment] = [f"{experiment}: {error}"]
    return failures
