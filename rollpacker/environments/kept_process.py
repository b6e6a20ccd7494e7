"""Runs a command that ends with whoever started this process, and with all that it started.

Run as `python -m rollpacker.environments.kept_process COMMAND... PARENT_PID`; the standard input is the command's.
"""

from __future__ import annotations

import os
import signal
import sys

from rollpacker.processes.lifetimes import fork_under_keeper


def main(words: list[str]) -> None:
    """Become the command's keeper, and its child the command."""
    *command, parent_pid = words
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    fork_under_keeper(int(parent_pid))
    os.execvp(command[0], command)  # noqa: S606 composed by `rollpacker.environments.isolation`


if __name__ == "__main__":
    main(sys.argv[1:])
