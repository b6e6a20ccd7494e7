"""Facts that drivers report to the machines, in the past tense. The union `Event` is closed.

A driver reports what happened, in the order in which it learned of it, and nothing else. Late facts are legal: an
abort can lose the race with the last token, and the machines ignore what no longer matters.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJoined:
    """An engine is up and holds the current policy."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLost:
    """An engine died; every request that ran on it is gone."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """The pipeline wants the batch of a training step."""

    step: int
    """From 0, one more than the last."""
    policy_version: int
    """The version that every engine holds now; every trained token of the step must come from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsDrawn:
    """The prompt order answered a `DrawPrompts`."""

    domain: Domain
    prompts: tuple[PromptId, ...]
    """In order. Fewer than asked for only when the domain's data has ended."""
    is_exhausted: bool
    """True when the domain has no further prompt in this run (a limited number of epochs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFinished:
    """An engine generated a response to its end."""

    request: RequestId
    engine: EngineId
    num_tokens: int
    policy_version: int
    """The version that produced its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseAborted:
    """An engine confirmed that it stopped a request early."""

    request: RequestId
    engine: EngineId
    num_tokens: int
    """Tokens generated before the stop, all wasted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardComputed:
    """A finished response has its reward."""

    request: RequestId
    reward: float


Event = EngineJoined | EngineLost | StepStarted | PromptsDrawn | ResponseFinished | ResponseAborted | RewardComputed
