"""Runs a command on a malformed input, in a process of its own, and says what came of it."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.malformed.draws import Draw

LIMIT_S = 5.0
"""Of processor time until a refusal. A command that takes longer hangs as far as a user can tell."""

_WALL_LIMIT_S = 60.0
"""Of a command that waits, on a machine on which others work."""

_SOON_S = 5.0
"""For what ends with a command by itself, such as multiprocessing's tracker, which waits for the end of a pipe."""

_MEMORY_BYTES = 6 << 30

_REFUSED = 2
_USER_ERRORS = (1, _REFUSED)
"""Exit codes: 1 is of what began and failed, and may leave what it had done."""

_ENOUGH_OF_NAME = 100
"""Characters: a message may shorten what it names."""

_JARGON = re.compile(
    r"<class|<function| object at 0x|\[Errno|NoneType|Lexer|mismatched input|Input should|Error resolving|PosixPath"
    r"|\b[A-Z][a-z]+[A-Za-z]*Error\b|pydantic|OmegaConf|ray::|expecting <|\\x1b|Traceback"
)
"""What a library says to a developer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command did."""

    code: int
    said: str
    """On standard output and standard error."""
    faults: tuple[str, ...]
    """What must not be; empty when all is well."""
    unclear: str = ""
    """Why its error is not clear; empty when it is, or when there is none."""


def run_trial(draw: Draw, ground: Path, folder: Path) -> Outcome:
    """Copy the ground, harm it, and run the command there."""
    shutil.copytree(ground, folder)
    draw.change(folder)
    before = _tree_of(folder)
    pid = os.fork()
    if not pid:
        _become_command(draw, folder)
    code, usage, has_ended = _wait(pid)
    left = _end_group(pid)
    said = (folder / "said").read_text(errors="replace")
    (folder / "said").unlink()
    processor_s = usage.ru_utime + usage.ru_stime
    faults = []
    if "Traceback (most recent call last)" in said:
        faults.append("traceback")
    if code not in (0, *_USER_ERRORS):
        faults.append(f"exit code {code}")
    if not has_ended:
        faults.append("does not end")
    if code in _USER_ERRORS and processor_s > LIMIT_S:
        faults.append(f"{processor_s:.1f} s of processor time")
    if left:
        faults.append("left processes")
    if code == _REFUSED and _tree_of(folder) != before:
        faults.append("left files: " + ", ".join(sorted(_tree_of(folder) ^ before))[:200])
    if "\x1b" in said:
        faults.append("raw escape")
    unclear = _why_unclear(draw, said) if code in _USER_ERRORS else ""
    return Outcome(code=code, said=said, faults=tuple(faults), unclear=unclear)


def _become_command(draw: Draw, folder: Path) -> None:
    """In the child: the command, as a shell would start it."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        os.environ |= {"COLUMNS": "100", "HOME": str(folder.parent), "OMP_NUM_THREADS": "1"}
        said = os.open("said", os.O_WRONLY | os.O_CREAT)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, file in ((0, nothing), (1, said), (2, said)):
            os.dup2(file, target)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 a process's own
        from rollpacker.cli.main import main

        code = main(draw.words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        with contextlib.suppress(ValueError, OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(pid: int) -> tuple[int, resource.struct_rusage, bool]:
    """Wait for the child, at most so long: its exit code, what it used, and whether it ended by itself."""
    ends_s = time.monotonic() + _WALL_LIMIT_S
    has_ended = True
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), usage, has_ended
        if time.monotonic() > ends_s and has_ended:
            has_ended = False
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _end_group(pid: int) -> bool:
    """Kill what the child leaves of its process group; tells whether there was anything soon after its end."""
    ends_s = time.monotonic() + _SOON_S
    while time.monotonic() < ends_s:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    return True


def _tree_of(folder: Path) -> set[str]:
    """Every path below a folder, with the size of a file; but for the run's, which may say that it failed."""
    found = set()
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if name.parts[0] == "said" or "__pycache__" in name.parts:
            continue
        is_sized = path.is_file() and not path.is_symlink() and name.parts[0] != "run"
        found.add(f"{name} {path.stat().st_size}" if is_sized else f"{name}")
    return found


def _why_unclear(draw: Draw, said: str) -> str:
    """A clear error names what was wrong, in plain words, and says what to do."""
    if jargon := _JARGON.search(said):
        return f"says {jargon[0]!r}"
    packed = re.sub(r"\s", "", said)
    if not any(re.sub(r"\s", "", name)[:_ENOUGH_OF_NAME] in packed for name in draw.names if name):
        return f"names none of {draw.names}"
    *_, message = re.split(r"^(?:error|failed):", said, maxsplit=1, flags=re.MULTILINE)
    if len([line for line in message.splitlines() if line.strip()]) < 2:
        return "says in one line what was wrong, and not what to do"
    return ""
