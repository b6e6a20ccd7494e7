"""What judges responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.core.ids import Domain, RequestId
    from rollpacker.protocols.rollout import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    """One response to judge, as text."""

    request: RequestId
    domain: Domain
    prompt_text: str
    """As the model saw it, chat template applied."""
    response_text: str
    """Decoded without special tokens."""
    is_truncated: bool
    """True when the response ended at the length limit."""
    ground_truth: str


class RewardWorker(Protocol):
    """Scores responses. Each request comes back from `collect` exactly once; a failure is a verdict, not an error."""

    async def score(self, requests: Sequence[ScoringRequest]) -> None: ...

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are."""

    async def close(self) -> None: ...
