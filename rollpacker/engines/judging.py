"""Batches of prompts, and the check of verdicts, of all judge models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollpacker.protocols.rollout import TokenIds


def batches_by_length(prompts: Sequence[TokenIds], max_batch_tokens: int) -> Iterator[list[int]]:
    """Cut prompts, the longest first, into batches of at most so many tokens with padding; yields their indices.

    One that is longer is a batch of its own.
    """
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    begin = 0
    while begin < len(order):
        size = max(1, max_batch_tokens // len(prompts[order[begin]]))
        yield order[begin : begin + size]
        begin += size


def check_candidates(candidates: Sequence[int], num_words: int) -> None:
    """Refuse tokens that are not in the model's vocabulary.

    Raises:
        ConfigError: The tokenizer of the judge's directory yields such tokens.
    """
    unknown = [token for token in candidates if not 0 <= token < num_words]
    if unknown or not candidates:
        raise ConfigError(
            f"The judge's verdicts are the tokens {list(candidates)}, and its model has no token {unknown}.",
            f"It has {num_words}.",
            "Its directory has the tokenizer of another model: correct reward.judge.model.path.",
        )
