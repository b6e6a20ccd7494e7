"""Can programs of responses be walled in on this machine? Answered by starting a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.sandbox import SandboxSection
from rollpacker.core.errors import UserError
from rollpacker.launch.doctor.findings import Finding, fine, problem_of, warning
from rollpacker.rewards.sandbox.installed import check_sandbox

_SUBJECT = "code sandbox"


def check_walls(reward: RewardSection, try_out: Callable[[SandboxSection], str] = check_sandbox) -> Finding:
    """Judge what the reward's sandbox would be; a run that uses none may do without."""
    try:
        said = try_out(reward.sandbox)
    except UserError as error:
        found = problem_of(_SUBJECT, error)
        return found if "sandbox" in reward.names else replace(found, level="warning")
    if reward.sandbox.isolation == "rlimits":
        return warning(_SUBJECT, said, "Set reward.sandbox.isolation=bubblewrap, unless all programs are trusted.")
    return fine(_SUBJECT, said)
