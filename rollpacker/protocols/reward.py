"""Services that score responses.

One protocol for two things to score, because the driver cannot decode 30 million tokens itself: it hands tokens to a
`RewardService`, which decodes them where it runs and passes text to a `RewardWorker`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollpacker.core.ids import Domain, RequestId
    from rollpacker.protocols.references import Reference
    from rollpacker.protocols.rollout import Prompt, TokenIds, Verdict

LARGEST_REWARD = 1e9
"""Its square is finite in float32, and so are advantages."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResponseToScore:
    """One finished response, as the engine left it."""

    request: RequestId
    prompt: Prompt
    token_ids: TokenIds
    is_truncated: bool
    """True when the response ended at the length limit."""
    case_limits_s: tuple[float, ...] = ()
    """How long each test case may run; the last one holds for all further cases. Empty: the reward's own limit."""


class ColocatedJudges(Protocol):
    """LLM judges that share GPUs with the trainer."""

    @property
    def colocated(self) -> Sequence[str]:
        """Names of the live ones."""

    async def sleep(self) -> None:
        """Free the GPUs for the trainer once the current batch is scored; later requests wait."""

    async def wake(self) -> None:
        """Take them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    """One response to score, as text."""

    request: RequestId
    domain: Domain
    prompt_text: str
    """As the model saw it, chat template applied; for an LLM judge the messages alone."""
    response_text: str
    """Decoded without special tokens."""
    is_truncated: bool
    """True when the response ended at the length limit."""
    reference: Reference
    case_limits_s: tuple[float, ...] = ()
    """As a `ResponseToScore` has them."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """Of the prompt."""
    prompt: str | Sequence[Mapping[str, Any]] = ""
    """`Prompt.as_written`: text or messages, without a chat template."""


Scored_contra = TypeVar("Scored_contra", contravariant=True)


class Scorer(Protocol[Scored_contra]):
    """Scores responses. Each one comes back from `collect` exactly once."""

    async def score(self, responses: Sequence[Scored_contra], /) -> None: ...

    async def forget(self) -> None:
        """Drop what has not been scored; its verdict is no longer needed. What is under way may still come back."""

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are."""

    async def close(self) -> None: ...


RewardService: TypeAlias = Scorer[ResponseToScore]
RewardWorker: TypeAlias = Scorer[ScoringRequest]
"""A failure is a verdict, not an error."""
