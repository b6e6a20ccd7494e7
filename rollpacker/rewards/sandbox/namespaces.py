"""Namespaces of bubblewrap: what programs of responses and isolated environments have in common.

Each has processes, IPC, a host name, a cgroup and, unless it may use this machine's, a network of its own. It has no
capabilities, and ends with the process that started it. What it sees of the file system is the caller's to say.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollpacker.core.errors import UserError
from rollpacker.processes.programs import run_program

_TRIAL_LIMIT_S = 20.0
"""For a sandbox to start and end, on a busy node."""


def namespace_options(*, has_network: bool = False, keeps_user: bool = False) -> list[str]:
    """Give the first words of a command: bubblewrap, and what is separate from this machine."""
    return [
        shutil.which("bwrap") or "bwrap",
        *(() if keeps_user else ("--unshare-user",)),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if has_network else ("--unshare-net",)),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    ]


def is_real_root() -> bool:
    """Whether this user is the machine's root, and not that of a namespace such as Apptainer's --fakeroot."""
    uid_map = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    return os.geteuid() == 0 and uid_map == ["0", "0", "4294967295"]


def start_error(command: Sequence[str], variables: Mapping[str, str]) -> str | None:
    """Run a command that does nothing; give its error message, or None where it ends well."""
    trial = run_program(command, deadline_s=_TRIAL_LIMIT_S, environment=variables)
    if trial.exit_code is None:
        return f"it did not start within {_TRIAL_LIMIT_S:g} s"
    return None if trial.is_success else trial.reason


def bubblewrap_version() -> str:
    """Give the number of the installed one, as it says it."""
    said = run_program(["bwrap", "--version"], deadline_s=_TRIAL_LIMIT_S).output
    return said.strip().rpartition(" ")[2] or "of unknown version"


def require_bubblewrap(setting: str, what: str) -> None:
    """Refuse a machine without the program.

    Args:
        setting: The key that asks for it.
        what: Bubblewrap isolates.

    Raises:
        UserError: It is not in the PATH.
    """
    if shutil.which("bwrap") is None:
        raise UserError(
            f"{setting}=bubblewrap, and there is no program `bwrap` in the PATH.",
            f"bubblewrap isolates {what}. {without_it(setting, what)}",
            "Install the system's package `bubblewrap`, also in the image that runs",
        )


def no_start(setting: str, what: str, failure: str) -> UserError:
    """Make the refusal of a machine where none starts in bubblewrap.

    Args:
        setting: The key that asks for it.
        what: Does not start.
        failure: Why not, in the system's words.
    """
    return UserError(
        f"{setting}=bubblewrap, and {what} do not start here: {failure}.",
        "It takes bubblewrap 0.7 or later, and user namespaces, which some systems and containers forbid. "
        f"{without_it(setting, what)}",
        "Ask for user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
        f"kernel.apparmor_restrict_unprivileged_userns), or {where_trusted(setting, what)}",
    )


def without_it(setting: str, what: str) -> str:
    """Say what holds without bubblewrap."""
    return (
        f"{setting}=rlimits does not isolate {what}: they can read this user's files, use the network and kill the "
        "run's processes."
    )


def where_trusted(setting: str, what: str) -> str:
    """Say what to set, and where, instead of bubblewrap."""
    return f"set {setting}=rlimits where {what} are trusted"
