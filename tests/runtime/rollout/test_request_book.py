"""What is kept of responses whose engines may be lost."""

from dataclasses import replace

import numpy as np
import pytest

from rollpacker.core.ids import EngineId, PromptId, RequestId, VersionSpan
from rollpacker.protocols.rollout import FinishReason, Response, TokenIncrement
from rollpacker.runtime.rollout.request_book import RequestBook

REQUEST = RequestId(0, PromptId(0, "a"), 0)
FIRST, SECOND, THIRD = (EngineId(f"e1_{number}-r0.0") for number in range(3))
TOKENS = np.arange(100, 120, dtype=np.int32)
LOGPROBS = -np.arange(20, dtype=np.float32)


def increment(first, end, version=3):
    return TokenIncrement(
        request=REQUEST,
        first_index=first,
        token_ids=TOKENS[first:end],
        logprobs=LOGPROBS[first:end],
        policy_version=version,
    )


def response(engine, end, tokens=TOKENS, logprobs=LOGPROBS):
    return Response(
        request=REQUEST,
        engine=engine,
        finish_reason=FinishReason.STOP,
        token_ids=tokens[:end],
        logprobs=logprobs[:end],
        spans=(VersionSpan(3, end),),
        queue_time_s=0,
        generation_time_s=0,
    )


@pytest.fixture
def book():
    book = RequestBook()
    assert book.launched(REQUEST, FIRST, 0.0).begun is None
    return book


def test_a_request_goes_on_from_all_that_its_lost_engines_had_reported(book):
    for first, end in ((0, 3), (3, 4), (4, 9)):
        book.progressed(FIRST, increment(first, end))
    begun = book.launched(REQUEST, SECOND, 1.0).begun
    assert begun.token_ids.tolist() == TOKENS[:9].tolist()
    assert begun.logprobs.tolist() == LOGPROBS[:9].tolist()
    assert begun.spans == (VersionSpan(3, 9),)
    book.progressed(SECOND, increment(9, 12))
    assert book.launched(REQUEST, THIRD, 2.0).begun.token_ids.tolist() == TOKENS[:12].tolist()
    assert (book.num_continued, book.num_tokens_recomputed, book.num_tokens_saved) == (2, 9 + 12, 9 + 3)


def test_repeated_late_and_torn_reports_are_not_kept(book):
    book.progressed(FIRST, increment(0, 4))
    book.progressed(FIRST, increment(0, 4))  # again
    book.progressed(FIRST, increment(6, 8))  # after a gap
    book.progressed(SECOND, increment(4, 6))  # of an engine that does not have it
    assert book.launched(REQUEST, SECOND, 1.0).begun.num_tokens == 4
    book.progressed(FIRST, increment(4, 6))  # of the engine that was lost
    assert book.launched(REQUEST, THIRD, 2.0).begun.num_tokens == 4
    book.came_back(response(THIRD, 10), 3.0)
    book.progressed(THIRD, increment(4, 6))  # after the end
    assert book.requests[REQUEST].kept.num_tokens == 10


def test_nothing_is_kept_of_an_engine_that_reported_nothing(book):
    assert book.launched(REQUEST, SECOND, 1.0).begun is None
    assert book.num_continued == book.num_tokens_saved == 0


def test_one_that_moves_before_its_first_token_does_not_go_on_from_any(book):
    book.came_back(replace(response(FIRST, 0), finish_reason=FinishReason.ABORTED), 1.0)
    assert book.launched(REQUEST, SECOND, 1.0).begun.num_tokens == 0
    assert book.num_continued == 0


def test_a_response_must_begin_with_what_is_known_of_it(book):
    book.progressed(FIRST, increment(0, 5))
    book.launched(REQUEST, SECOND, 1.0)
    book.progressed(SECOND, increment(5, 8))
    record = book.requests[REQUEST]
    assert not record.contradicts(response(SECOND, 12))
    assert not record.contradicts(response(SECOND, 8))
    assert record.contradicts(response(SECOND, 7))  # shorter than it was
    for place in (0, 4, 5, 7):
        tokens, logprobs = TOKENS.copy(), LOGPROBS.copy()
        tokens[place] += 1
        logprobs[place] -= 1
        assert record.contradicts(response(SECOND, 12, tokens=tokens))
        assert record.contradicts(response(SECOND, 12, logprobs=logprobs))


def test_a_response_of_an_earlier_launch_is_outdated_also_after_a_life_that_was_given_up(book):
    told_again = replace(response(FIRST, 4), launch=book.requests[REQUEST].launch)
    assert not book.is_outdated(told_again)
    book.begin(REQUEST)  # its environment failed: it begins again, on the same engine
    book.launched(REQUEST, FIRST, 1.0)
    assert book.is_outdated(told_again)
    assert not book.is_outdated(replace(told_again, launch=book.requests[REQUEST].launch))


def test_tokens_of_a_life_that_its_environment_ended_are_discarded_and_its_last_engine_had_what_it_generated(book):
    book.came_back(response(FIRST, 4), 1.0)
    book.observed(REQUEST, [7, 7], 2.0)
    book.launched(REQUEST, SECOND, 2.0)
    book.progressed(SECOND, increment(6, 9))
    book.begin(REQUEST)
    assert [(each.engine, each.end, each.num_tokens, each.ended_at_s) for each in book.stretches] == [
        (FIRST, "turn", 6, 1.0),
        (SECOND, "failed", 3, 2.0),
    ]
    assert book.num_tokens_discarded == 4 + 2 + 3
    batch = RequestBook()
    book.give_costs(batch)
    assert (batch.num_tokens_discarded, book.num_tokens_discarded) == (9, 0)


def test_spans_say_which_version_generated_what_was_reported(book):
    book.progressed(FIRST, increment(0, 5))
    book.launched(REQUEST, SECOND, 1.0)
    book.progressed(SECOND, increment(5, 8, version=4))
    assert book.requests[REQUEST].kept.spans == (VersionSpan(3, 5), VersionSpan(4, 3))


def test_a_copy_does_not_share_what_is_reported_later(book):
    book.progressed(FIRST, increment(0, 5))
    copy = book.copy()
    book.progressed(FIRST, increment(5, 6))
    assert copy.requests[REQUEST].num_known == 5
