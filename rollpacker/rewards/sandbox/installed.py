"""Can programs be walled in here? Answered by starting a sandbox as a run does, with a program that does nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from rollpacker.core.errors import UserError
from rollpacker.rewards.process_pool import environment_of_children
from rollpacker.rewards.sandbox.system_calls import MACHINES

if TYPE_CHECKING:
    from rollpacker.config.sections.sandbox import SandboxSection

_START_LIMIT_S = 120.0
"""For an interpreter and a sandbox, from a slow file system on a busy node."""

_GIVEN_UP = (
    "reward.sandbox.isolation=rlimits goes without walls: programs then can read this user's files, use the network "
    "and end the run's processes"
)


def check_sandbox(section: SandboxSection) -> str:
    """Start a sandbox, and say in a few words what it is.

    Raises:
        UserError: It cannot be.
    """
    if section.isolation == "rlimits":
        _try_out(section)
        return "programs are limited, and not walled in: they can read this user's files and use the network"
    if shutil.which("bwrap") is None:
        raise UserError(
            "reward.sandbox.isolation=bubblewrap, and there is no program `bwrap` in the PATH.",
            f"Programs of responses run inside bubblewrap's walls. {_GIVEN_UP}.",
            "Install the system's package `bubblewrap`, also in the image that runs",
        )
    if platform.machine() not in MACHINES:
        raise UserError(
            f"reward.sandbox.isolation=bubblewrap on a machine of kind {platform.machine()}.",
            f"The filter of system calls knows {' and '.join(MACHINES)}. {_GIVEN_UP}.",
            "Run elsewhere, or set reward.sandbox.isolation=rlimits where the programs are trusted",
        )
    _try_out(section)
    return f"bubblewrap {_version()} walls programs in"


def _version() -> str:
    said = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False)  # noqa: S607 by its name
    return said.stdout.strip().rpartition(" ")[2] or "of unknown version"


def _try_out(section: SandboxSection) -> None:
    """Start the keeper that a run starts, and wait until it has tried a sandbox out."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = ["-P", "-m", "rollpacker.rewards.sandbox.keeper", section.bounds_json(), str(os.getpid())]
        with subprocess.Popen(  # noqa: S603 our own interpreter and module
            [sys.executable, *words], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment_of_children()
        ) as keeper:
            theirs.close()
            ours.settimeout(_START_LIMIT_S)
            try:
                said = ours.makefile("rb").readline().decode()
            except TimeoutError:
                said = f'"nothing for {_START_LIMIT_S:.0f} s"'
            finally:
                ours.shutdown(socket.SHUT_RDWR)
                if not said:
                    keeper.kill()
    if "is_ready" not in said:
        complaint = re.sub(r'^\{"failure": "(.*)"\}$', r"\1", said.strip()) or "the keeper ended"
        raise UserError(
            f"reward.sandbox.isolation={section.isolation}, and no sandbox starts here: {complaint}.",
            "It takes bubblewrap 0.7 or later, and user namespaces, which some systems and containers forbid. "
            f"{_GIVEN_UP}.",
            "Ask for user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns), or set reward.sandbox.isolation=rlimits where the programs "
            "are trusted",
        )
