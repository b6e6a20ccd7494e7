"""What every batching machine is: the events that it takes and the decisions that it gives.

A batching machine decides *which* requests start and stop; the router decides *where*. So a decision names no
engine. The scheduler turns `StartRequests` into `Launch` and `StopRequests` into `Abort`; every other decision is a
command already. A new machine is registered in `rollpacker.core.batchings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

from rollpacker.core.commands import (
    AcceptGroup,
    BeginRound,
    DeferPrompts,
    DrawPrompts,
    DropPrompt,
    EndRound,
    EndRun,
    FailRun,
    RoundKind,
    ScoreResponse,
)
from rollpacker.core.environment_events import EnvironmentEvent
from rollpacker.core.events import (
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import RequestId
from rollpacker.core.settings import SchedulerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A trajectory will never finish: its environment has failed too often. Told by `core.environments`."""

    request: RequestId


BatchingEvent = (
    StepStarted
    | PromptsDrawn
    | ResponseFinished
    | ResponseAborted
    | ResponseEvicted
    | RewardComputed
    | EnvironmentEvent
    | GivenUp
)
"""Aborts, evictions and events of environments are checked, and start and stop nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequests:
    """Generate these responses, wherever there is room."""

    requests: tuple[RequestId, ...]
    """In launch order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequests:
    """Stop these responses, wherever they run."""

    requests: tuple[RequestId, ...]
    """All of them still running, in launch order of their prompts."""


Decision = (
    DrawPrompts
    | BeginRound
    | StartRequests
    | StopRequests
    | ScoreResponse
    | AcceptGroup
    | DeferPrompts
    | DropPrompt
    | EndRound
    | FailRun
    | EndRun
)


class BatchingMachine(Protocol):
    """Packs prompts into rounds."""

    def __init__(self, settings: SchedulerSettings) -> None: ...

    def handle(self, event: BatchingEvent) -> tuple[Decision, ...]:
        """Take in one fact.

        Raises:
            ImpossibleEvent: It cannot have happened; nothing was changed.
        """

    def next_kind(self) -> RoundKind:
        """Tell, between two rounds, what the next one will be.

        A draw that meets the end of the data turns a short round into a long one; that is not known before.
        """

    def running_requests(self) -> list[RequestId]:
        """List what was started and has neither finished nor been stopped."""

    def check(self) -> None:
        """Re-derive the machine's invariants from scratch.

        Raises:
            InvariantViolated: The state contradicts itself.
        """

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""

    @classmethod
    def restore(cls, settings: SchedulerSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
