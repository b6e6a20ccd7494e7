"""What an LLM judge asks of a model: how likely certain tokens come next.

A verdict is one token, so nothing is generated: one forward pass over each prompt, and of its last position the few
numbers that were asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.protocols.rollout import TokenIds


class JudgeModel(Protocol):
    """A model that reads prompts. Its log-probabilities depend on no other prompt of the batch, but for rounding."""

    async def next_token_logprobs(
        self, prompts: Sequence[TokenIds], candidates: Sequence[int]
    ) -> Sequence[tuple[float, ...]]:
        """For each prompt, the log-probabilities of the candidate tokens as its next token.

        Args:
            prompts: In any number and of any lengths from 1 up; the model cuts them into batches that it can hold.
            candidates: Ids of the vocabulary, each once.

        Returns:
            In the order of the prompts, and each one in the order of the candidates. Nats, of the whole vocabulary at
            temperature 1: no sampling parameter changes them.
        """

    async def sleep(self) -> None:
        """Give back what accelerator memory can be given back; no call may be under way."""

    async def wake(self) -> None:
        """Take it again; the weights are the same as before."""

    async def describe_work(self) -> str:
        """Say what it has done so far, for its log; empty where it is not counted."""

    async def close(self) -> None:
        """End everything; a call under way may fail."""
