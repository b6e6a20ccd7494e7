"""The one composition of machines that a driver talks to.

    Event ──> batching (which requests start and stop) ──Decision──> router (where) ──> Command

Invariant: `handle` either takes a fact in completely or raises and changes nothing; every part judges before any part
changes. A fact that comes late changes nothing and gives no command. The requests that the router holds in flight are
those that the batching machine waits for.

Adding a machine
================

* A machine that reacts to facts of its own (a parallelism planner that counts preemptions, say) becomes one more field:
  its events get cases in `handle`, its commands join the union, its state joins `snapshot`, `restore` and `check`.
* One that refines decisions (a reward budget that puts a deadline on `ScoreResponse`) stands in `_carry_out`, where the
  router stands today.
* One that replaces the batching (dynamic sampling, asynchronous rounds) implements `BatchingMachine` and is chosen in
  `_BATCHING`.

Machines never call each other: the scheduler passes facts and decisions along, in the order in which they stand here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self, assert_never

from rollpacker.core.batching import BatchingMachine, Decision, StartRequests, StopRequests
from rollpacker.core.commands import AcceptGroup, BeginRound, Command, DrawPrompts, EndRound, EndRun, ScoreResponse
from rollpacker.core.errors import CheckpointError, ImpossibleEvent
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    Event,
    PromptsDrawn,
    ResponseAborted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import EngineId
from rollpacker.core.plain_batching import PlainBatching
from rollpacker.core.routing import Router
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.tail_batching import TailBatching

SNAPSHOT_FORMAT: Final = 1
"""Raised by one whenever a machine's snapshot changes its meaning."""

_BATCHING: Final[dict[str, type[BatchingMachine]]] = {"plain": PlainBatching, "tail": TailBatching}


class Scheduler:
    """Decides everything about the rollouts of one run."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._batching = _BATCHING[settings.batching](settings)
        self._router = Router()

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take in one fact and give the orders that follow from it.

        Args:
            event: What happened.
            now: Seconds since the run began.

        Raises:
            ImpossibleEvent: It cannot have happened; nothing was changed.
            EngineFailed: The last engine was lost; nothing was changed.
        """
        match event:
            case ResponseFinished():
                if self._router.has_moved(event.request, event.engine):
                    return ()
                decisions = self._batching.handle(event, now)
                self._router.finish(event.request)
            case RewardComputed():
                decisions = self._batching.handle(event, now)
            case ResponseAborted():
                self._check_abort(event)
                decisions = self._batching.handle(event, now)
            case StepStarted() | PromptsDrawn():
                if not self._router.has_engine:
                    raise ImpossibleEvent(f"{event} came before any engine.", "An engine joins first.")
                decisions = self._batching.handle(event, now)
            case EngineJoined():
                return tuple(self._router.join(event.engine))
            case EngineLost():
                return tuple(self._router.lose(event.engine))
            case _:
                assert_never(event)
        return self._carry_out(decisions)

    def _check_abort(self, event: ResponseAborted) -> None:
        """Refuse the abort of a request that nobody told to stop."""
        is_held = not self._router.has_moved(event.request, event.engine) and self._router.is_in_flight(event.request)
        if is_held:
            raise ImpossibleEvent(f"{event.request} was aborted, which nobody ordered.", "An abort follows its order.")

    def _carry_out(self, decisions: Sequence[Decision]) -> tuple[Command, ...]:
        """Turn decisions into commands: the router says where requests start and stop."""
        commands: list[Command] = []
        for decision in decisions:
            match decision:
                case StartRequests():
                    commands += self._router.launch(decision.requests)
                case StopRequests():
                    commands += self._router.abort(decision.requests)
                case ScoreResponse() | AcceptGroup() | DrawPrompts() | BeginRound() | EndRound() | EndRun():
                    commands.append(decision)
                case _:
                    assert_never(decision)
        return tuple(commands)

    @property
    def engines(self) -> tuple[EngineId, ...]:
        """The engines that it launches on, in joining order."""
        return self._router.engines

    def check(self) -> None:
        """Re-derive all invariants from scratch; costs as much as the state is large.

        Raises:
            InvariantViolated: The state contradicts itself.
        """
        self._batching.check()
        self._router.check(self._batching.running_requests())

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the scheduler; legal between any two events."""
        return {
            "format": SNAPSHOT_FORMAT,
            "kind": self._settings.batching,
            "batching": self._batching.snapshot(),
            "router": self._router.snapshot(),
        }

    @classmethod
    def restore(cls, settings: SchedulerSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild a scheduler that gives the same commands as the one that gave the snapshot.

        A new attempt of a run reports its engines anew: `EngineJoined` under a known name is a restart, and engines
        that did not come back are reported by `EngineLost`.

        Raises:
            CheckpointError: The snapshot is of another format or another kind of batching.
        """
        for key, found, wanted in (
            ("format", snapshot.get("format"), SNAPSHOT_FORMAT),
            ("kind", snapshot.get("kind"), settings.batching),
        ):
            if found != wanted:
                raise CheckpointError(
                    f"The scheduler's snapshot has {key}={found!r}.",
                    f"This run restores {key}={wanted!r}.",
                    "Resume with the configuration and version that wrote the checkpoint, or choose a fresh run.dir.",
                )
        scheduler = cls(settings)
        scheduler._batching = _BATCHING[settings.batching].restore(settings, snapshot["batching"])
        scheduler._router = Router.restore(snapshot["router"])
        return scheduler
