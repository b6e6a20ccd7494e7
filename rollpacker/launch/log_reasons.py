"""Finds in logs why a run ended: the last line that looks like a reason.

Only the ends are read, because logs of long runs are long. In this order: an error as our command line prints it, the
last line of a Python traceback, an error of Slurm's own processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from rollpacker.paths import open_to_read

_TAIL_BYTES = 64 << 10
"""A traceback through Ray has some 10 kB, and comes with the tails of its nodes' logs."""

_LONGEST_REASON = 300
"""Characters; an exception may print a whole tensor."""

_OURS = re.compile(r"^(?:error|failed|a bug in rollpacker|.+ failed):$")
"""The first line of an error outside a terminal; the next line is the problem."""

_HEADING = re.compile(r"^\d+ mistakes:$")
"""Of an error that lists several; the first of them is more specific."""

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Failed|Exceeded|Exit|Interrupt|Unavailable|Violated|Died))"
    r"(?:: .*)?$"
)

_SLURM = (re.compile(r"^slurmstepd\S*: error: .+"), re.compile(r"^srun: error: .+"))
"""The error of a node is more specific than the exit code that srun reports after it."""

_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def reason_in_logs(logs: Iterable[Path]) -> str:
    """Find the reason in the first of the logs that has one; empty when none has."""
    for find in (_our_error, _exception, _slurms_complaint):
        for log in logs:
            if found := find(last_lines(log) or []):
                return found if len(found) <= _LONGEST_REASON else f"{found[:_LONGEST_REASON]} ..."
    return ""


def _our_error(lines: list[str]) -> str:
    for number in range(len(lines) - 2, -1, -1):
        if _OURS.match(lines[number]):
            found = [line.strip() for line in lines[number + 1 : number + 3]]
            return found[-1] if _HEADING.match(found[0]) else found[0]
    return ""


def _exception(lines: list[str]) -> str:
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), "")


def _slurms_complaint(lines: list[str]) -> str:
    return next((line for pattern in _SLURM for line in reversed(lines) if pattern.match(line)), "")


def last_lines(log: Path) -> list[str] | None:
    """The lines at the end of a log, without codes for terminals; None where there is no log."""
    try:
        with open_to_read(log) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    return [_TERMINAL_CODES.sub("", line).rstrip() for line in text.splitlines()]
