"""What a checkpoint holds of responses under way comes back as it was."""

import json

import numpy as np
import pytest

from rollpacker.core.commands import DropPrompt
from rollpacker.core.errors import CheckpointError
from rollpacker.core.events import CaseRun
from rollpacker.core.ids import EngineId, PromptId, RequestId, VersionSpan
from rollpacker.protocols.rollout import FinishReason, Response, Turn, Verdict
from rollpacker.runtime.rollout.episodes import EnvironmentStay
from rollpacker.runtime.rollout.request_book import COUNTERS, RequestBook
from rollpacker.runtime.run.rollouts import load_rollouts, save_rollouts

ENGINE = EngineId("engine-0")
NAMES = [RequestId(3, PromptId(1, "walk-7"), sample) for sample in range(4)]


def response_to(request, reason, *token_ids):
    return Response(
        request=request,
        engine=ENGINE,
        finish_reason=reason,
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=-np.array(token_ids, dtype=np.float32) / 7,
        spans=(VersionSpan(3, 1), VersionSpan(4, len(token_ids) - 1)),
        queue_time_s=0.25,
        generation_time_s=1.5,
    )


def book_of_everything():
    """One finished and scored, one finished, one suspended and launched again, one that has nothing yet."""
    book = RequestBook()
    for request in NAMES:
        book.launched(request, ENGINE, 1.0)
    book.came_back(response_to(NAMES[0], FinishReason.STOP, 5, 6, 2), 2.0)
    verdict = Verdict(request=NAMES[0], reward=0.5, reason="ok", time_s=0.1, case_runs=(CaseRun(0, 0.2, True),))
    book.scored(verdict, 2.5)
    book.came_back(response_to(NAMES[1], FinishReason.LENGTH, 8, 9), 3.0)
    book.came_back(response_to(NAMES[2], FinishReason.ABORTED, 4, 4, 4, 4), 3.5)
    book.launched(NAMES[2], EngineId("engine-1"), 4.0)
    book.dropped.append(DropPrompt(round=2, prompt=PromptId(1, "walk-1")))
    return book


def as_plain(response):
    if response is None:
        return None
    return (response.finish_reason, response.token_ids.tolist(), response.logprobs.tolist(), response.spans)


def test_a_book_comes_back_as_it_was(tmp_path):
    book = book_of_everything()
    save_rollouts(tmp_path, book)
    loaded = load_rollouts(tmp_path)
    assert list(loaded.requests) == NAMES
    for request, record in book.requests.items():
        other = loaded.requests[request]
        assert as_plain(other.response) == as_plain(record.response)
        assert as_plain(other.begun) == as_plain(record.begun)
        for name in ("engine", "launched_at_s", "placed_at_s", "finished_at_s", "verdict", "scored_at_s", "race_rank"):
            assert getattr(other, name) == getattr(record, name)
    assert loaded.dropped == book.dropped
    assert loaded.unscored == [NAMES[1]]


def test_what_was_counted_since_the_last_batch_comes_back(tmp_path):
    book = book_of_everything()
    for request in NAMES[:2]:
        book.begin(request)  # with its first environment, which fails
        book.begin(request)
    book.episodes[NAMES[0]].turns.append(Turn(0, 2, 0.5))
    book.num_given_up = 1
    for activity in ("reset", "environment_error"):
        book.stays.append(EnvironmentStay(request=NAMES[0], activity=activity, began_at_s=0.5, ended_at_s=1.5))
    save_rollouts(tmp_path, book)
    loaded = load_rollouts(tmp_path)
    assert [getattr(loaded, name) for name in COUNTERS] == [getattr(book, name) for name in COUNTERS]
    assert (loaded.stretches, loaded.stays, loaded.episodes) == (book.stretches, book.stays, book.episodes)
    assert (loaded.num_continued, loaded.num_restarts, loaded.num_tokens_discarded) == (1, 2, 5)


def test_tokens_that_were_kept_survive_the_loss_of_the_engine_that_went_on_with_them(tmp_path):
    save_rollouts(tmp_path, book_of_everything())
    book = load_rollouts(tmp_path)
    begun = book.launched(NAMES[2], EngineId("engine-2"), 5.0).begun  # engine-1 was lost
    assert begun.token_ids.tolist() == [4, 4, 4, 4]


def test_a_checkpoint_of_a_synchronous_run_has_none(tmp_path):
    assert load_rollouts(tmp_path).requests == {}


@pytest.mark.parametrize(
    "path", [("stretches",), ("counters", COUNTERS[0]), ("requests", 0, "race_rank"), ("stretches", 0, "engine")]
)
def test_what_another_version_wrote_without_something_is_refused_in_words(path, tmp_path):
    save_rollouts(tmp_path, book_of_everything())
    file = tmp_path / "rollouts.json"
    rows = json.loads(file.read_text())
    part = rows
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    file.write_text(json.dumps(rows))
    with pytest.raises(CheckpointError, match=f"is of another format: .*'{path[-1]}'"):
        load_rollouts(tmp_path)
