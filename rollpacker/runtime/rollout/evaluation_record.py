"""One evaluation of a policy on held-out sets: its responses and when they were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollpacker.core.commands import BeginEvaluation
from rollpacker.core.ids import RequestId
from rollpacker.protocols.rollout import TokenizedPrompt
from rollpacker.runtime.rollout.request_book import RequestBook, RequestRecord


@dataclass(slots=True, kw_only=True)
class EvaluationRecord:
    """From the first launch to the last reward. Times are seconds since the run began."""

    begin: BeginEvaluation
    policy_version: int
    began_at_s: float
    has_filled: bool = False
    """It ran in the idle slots of a training round, and may have been cut."""
    prompts: Mapping[str, TokenizedPrompt]
    """Every held-out prompt by the key of its id, in the order of sets and files."""
    book: RequestBook = field(default_factory=RequestBook)
    ended_at_s: float = 0.0
    is_over: bool = False

    @property
    def requests(self) -> Mapping[RequestId, RequestRecord]:
        """Every request, in launch order."""
        return self.book.requests
