"""What answers the turns of a policy: environments, one for each trajectory that is under way.

An observation is a text, which becomes a message of the user; or chat messages, such as results of tools; or tokens,
where what made them has its own way to write a conversation. An empty list is nothing at all; where the environment
speaks first, the policy begins to answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rollpacker.core.environment_events import EnvironmentBegan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.rollout import FinishReason, Prompt

Observation = str | list[dict[str, Any]] | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReset:
    """What an environment begins with."""

    seed: int
    """31 bits; the same for all trajectories of a prompt."""
    options: Mapping[str, Any]
    """The prompt's line: its other fields, and its `ground_truth` where that is an answer."""
    messages: Sequence[Mapping[str, Any]] = ()
    """Of the prompt."""
    text: str | None = None
    """Of a prompt that goes through no chat template."""
    prompt_ids: Sequence[int] = ()
    """The prompt as engines get it."""
    max_tokens: int = 0
    """Of the trajectory, with what its environment writes."""
    sampling_params: Mapping[str, float] = field(default_factory=dict)
    """With which every turn is sampled: temperature, top_p, top_k."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTurn:
    """What a policy wrote since its environment spoke last."""

    text: str
    spelled: str
    """The text with its special tokens: some models write calls of tools with them."""
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """One per token."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentAnswer:
    """What came of a reset or a step."""

    request: RequestId
    call: int
    """As it was asked."""
    observation: Observation = ""
    reward: float = 0.0
    """Of this step."""
    is_terminated: bool = False
    is_truncated: bool = False
    """The environment takes no further turn, but its task was not ended."""
    failure: str | None = None
    """Why there is no answer, as a word in snake_case; None where there is one."""
    problem: str = ""
    """The failure in words."""


EnvironmentNews = EnvironmentBegan | EnvironmentAnswer
"""A reset that waits for a process is told of when it begins; one that does not wait may be told of, too."""


class EnvironmentService(Protocol):
    """Runs environments. No call waits: each is answered by `collect`, but for those of an environment that was closed.

    At most one call of an environment is under way.
    """

    def reset(self, request: RequestId, call: int, start: EnvironmentReset) -> None: ...

    def step(self, request: RequestId, call: int, turn: EnvironmentTurn) -> None:
        """Give an environment a turn; one that is not open fails."""

    def end(self, request: RequestId, *, has_hung: bool = False) -> None:
        """Let go of an environment, whatever it does; one that is not open is ignored.

        Args:
            request: Its trajectory.
            has_hung: Its call has taken longer than it may.
        """

    async def collect(self) -> Sequence[EnvironmentNews]:
        """Wait until at least one answer is there, or a reset begins, and take all that came.

        Raises:
            EngineFailed: No environment can be started.
        """

    async def close(self) -> None:
        """End all environments."""


class TurnTexts(Protocol):
    """Turns a policy's turns into text, and observations into tokens that follow them."""

    def action(self, turn: Sequence[int]) -> str:
        """The text of a turn, as environments read it."""

    def spelled(self, turn: Sequence[int]) -> str:
        """The text of a turn with its special tokens."""

    def observation(self, prompt: Prompt, observation: Observation, turn: Sequence[int]) -> Sequence[int]:
        """The tokens of an observation; `turn` has those that it follows, empty at the beginning.

        Raises:
            UserError: The chat template does not take it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentParts:
    """The environments of a run."""

    service: EnvironmentService
    texts: TurnTexts
    gives_rewards: bool = True
    """Else the reward scores what a policy wrote last."""
    longest_call_s: float = 0.0
    """How long nothing may be heard of one before it begins again."""
