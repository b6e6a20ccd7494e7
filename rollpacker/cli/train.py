"""`rollpacker train`: judges the run, or every point of a multirun, and only then starts the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import Departed, RollpackerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import DictConfig

    from rollpacker.cli.arguments import Arguments
    from rollpacker.config.schema import RunConfig


def run(arguments: Arguments) -> None:
    """Train; raises the first failure of a multirun after its other points have ended."""
    if arguments.is_multirun:
        _run_sweep(arguments.words)
    else:
        from rollpacker.config.compose import compose
        from rollpacker.launch import ranks

        ranks.train(compose(arguments.words), _judge)


def run_point(composed: DictConfig) -> None:
    """Train one point of a multirun; Hydra's launcher calls it, perhaps on another machine."""
    from rollpacker.cli.screen import show_error
    from rollpacker.config.multirun import config_of_point
    from rollpacker.launch import ranks

    config = config_of_point(composed)
    try:
        ranks.train(config, _judge)
    except RollpackerError as error:
        show_error(error, title=f"{config.run.dir} {'left its machines' if isinstance(error, Departed) else 'failed'}")
        raise


def show_help() -> None:
    """Print what `rollpacker train` takes."""
    from rollpacker.cli.help import show_train_help

    show_train_help("train")


def _judge(config: RunConfig) -> None:
    from rollpacker.cli.prospects import prospect_of
    from rollpacker.runtime.preflight import judge

    judge(config, prospect_of)


def _run_sweep(overrides: Sequence[str]) -> None:
    from rollpacker.cli.prospects import prospect_of
    from rollpacker.config.multirun import compose_sweep, run_sweep
    from rollpacker.launch.judge import judge_sweep

    sweep = compose_sweep(overrides)
    judge_sweep(sweep, prospect_of)
    if sweep.launcher is not None and sweep.launcher.dry_run:
        from rollpacker.cli.screen import output
        from rollpacker.launch.dry_run import dry_run
        from rollpacker.launch.points import points_of

        output().print(dry_run(points_of(sweep), sweep.launcher, sweep.folder), markup=False, soft_wrap=True)
        return
    run_sweep(sweep, run_point)
