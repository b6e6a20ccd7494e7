"""How long each prompt's responses were: what ended, and what was stopped before its end.

    ResponseFinished, ResponseAborted of the last round ──note──> ──learn──> estimates, which stay until the next learn

Of every prompt the last round counts in which any of its responses was seen. Its mean length is estimated as

    tokens of all its responses / number of those that ended

An aborted response is a lower bound: its tokens count and its end does not. So the losers of a race are not taken for
short because only their short responses ended. It is the maximum-likelihood mean of exponential lengths, of which some
are right-censored (Epstein and Sobel, 1953). Where none ended, the sum itself is the estimate.

Invariants: an estimate is a function of learned rounds only, so that nothing of the round under way changes it. The
order in which the facts of a round come does not matter, nor whether one comes twice. A fact that comes after its round
was learned is too late, and changes nothing. There is at most one entry per prompt of the data, of two numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Self

from rollpacker.core.errors import InvariantViolated
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.core.supply import DrawnPrompt


class _Seen(NamedTuple):
    """What is known of one response; of two such facts the larger one says more."""

    has_ended: bool
    num_tokens: int


class LengthHistory:
    """Remembers the lengths of each prompt's last responses."""

    def __init__(self) -> None:
        self._lengths: dict[str, tuple[int, int]] = {}
        """By prompt key: tokens of the responses of its last round, and how many of them ended."""
        self._seen: dict[RequestId, _Seen] = {}
        """Of the round after the last learned one."""
        self._last_learned = -1
        """Round."""

    def note(self, request: RequestId, num_tokens: int, *, has_ended: bool) -> None:
        """Take in how long a response is, or was when it was stopped; too late once its round was learned."""
        if request.round > self._last_learned:
            seen = _Seen(has_ended, num_tokens)
            self._seen[request] = max(seen, self._seen.get(request, seen))

    def learn(self, round_number: int) -> None:
        """Turn what was seen in a round into estimates."""
        sums: dict[str, tuple[int, int]] = {}
        for request, seen in self._seen.items():
            num_tokens, num_ended = sums.get(request.prompt.key, (0, 0))
            sums[request.prompt.key] = num_tokens + seen.num_tokens, num_ended + seen.has_ended
        self._lengths |= sums
        self._seen = {}
        self._last_learned = round_number

    def knows(self, prompts: Iterable[PromptId]) -> bool:
        """Tell whether every one of some prompts has an estimate."""
        return all(prompt.key in self._lengths for prompt in prompts)

    def estimate(self, key: str) -> Fraction:
        """The expected length of a prompt's responses in tokens; 0 of one that is not known."""
        num_tokens, num_ended = self._lengths.get(key, (0, 0))
        return Fraction(num_tokens, max(num_ended, 1))

    def longest(self, prompts: Sequence[DrawnPrompt], count: int) -> list[DrawnPrompt]:
        """Choose so many prompts with the largest estimates, of equal ones the first; in their own order."""
        by_length = sorted(range(len(prompts)), key=lambda index: (-self.estimate(prompts[index].prompt.key), index))
        return [prompts[index] for index in sorted(by_length[:count])]

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: It holds what cannot have been seen.
        """
        if any(num_tokens < 0 or num_ended < 0 for num_tokens, num_ended in self._lengths.values()):
            raise InvariantViolated(f"A length or a count is below 0: {self._lengths}")
        if any(request.round <= self._last_learned for request in self._seen):
            raise InvariantViolated(f"Facts of round {self._last_learned} wait although it was learned: {self._seen}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "lengths": {key: list(lengths) for key, lengths in self._lengths.items()},
            "seen": [[*request.as_list(), *seen] for request, seen in self._seen.items()],
            "last_learned": self._last_learned,
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
        history = cls()
        history._lengths = {
            key: (num_tokens, num_ended) for key, (num_tokens, num_ended) in snapshot["lengths"].items()
        }
        history._seen = {
            RequestId.from_list(plain): _Seen(has_ended, num_tokens)
            for *plain, has_ended, num_tokens in snapshot["seen"]
        }
        history._last_learned = snapshot["last_learned"]
        return history
