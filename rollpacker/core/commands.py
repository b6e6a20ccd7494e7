"""Orders that the machines give to drivers, in the imperative. The union `Command` is closed.

A driver carries out every command once and in order, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId


class RoundKind(StrEnum):
    """How a round treats its prompts (paper, section 3)."""

    PLAIN = "plain"
    """Every response of every prompt is waited for: the synchronous baseline."""
    SHORT = "short"
    """More prompts and responses than needed race; the slow ones are aborted and their prompts deferred."""
    LONG = "long"
    """Deferred prompts run to their end, without speculation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawPrompts:
    """Take the next prompts of a domain from the prompt order; answered by one `PromptsDrawn`."""

    domain: Domain
    num_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRound:
    """A round starts; its `Launch` commands follow at once."""

    round: int
    step: int
    kind: RoundKind
    num_prompts_launched: int
    num_prompts_needed: int
    """Prompts in the batch; what is launched beyond it is speculation."""
    num_responses_launched: int
    """Per prompt."""
    num_responses_needed: int
    """Per prompt, the GRPO group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Generate one response on an engine."""

    request: RequestId
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Stop a request; answered by `ResponseAborted`, or by `ResponseFinished` if the abort lost the race."""

    request: RequestId
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResponse:
    """Compute the reward of a finished response; answered by `RewardComputed`."""

    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptGroup:
    """A prompt won its place in the batch: its group may be trained from now on."""

    round: int
    prompt: PromptId
    samples: tuple[int, ...]
    """Indices of the accepted samples, ascending; exactly the group size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRound:
    """The batch is complete."""

    round: int
    prompts: tuple[PromptId, ...]
    """The accepted prompts in launch order: the canonical order of the batch, whatever order they finished in."""
    long_queue_length: int
    """Deferred prompts that wait for a long round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    """All data has been trained; there is no further round."""


Command = DrawPrompts | BeginRound | Launch | Abort | ScoreResponse | AcceptGroup | EndRound | EndRun
