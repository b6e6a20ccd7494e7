"""`rollpacker train`: validates the run, or every point of a multirun, before it starts the first one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rollpacker.cli.command_help import CONFIG_FILE, INPUTS, CommandHelp
from rollpacker.core.errors import ConfigError, Interrupted, Preempted, RollpackerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import DictConfig

    from rollpacker.cli.arguments import Arguments
    from rollpacker.config.schema import RunConfig


HELP = CommandHelp(
    purpose="Train a model by reinforcement learning. Everything is validated before anything starts.",
    usage="[-m | config=FILE] [key=value | group=option] ...",
    arguments=(CONFIG_FILE,),
    examples=(
        f"rollpacker train {INPUTS} \\\n    reward=math system=rollpacker run.dir=runs/x",
        f"rollpacker train -m {INPUTS} \\\n    system=verl,rollpacker run.seed=0,1",
        f"rollpacker train -m {INPUTS} \\\n    hydra/launcher=slurm cluster=slurm cluster.cpus_per_node=8 run.seed=0,1",
        "rollpacker train config=runs/x/config.yaml run.dir=runs/y run.seed=1",
    ),
    lists_keys_of="train",
)


def run(arguments: Arguments) -> None:
    """Train; raises the first failure of a multirun after its other points have ended."""
    _refuse_torchrun()
    _ignore_closed_output()
    if arguments.is_multirun:
        _run_sweep(arguments.words)
    else:
        from rollpacker.config.compose import compose
        from rollpacker.data.hub import with_pinned_names
        from rollpacker.launch import ranks
        from rollpacker.runtime.placing.automatic import complete

        config = compose(arguments.words, complete)
        if _can_download() and config.model.hub_name is not None and config.model.hub_name.snapshot is None:
            with_pinned_names(config, can_download=True)
            config = compose(arguments.words, complete)  # its sizes are known now: what it takes of the GPUs follows
        ranks.train(config, validate_run)


def run_point(composed: DictConfig) -> None:
    """Train one point of a multirun; Hydra's launcher calls it, on this machine or on a node."""
    from rollpacker.cli.screen import show_error
    from rollpacker.config.multirun import config_of_point
    from rollpacker.launch import ranks
    from rollpacker.launch.launcher import how_to_go_on_with_points
    from rollpacker.runtime.placing.automatic import complete

    _ignore_closed_output()
    config = config_of_point(composed, complete)
    try:
        ranks.train(config, validate_run)
    except Interrupted as error:
        error.remedy = how_to_go_on_with_points(composed)
        show_error(error, title=f"{config.run.dir} was interrupted")
        raise SystemExit(error.exit_code) from error  # no other point of the multirun starts
    except RollpackerError as error:
        show_error(error, title=f"{config.run.dir} {'was preempted' if isinstance(error, Preempted) else 'failed'}")
        raise


def _refuse_torchrun() -> None:
    """Refuse to be one of several copies: torchrun, and `accelerate launch` by it, start one for each GPU."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError(
            "torchrun started this process: TORCHELASTIC_RUN_ID is set.",
            "One command starts a run, on all GPUs of a machine; it starts engines and trainer itself.",
            "Write rollpacker train ... without torchrun; on several nodes, as a Slurm job (cluster=slurm).",
        )


def _can_download() -> bool:
    """Nodes of a cluster may have no network, and a job no time for it."""
    return "SLURM_JOB_ID" not in os.environ


def _ignore_closed_output() -> None:
    """Continue when the reader of the output has closed it."""
    from rollpacker.runtime.run.streams import keep_writing

    keep_writing("stdout")
    keep_writing("stderr")


def validate_run(config: RunConfig) -> None:
    """Refuse a run that is not legal here, and print its notes."""
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.cli.screen import show_notes
    from rollpacker.runtime.run.preflight import validate

    show_notes(validate(config, run_facts_of).notes)


def _run_sweep(overrides: Sequence[str]) -> None:
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.cli.screen import show_notes, tell_points
    from rollpacker.config.multirun import compose_sweep, notes_of_points, run_sweep
    from rollpacker.data.hub import with_pinned_names
    from rollpacker.launch.validation import validate_sweep
    from rollpacker.metrics.files import make_private_folder, storage_errors
    from rollpacker.runtime.placing.automatic import complete_point

    sweep = compose_sweep(overrides, tell_points, complete_point)
    pinned = sweep.with_configs(lambda config: with_pinned_names(config, can_download=_can_download()))
    resolved_runs = validate_sweep(pinned, run_facts_of)
    if sweep.launcher is not None and sweep.launcher.is_for_slurm:  # a run that starts here prints its own
        show_notes(notes_of_points([resolved.notes for resolved in resolved_runs]))
    if sweep.launcher is not None and sweep.launcher.dry_run:
        from rollpacker.cli.screen import output
        from rollpacker.launch.dry_run import dry_run
        from rollpacker.launch.points import points_of

        output().print(dry_run(points_of(sweep), sweep.launcher, sweep.folder), soft_wrap=True)
        return
    make_private_folder(sweep.folder)
    with storage_errors(record := sweep.folder / "multirun.yaml"):  # Hydra's, with the values of cluster.environment
        record.unlink(missing_ok=True)
        record.touch(mode=0o600)
    run_sweep(sweep, run_point)
