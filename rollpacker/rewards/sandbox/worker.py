"""The reward worker of the sandbox: a pool of supervisors, one program at a time each.

Invariant: each request comes back from `collect` exactly once, unless it was forgotten. A forgotten program is
killed, and its verdict dropped. Only texts of responses wait in the queue; test cases are read when a slot is free, so
the pool's memory does not grow with the queue.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import math
import os
from typing import TYPE_CHECKING, Any

from rollpacker.core.events import CaseRun
from rollpacker.data.test_cases import load_test_cases
from rollpacker.processes.server_process import ProcessDied, ServerProcess
from rollpacker.protocols.references import AssertCase, CallCase, CodeReference, StdinCase
from rollpacker.protocols.rollout import Verdict
from rollpacker.rewards.sandbox.program import find_program, is_cut_off
from rollpacker.rewards.scores import CHECKER_CRASHED, TRUNCATED, Score, verdict_of
from rollpacker.rewards.worker import PooledRewardWorker

if TYPE_CHECKING:
    from rollpacker.config.sections.sandbox import SandboxSection
    from rollpacker.protocols.references import TestCase
    from rollpacker.protocols.reward import ScoringRequest

SUPERVISOR = "rollpacker.rewards.sandbox.supervisor"
"""The module that the processes run."""

NO_CODE = Score(0.0, "no_code")
"""There is no program in the response."""

_FORGOTTEN = Score(0.0, "stopped")
"""As a supervisor says that it stopped a program; no one gets it."""

_MAX_ATTEMPTS = 2
"""After a supervisor died with a program, another one runs it; its second death is the program's fault."""

_WALL_FACTOR, _WALL_GRACE_S = 20.0, 600.0
"""Limit of its response: twice what it allows each case, and time to start on a busy node."""

_CACHED_PROMPTS = 32
"""Whose test cases stay in memory: responses of a prompt come together."""


class SandboxRewardWorker(PooledRewardWorker):
    """Runs programs in sandboxes."""

    def __init__(self, section: SandboxSection) -> None:
        """Start the supervisors at once; they test a sandbox while the caller goes on."""
        super().__init__(
            [ServerProcess(SUPERVISOR, [section.bounds_json()], "reward process") for _ in range(pool_size(section))]
        )
        self._section = section
        self._busy: set[ServerProcess] = set()
        self._load = functools.lru_cache(maxsize=_CACHED_PROMPTS)(load_test_cases)

    async def forget(self) -> None:
        """Empty the queue, and kill running programs."""
        await super().forget()
        for supervisor in self._busy:
            supervisor.send({"stop": True})

    async def _run(self, process: ServerProcess, request: ScoringRequest) -> Verdict:
        program = find_program(request.response_text)
        if request.is_truncated and is_cut_off(request.response_text):
            return verdict_of(request, TRUNCATED)
        if program is None:
            return verdict_of(request, NO_CODE)
        reference = request.reference
        assert isinstance(reference, CodeReference), reference  # checked before the run began
        num_forgotten = self._num_forgotten
        cases = await asyncio.to_thread(self._load, reference)
        limits_s = request.case_limits_s or (self._section.max_case_s,)
        job = {
            "source": program,
            "entry_point": reference.entry_point,
            "has_prelude": any(isinstance(case, CallCase) for case in cases),
            "cases": [_as_json(case) for case in cases],
            "limits_s": limits_s,
        }
        line = await asyncio.to_thread(json.dumps, job)
        grace_s = _WALL_GRACE_S + _WALL_FACTOR * math.fsum(
            limits_s[min(index, len(limits_s) - 1)] for index in range(len(cases))
        )
        for _ in range(_MAX_ATTEMPTS):
            await process.ready()
            if num_forgotten != self._num_forgotten:
                return verdict_of(request, _FORGOTTEN)  # the supervisor has nothing yet that `forget` could stop
            self._busy.add(process)
            try:
                response = await process.request(line, grace_s)
            except ProcessDied:
                continue
            finally:
                self._busy.discard(process)
            return _case_verdict(request, response)
        return verdict_of(request, CHECKER_CRASHED)


def pool_size(section: SandboxSection) -> int:
    """Programs at the same time: as many as cores, so that they do not wait for each other."""
    return section.num_workers or len(os.sched_getaffinity(0))


def _as_json(case: TestCase) -> dict[str, Any]:
    limits = dataclasses.asdict(case.limits)
    own: dict[str, Any] = {"time_limit_s": limits["time_s"], "memory_limit_mb": limits["memory_mb"]}
    match case:
        case StdinCase():
            return own | {"kind": "stdin", "input": case.input, "output": case.output}
        case CallCase():
            return own | {"kind": "call", "args": case.args, "accepted": case.accepted}
        case AssertCase():
            return own | {"kind": "assert", "source": case.source}


def _case_verdict(request: ScoringRequest, response: dict[str, Any]) -> Verdict:
    reason = response["reason"]
    return Verdict(
        request=request.request,
        reward=float(reason == "correct"),
        reason=reason,
        time_s=response["time_s"],
        case_runs=tuple(CaseRun(*run) for run in response["case_runs"]),
    )
