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
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rollpacker import __version__
from rollpacker.config.mistakes import raise_interruption
from rollpacker.core.errors import EXIT_INTERRUPTED, ConfigError, InternalError, RollpackerError, WorldError
from rollpacker.runtime.run.streams import keep_writing, open_closed_streams

_ERRORS_OF_PATHS = frozenset({errno.ENAMETOOLONG, errno.ELOOP})
"""Mistakes in a path, not errors of the disk: it is too long, or its links form a circle."""

_SHOWN_OF_PATH = 200
"""Characters."""

_OBJECTS_PER_COLLECTION = 50_000
"""After how many new objects Python looks for garbage. With its own 700, a command spends a fifth of its start on that:
the libraries that it loads make a million objects, and they stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of the command line."""

    name: str
    section: str
    """What somebody wants who needs it."""
    summary: str
    """One line of 80 columns in the overview."""

    @property
    def module(self) -> str:
        """Loaded only when it runs; has `run(arguments: Arguments) -> None` and `HELP: CommandHelp`."""
        return _MODULES.get(self.name, f"rollpacker.cli.{self.name}")

    @property
    def can_sweep(self) -> bool:
        """Whether it takes several points (-m)."""
        return self.name in {"train", "check"}


_MODULES = {
    "plan": "rollpacker.analysis.plan.command",
    "calibrate": "rollpacker.analysis.calibration.command",
    "analysis": "rollpacker.analysis.command",
    "gpu-check": "rollpacker.cli.gpu_check",
}
"""Of the commands whose module is called otherwise, or is not in this package."""

_SECTIONS = {
    "Train": {
        "train": "Train a model by reinforcement learning; -m: over listed values",
        "init": "Write the command that trains a model on this machine",
        "check": "Print what `train` would do with the same words; start nothing",
        "doctor": "Check machine, Slurm and files for what would stop a run",
        "demo": "Compare plain and tail batching on a small model made here",
    },
    "Prepare data and rewards": {
        "data": "Convert published data sets (gsm8k, math500, ...) into prompts",
        "score": "Score given responses with a reward, before you train on it",
    },
    "Look at runs": {
        "jobs": "Show which runs run, wait or failed, their steps, and why",
        "show": "Print prompts, responses and rewards",
        "report": "Write a page: where the time went, and what waited for what",
        "trace": "Write what every actor did, and when, for ui.perfetto.dev",
        "replay": "Decide again by a run's event log, and compare",
    },
    "Use what was trained": {
        "evaluate": "Score a checkpoint, or any model, on held-out prompts; compare",
        "export": "Write a checkpoint's model for transformers and vLLM",
    },
    "Before you ask for GPUs": {
        "plan": "Model what tail batching would save on your lengths and GPUs",
        "profile": "Measure engines, trainer and transfers, for the modelled cluster",
        "gpu-check": "Show on this machine's GPUs what only GPUs can show",
    },
    "Reproduce the paper": {
        "analysis": "Draw tables and figures, model missing runs; compare your own",
        "calibrate": "Fit the modelled cluster to the paper's numbers",
    },
}

COMMANDS = tuple(
    Command(name=name, section=section, summary=summary)
    for section, summaries in _SECTIONS.items()
    for name, summary in summaries.items()
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the process exit code."""
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    open_closed_streams()
    keep_writing("stderr")  # an error has its exit code even where stderr is closed
    print_any_sign()
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    try:
        _dispatch(argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has left (`rollpacker --help | head`)
        _discard_output()
    except Exception as error:  # noqa: BLE001 - the process boundary: an unexpected exception is our bug
        if isinstance(error, OSError):
            _discard_output()
        mistake = as_ours(error)
        _show(mistake)
        return mistake.exit_code
    return 0


def as_ours(error: Exception) -> RollpackerError:
    """What an exception is that ends a process: of ours, of the operating system, or a bug, whose traceback is printed.

    Raises:
        KeyboardInterrupt: Ctrl-C came first, and a library raised its own error in its place.
    """
    if isinstance(error, RollpackerError):
        return error
    if isinstance(error, OSError):
        return _of_system(error)
    raise_interruption(error)
    import traceback

    traceback.print_exception(error)
    return InternalError(f"{type(error).__name__}: {error}", "", "Please report it with the traceback above.")


def print_any_sign() -> None:
    """Print `?` for a sign that the encoding of the standard output lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _of_system(error: OSError) -> RollpackerError:
    what = (
        f"{str(error.filename)[:_SHOWN_OF_PATH]}: {error.strerror}" if error.filename else error.strerror or str(error)
    )
    if error.errno in _ERRORS_OF_PATHS:
        return ConfigError(f"{what}.", "A path that this file system can have.", "Correct the path.")
    return WorldError(f"The operating system reports: {what}.", "", "Check the disk, its quota and permissions.")


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
    named = {command.name: command for command in COMMANDS}
    if name in named:
        return named[name]
    from rollpacker.config.keys import nearest

    close = nearest(name, named)
    raise ConfigError(
        f"`{name}` is not a command.",
        f"The commands are {', '.join(named)}.",
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
