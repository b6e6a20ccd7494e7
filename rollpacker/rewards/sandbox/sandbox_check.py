"""Checks that sandboxes can start on this machine, by starting one as a run does, with an empty program."""

from __future__ import annotations

import platform
from contextlib import closing
from typing import TYPE_CHECKING

from rollpacker.core.errors import UserError
from rollpacker.processes.server_process import ServerProcess
from rollpacker.rewards.sandbox.namespaces import (
    bubblewrap_version,
    no_start,
    require_bubblewrap,
    where_trusted,
    without_it,
)
from rollpacker.rewards.sandbox.system_calls import MACHINES
from rollpacker.rewards.sandbox.worker import SUPERVISOR

if TYPE_CHECKING:
    from rollpacker.config.sections.sandbox import SandboxSection

_SETTING = "reward.sandbox.isolation"
_PROGRAMS = "programs of responses"


def check_sandbox(section: SandboxSection) -> str:
    """Start a sandbox, and describe it in a few words.

    Raises:
        UserError: No sandbox starts here.
    """
    is_isolated = section.isolation == "bubblewrap"
    if is_isolated:
        require_bubblewrap(_SETTING, _PROGRAMS)
    if is_isolated and platform.machine() not in MACHINES:
        raise UserError(
            f"{_SETTING}=bubblewrap on a machine of kind {platform.machine()}.",
            f"The filter of system calls supports {' and '.join(MACHINES)}. {without_it(_SETTING, _PROGRAMS)}",
            f"Run elsewhere, or {where_trusted(_SETTING, _PROGRAMS)}",
        )
    with closing(ServerProcess(SUPERVISOR, [section.bounds_json()], "reward process")) as process:
        failure = process.start_failure()
    if failure is not None and is_isolated:
        raise no_start(_SETTING, _PROGRAMS, failure)
    if failure is not None:
        raise UserError(
            f"{_SETTING}=rlimits, and {_PROGRAMS} do not start here: {failure}.",
            "A process of the reward starts them, with limits and no bubblewrap.",
            "Is there room for processes and memory (`ulimit -a`)?",
        )
    if is_isolated:
        return f"bubblewrap {bubblewrap_version()} isolates programs"
    return "programs have resource limits and are not isolated: they can read this user's files and use the network"
