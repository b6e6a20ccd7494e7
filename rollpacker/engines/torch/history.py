"""Draft tokens from what was written before: by a response's siblings, for its prompt in earlier rounds, by itself.

A response repeats what others of its prompt said, and its prompt's words. The tokens after the latest place where its
last tokens stand already, the longest match that is found, are its draft. Such drafts need no model and no training,
and are of the newest policies first. It is the idea of prompt lookup decoding and of SuffixDecoding (Oliaro et al.,
2024, arXiv 2411.04975), which has frequencies and a suffix tree instead.

The index is one array of tokens and one table. Table entries say where an n-gram of `ORDERS` tokens of one prompt was
last followed by another token; they are overwritten by later ones, also by those of other n-grams that hash alike, and
places in the array by later texts. A match is therefore compared token by token: what was overwritten is not found, and
nothing wrong comes of it but a draft that is rejected. All rows are looked up in one vectorised call.

        0 ..                             num_live ..                           num_live + num_kept
        | row of slot 0 | row of slot 1 | ... | text - text - text - (a ring)  |

A row is padding, prompt, response; a text in the ring is the end of the prompt, response. Each ends with padding.

Invariant: padding follows what is known of a row or text, so that no draft runs into another one.

Shapes: B rows, N new tokens over all rows, K orders, L tokens of the longest order, G draft tokens.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from rollpacker.engines.torch.sampling import scramble

if TYPE_CHECKING:
    import numpy.typing as npt

    from rollpacker.protocols.rollout import TokenIds

ORDERS = np.array([2, 3, 5, 8])
"""Tokens of the n-grams that are indexed. A single token matches too often by chance."""

LONGEST = int(ORDERS.max())

PADDING = -1

TABLE_SPREAD = 4
"""Table entries per token of the array, one per order: with as many as n-grams, every third overwrites another."""

NUM_KEPT_TOKENS = 2**22
"""Tokens of earlier responses that an engine remembers, 8,192 of 512 tokens: 16 MB, and 128 MB of the table
while all slots together have room for fewer, else more."""

_BACK_L = np.arange(LONGEST)

_MULTIPLIERS = scramble(np.arange(1, LONGEST + 1, dtype=np.uint64)) | np.uint64(1)


class History:
    """The texts of one engine and the drafts from them.

    Args:
        num_slots: Sequences that run at once.
        max_tokens_per_seq: Prompt and response together.
        num_kept_tokens: Of sequences that have ended.
    """

    def __init__(self, num_slots: int, max_tokens_per_seq: int, num_kept_tokens: int = NUM_KEPT_TOKENS) -> None:
        self._stride = LONGEST + max_tokens_per_seq + 1
        self._num_live = num_slots * self._stride
        self._num_kept = max(num_kept_tokens, self._stride)
        self._tokens = np.full(self._num_live + self._num_kept, PADDING, dtype=np.int32)
        num_entries = 1 << int(TABLE_SPREAD * len(self._tokens) - 1).bit_length()
        self._shift = np.uint64(64 - num_entries.bit_length() + 1)
        self._table = np.zeros(num_entries, dtype=np.int64 if len(self._tokens) >= 2**31 else np.int32)
        self._next_kept = self._num_live
        self._prompts = np.zeros(num_slots, dtype=np.uint64)
        self._num_prompt = np.zeros(num_slots, dtype=np.int64)
        self._num_known = np.zeros(num_slots, dtype=np.int64)

    def begin(self, slot: int, prompt_token_ids: TokenIds) -> None:
        """Let a slot's next sequence begin."""
        first, num_tokens = slot * self._stride + LONGEST, len(prompt_token_ids)
        self._tokens[first : first + num_tokens] = prompt_token_ids
        self._tokens[first + num_tokens : first + self._stride - LONGEST] = PADDING
        digest = hashlib.blake2b(prompt_token_ids.tobytes(), digest_size=8).digest()
        self._prompts[slot] = int.from_bytes(digest, "little")
        self._num_prompt[slot], self._num_known[slot] = num_tokens, 0
        self._index(np.arange(first, first + num_tokens - 1), self._prompts[slot])

    def draft(
        self, slots_B: npt.NDArray[np.int64], texts: TokenIds, nums_B: npt.NDArray[np.int64], length: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Propose what rows go on with.

        Args:
            slots_B: Of the rows.
            texts: All slots' responses, shape [slots, tokens].
            nums_B: Tokens of each row's response so far, at least 1.
            length: The most draft tokens, G.

        Returns:
            Draft tokens, shape [B, G], and how many each row has; the others are padding.
        """
        places_N, slots_N = self._take_over(slots_B, texts, nums_B)
        places = np.concatenate([places_N - 1, self._first(slots_B) + nums_B - 1])
        entries, contexts = self._entries(places, self._prompts[np.concatenate([slots_N, slots_B])])
        self._table[entries[: len(places_N)]] = places[: len(places_N), None]
        places_BK, matched_BK = self._look_up(entries[len(places_N) :], contexts[len(places_N) :])
        best_B = matched_BK.argmax(axis=1)
        rows_B = np.arange(len(slots_B))
        reach_BG = places_BK[rows_B, best_B, None] + np.arange(1, length + 1)
        drafts_BG = self._tokens[np.minimum(reach_BG, len(self._tokens) - 1)].astype(np.int64)
        is_draft_BG = np.logical_and.accumulate(drafts_BG != PADDING, axis=1)
        is_draft_BG &= matched_BK[rows_B, best_B, None] >= ORDERS.min()
        return drafts_BG, is_draft_BG.sum(axis=1)

    def end(self, slot: int, response_token_ids: TokenIds) -> None:
        """Remember what a slot's sequence became."""
        prompt, num_tokens = self._prompts[slot], len(response_token_ids)
        self._num_known[slot] = 0
        if not num_tokens:
            return
        response = int(self._first(slot))
        num_before = min(LONGEST, int(self._num_prompt[slot]))
        text = np.concatenate([self._tokens[response - num_before : response], response_token_ids])
        if self._next_kept + len(text) + 1 > len(self._tokens):
            self._tokens[self._next_kept :] = PADDING
            self._next_kept = self._num_live
        first, end = self._next_kept, self._next_kept + len(text)
        self._tokens[first:end] = text
        self._tokens[end] = PADDING
        self._next_kept = end + 1
        self._index(np.arange(first + num_before - 1, end - 1), prompt)

    def _first(self, slots: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
        """Where responses begin."""
        return np.asarray(slots) * self._stride + LONGEST + self._num_prompt[slots]

    def _take_over(
        self, slots_B: npt.NDArray[np.int64], texts: TokenIds, nums_B: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Copy the tokens of rows that are not known yet; returns where to, and of which slots."""
        known_B = self._num_known[slots_B]
        news_B = nums_B - known_B
        slots_N = np.repeat(slots_B, news_B)
        offsets_N = np.arange(len(slots_N)) - np.repeat(np.cumsum(news_B) - news_B - known_B, news_B)
        places_N = self._first(slots_N) + offsets_N
        self._tokens[places_N] = texts[slots_N, offsets_N]
        self._num_known[slots_B] = nums_B
        return places_N, slots_N

    def _index(self, places_N: npt.NDArray[np.int64], prompt: np.uint64) -> None:
        """Enter the n-grams of a prompt that end at some places, each of which another token follows."""
        entries_NK, _ = self._entries(places_N, prompt)
        self._table[entries_NK] = places_N[:, None]

    def _look_up(
        self, entries_BK: npt.NDArray[np.int64], contexts_BL: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where n-grams stood last, and how many tokens up to there agree."""
        found_BK = self._table[entries_BK].astype(np.int64)
        theirs_BKL = self._tokens[np.maximum(found_BK[:, :, None] - _BACK_L, 0)]
        agrees_BKL = np.logical_and.accumulate(theirs_BKL == contexts_BL[:, None], axis=2)
        return found_BK, agrees_BKL.sum(axis=2)

    def _entries(
        self, places_N: npt.NDArray[np.int64], prompts: npt.NDArray[np.uint64] | np.uint64
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """The table entries of the n-grams that end at some places, and the tokens there, the last one first."""
        context_NL = self._tokens[places_N[:, None] - _BACK_L]
        words_NL = (context_NL.astype(np.uint64) + np.uint64(2)) * _MULTIPLIERS
        hashes_NK = np.cumsum(words_NL, axis=1)[:, ORDERS - 1] + np.asarray(prompts)[..., None]
        return (scramble(hashes_NK) >> self._shift).astype(np.int64), context_NL
