"""What happens to a trajectory of several turns; part of the union `core.events.Event`."""

from __future__ import annotations

from dataclasses import dataclass

from rollpacker.core.ids import EngineId, RequestId, VersionSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """An engine generated a turn of a trajectory to its end; in a run with environments, in place of a finish."""

    request: RequestId
    engine: EngineId
    num_tokens: int
    """Of the trajectory so far, what environments wrote included."""
    spans: tuple[VersionSpan, ...]
    """Which versions, or environments, produced them; together they are the trajectory so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentBegan:
    """An environment begins its reset: its process has started. May come late, or not at all before the answer."""

    request: RequestId
    call: int
    """Of the `OpenEnvironment`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStepped:
    """An environment answered; the answer to `OpenEnvironment` and `StepEnvironment`. May come late, or twice."""

    request: RequestId
    call: int
    """Of the order that it answers."""
    num_tokens_left: int
    """That the trajectory may still have after this observation."""
    is_done: bool
    """The environment takes no further turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFailed:
    """An environment raised or died instead of answering. One that hangs says nothing: a timer ends it."""

    request: RequestId
    call: int
    """Of the order that it does not answer."""
    reason: str
    """A word in snake_case."""


EnvironmentEvent = TurnFinished | EnvironmentBegan | EnvironmentStepped | EnvironmentFailed
