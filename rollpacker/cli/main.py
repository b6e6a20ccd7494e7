"""The entry point: finds the command, runs it, and turns its result into an exit code.

    0     done
    1     the environment failed: a file, a process, a GPU, Slurm; or a command found what it checks for
    2     a mistake of the user: nothing was started
    70    a bug in RollPacker
    75    a run was preempted and can be resumed (EX_TEMPFAIL)
    130   interrupted by Ctrl-C; 143 by SIGTERM and 129 by SIGHUP

This is the process boundary: the only place that catches every exception.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rollpacker import __version__
from rollpacker.core.errors import EXIT_INTERRUPTED, ConfigError, InternalError, RollpackerError, WorldError
from rollpacker.runtime.run.streams import keep_writing, open_closed_streams

_ERRORS_OF_PATHS = frozenset({errno.ENAMETOOLONG, errno.ELOOP})
"""Mistakes in a path, not errors of the disk: it is too long, or its links form a circle."""

_SHOWN_OF_PATH = 200
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One verb of the command line. Its module is loaded only when it runs."""

    name: str
    summary: str
    module: str
    """Has `run(arguments: Arguments) -> None` and `HELP: CommandHelp`."""
    can_sweep: bool


COMMANDS = (
    Command(
        name="train",
        summary="Train a model by reinforcement learning, once or once per value of a sweep (-m).",
        module="rollpacker.cli.train",
        can_sweep=True,
    ),
    Command(
        name="check",
        summary="Print what `train` would do with the same arguments, and start nothing.",
        module="rollpacker.cli.check",
        can_sweep=True,
    ),
    Command(
        name="jobs",
        summary="Show which runs run, wait, failed or were requeued, their steps, and why they stopped.",
        module="rollpacker.cli.jobs",
        can_sweep=False,
    ),
    Command(
        name="doctor",
        summary="Check this machine, its Slurm and its files for what would stop a run, with a remedy for each.",
        module="rollpacker.cli.doctor",
        can_sweep=False,
    ),
    Command(
        name="plan",
        summary="Model what tail batching would save on your lengths, model and GPUs, before you ask for them.",
        module="rollpacker.analysis.plan.command",
        can_sweep=False,
    ),
    Command(
        name="profile",
        summary="Measure this machine's engines, trainer and transfers, for the modelled cluster.",
        module="rollpacker.cli.profile",
        can_sweep=False,
    ),
    Command(
        name="calibrate",
        summary="Fit the modelled cluster to the paper's numbers, and say how far off each one still is.",
        module="rollpacker.analysis.calibration.command",
        can_sweep=False,
    ),
    Command(
        name="score",
        summary="Score given responses with a reward, to try it on your data before you train on it.",
        module="rollpacker.cli.score",
        can_sweep=False,
    ),
    Command(
        name="replay",
        summary="Feed a run's event log into fresh schedulers and verify that they decide the same.",
        module="rollpacker.cli.replay",
        can_sweep=False,
    ),
    Command(
        name="report",
        summary="Write one HTML page about a run: where the time went, and what waited for what.",
        module="rollpacker.cli.report",
        can_sweep=False,
    ),
    Command(
        name="trace",
        summary="Write what every actor of a run did, and when, as a trace for ui.perfetto.dev.",
        module="rollpacker.cli.trace",
        can_sweep=False,
    ),
    Command(
        name="analysis",
        summary="Draw the paper's tables and figures from runs, and model the runs that are missing.",
        module="rollpacker.analysis.command",
        can_sweep=False,
    ),
    Command(
        name="demo",
        summary="Train a small model on this machine under plain and tail batching, and compare the two.",
        module="rollpacker.cli.demo",
        can_sweep=False,
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the process exit code."""
    open_closed_streams()
    keep_writing("stderr")  # an error has its exit code even where stderr is closed
    try:
        _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except RollpackerError as error:
        _show(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left (`rollpacker --help | head`)
        _discard_output()
        return 0
    except OSError as error:
        _discard_output()
        what = (
            f"{str(error.filename)[:_SHOWN_OF_PATH]}: {error.strerror}"
            if error.filename
            else error.strerror or str(error)
        )
        mistake = (
            ConfigError(f"{what}.", "A path that this file system can have.", "Correct the path.")
            if error.errno in _ERRORS_OF_PATHS
            else WorldError(f"The operating system reports: {what}.", "", "Check the disk, its quota and permissions.")
        )
        _show(mistake)
        return mistake.exit_code
    except Exception as error:  # noqa: BLE001 - the process boundary: an unexpected exception is our bug
        import traceback

        traceback.print_exc()
        _show(InternalError(f"{type(error).__name__}: {error}", "", "Please report it with the traceback above."))
        return InternalError.exit_code
    return 0


def _discard_output() -> None:
    """Discard what could not be written; Python would try again at exit, and print an error."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(argv: Sequence[str]) -> None:
    name, *rest = argv or ["--help"]
    if name in {"-h", "--help", "help"}:
        from rollpacker.cli.help import show_help

        show_help(COMMANDS, rest)
    elif name in {"-V", "--version", "version"}:
        print(f"rollpacker {__version__}")
    else:
        _run_command(_find(name), rest)


def _find(name: str) -> Command:
    for command in COMMANDS:
        if command.name == name:
            return command
    from rollpacker.config.keys import nearest

    names = [command.name for command in COMMANDS]
    close = nearest(name, names)
    raise ConfigError(
        f"`{name}` is not a command.",
        f"The commands are {', '.join(names)}.",
        f"Write rollpacker {close[0]} ..." if close else "`rollpacker --help` says what each does.",
    )


def _run_command(command: Command, argv: Sequence[str]) -> None:
    from rollpacker.cli.arguments import parse_arguments

    module = importlib.import_module(command.module)
    arguments = parse_arguments(command.name, argv, module.HELP, can_sweep=command.can_sweep)
    if arguments.is_help:
        from rollpacker.cli.help import show_command

        show_command(command, arguments.words, COMMANDS)
    else:
        module.run(arguments)


def _show(error: RollpackerError) -> None:
    from rollpacker.cli.screen import show_error

    show_error(error)
