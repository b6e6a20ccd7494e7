"""Where drafts come from: siblings, earlier responses of the prompt, its own text; and what overwriting leaves."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker.engines.torch.history import History

NUM_SLOTS, MAX_TOKENS = 4, 32


class Texts:
    """A history with the rows that it drafts for."""

    def __init__(self, num_kept_tokens: int = 256) -> None:
        self.history = History(NUM_SLOTS, MAX_TOKENS, num_kept_tokens)
        self.responses = np.zeros((NUM_SLOTS, MAX_TOKENS), dtype=np.int32)
        self.lengths = np.zeros(NUM_SLOTS, dtype=np.int64)

    def begin(self, slot: int, prompt: list[int]) -> None:
        self.history.begin(slot, np.array(prompt, dtype=np.int32))
        self.lengths[slot] = 0

    def write(self, slot: int, tokens: list[int]) -> None:
        end = self.lengths[slot] + len(tokens)
        self.responses[slot, self.lengths[slot] : end] = tokens
        self.lengths[slot] = end

    def end(self, slot: int) -> None:
        self.history.end(slot, self.responses[slot, : self.lengths[slot]])

    def draft(self, *slots: int, length: int = 4) -> list[list[int]]:
        rows = np.array(slots)
        drafts, nums = self.history.draft(rows, self.responses, self.lengths[rows], length)
        assert drafts.shape == (len(slots), length)
        return [draft[:num].tolist() for draft, num in zip(drafts, nums, strict=True)]


def test_a_row_goes_on_as_its_running_sibling_did() -> None:
    texts = Texts()
    texts.begin(0, [1, 2, 3])
    texts.begin(1, [1, 2, 3])
    texts.write(0, [10, 11, 12, 13, 14])
    texts.write(1, [10, 11])
    assert texts.draft(0, 1) == [[], [12, 13, 14]]
    assert texts.draft(1, length=2) == [[12, 13]]


def test_a_row_goes_on_as_a_response_of_an_earlier_round_did_from_its_first_token_on() -> None:
    texts = Texts()
    texts.begin(0, [1, 2, 3])
    texts.write(0, [10, 11, 12])
    texts.end(0)
    texts.begin(0, [9, 9])
    texts.begin(1, [1, 2, 3])
    texts.write(1, [10])
    assert texts.draft(1) == [[11, 12]]


def test_a_row_goes_on_as_its_prompt_or_its_own_text_does() -> None:
    texts = Texts()
    texts.begin(0, [5, 6, 7, 8])
    texts.write(0, [20, 5, 6])
    assert texts.draft(0, length=2) == [[7, 8]]
    texts.write(0, [21, 22, 23, 21, 22])
    assert texts.draft(0, length=1) == [[23]]


def test_another_prompts_responses_are_no_drafts_and_neither_is_a_single_token_that_agrees() -> None:
    texts = Texts()
    texts.begin(0, [1, 2, 3])
    texts.write(0, [10, 11, 12, 13])
    texts.draft(0)
    texts.begin(1, [1, 2, 4])
    texts.write(1, [10, 11])
    texts.begin(2, [1, 2, 3])
    texts.write(2, [15, 11])
    assert texts.draft(1, 2) == [[], []]


def test_the_longest_match_wins_and_among_equals_the_latest() -> None:
    texts = Texts()
    texts.begin(0, [1, 2])
    texts.write(0, [10, 11, 12, 13, 30, 99, 12, 13, 31, 98, 12, 13, 32])
    texts.draft(0)
    texts.begin(1, [1, 2])
    texts.write(1, [10, 11, 12, 13])
    assert texts.draft(1, length=1) == [[30]]
    texts.begin(1, [1, 2])
    texts.write(1, [50, 12, 13])
    assert texts.draft(1, length=1) == [[32]]


def test_what_another_engine_began_is_learned_with_the_first_draft() -> None:
    texts = Texts()
    texts.begin(0, [1, 2])
    texts.write(0, [10, 11, 12, 13, 10, 11])
    assert texts.draft(0) == [[12, 13, 10, 11]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, NUM_SLOTS - 1), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
        min_size=1,
        max_size=120,
    )
)
def test_a_draft_always_stood_behind_the_same_tokens_whatever_was_overwritten(
    script: list[tuple[int, list[int]]],
) -> None:
    """The ring holds two or three texts, so that most of what the table points to is gone."""
    texts = Texts(num_kept_tokens=48)
    prompts = [[7, 8, 7], [7, 8, 7], [6], [5, 5]]
    written = []
    for slot in range(NUM_SLOTS):
        texts.begin(slot, prompts[slot])
        texts.write(slot, [slot])
    for slot, tokens in script:
        if texts.lengths[slot] + len(tokens) > MAX_TOKENS - 4:
            texts.end(slot)
            written.append(prompts[slot] + texts.responses[slot, : texts.lengths[slot]].tolist())
            texts.begin(slot, prompts[slot])
        texts.write(slot, tokens)
        live = [prompts[row] + texts.responses[row, : texts.lengths[row]].tolist() for row in range(NUM_SLOTS)]
        for row, draft in enumerate(texts.draft(*range(NUM_SLOTS))):
            if draft:
                wanted = live[row][-2:] + draft
                assert any(
                    text[at : at + len(wanted)] == wanted for text in written + live for at in range(len(text))
                ), (live[row], draft)
