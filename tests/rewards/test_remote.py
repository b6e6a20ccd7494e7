"""A reward by URL, against a real server on this machine."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.errors import EngineFailed
from rollpacker.rewards.remote import MOST_AT_ONCE, UrlRewardWorker, ask, longest_first_verdict_s
from tests.rewards.asking import request_of, verdicts_of
from tests.rewards.servers import lengths, raw_server, reward_server


def poem(sample, response):
    return request_of(sample, "none", response, prompt_text="Rhyme.")


async def score(url, responses, num_workers=1, timeout_s=30.0, pauses_s=()):
    """Give reward and reason of each response."""
    worker = UrlRewardWorker(url, num_workers, timeout_s, pauses_s)
    try:
        await worker.score([poem(sample, response) for sample, response in enumerate(responses)])
        return [(verdict.reward, verdict.reason) for verdict in await verdicts_of(worker, len(responses))]
    finally:
        await worker.close()


async def test_responses_are_posted_in_batches_and_each_has_its_own_reward():
    responses = ["x" * length for length in range(150)]
    with reward_server(lengths) as (url, questions):
        assert await score(url, responses, num_workers=2) == [(float(length), "scored") for length in range(150)]
    sizes = [len(question["query"]) for question in questions]
    assert sorted(sizes) == [150 - 2 * MOST_AT_ONCE, MOST_AT_ONCE, MOST_AT_ONCE]
    first = next(question for question in questions if "Rhyme." in question["query"])
    assert first.keys() == {"query", "prompts", "labels"}
    assert (first["query"][1], first["prompts"][1], first["labels"][1]) == ("Rhyme.x", "Rhyme.", "none")


async def test_a_reward_may_be_all_that_a_function_returns():
    answers = [0.5, [1.0, "rhymes"], {"score": 0.25, "metre": 1}, float("nan"), "good"]
    with reward_server(lambda _question: (200, {"rewards": answers})) as (url, _):
        rewards = await score(url, [""] * len(answers))
    assert rewards == [(0.5, "scored"), (1.0, "rhymes"), (0.25, "scored"), (0.0, "not_finite"), (0.0, "wrong_result")]


@pytest.mark.parametrize("body", [b"<html>", {"rewards": [1.0]}, {"scores": [1.0, 1.0]}, [1.0, 1.0]])
async def test_a_wrong_answer_is_a_reason_and_the_next_is_scored(body):
    answers = iter([(200, body)])
    with reward_server(lambda question: next(answers, None) or lengths(question)) as (url, _):
        worker = UrlRewardWorker(url, 1, 30.0, ())
        try:
            await worker.score([poem(0, "x"), poem(1, "x")])
            assert {verdict.reason for verdict in await worker.collect()} == {"wrong_result"}
            await worker.score([poem(2, "xyz")])
            [verdict] = await worker.collect()
            assert (verdict.reward, verdict.reason) == (3.0, "scored")
        finally:
            await worker.close()


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_text_that_a_server_refuses_scores_0_and_those_beside_it_their_own(status):
    def answer(question):
        return (status, {}) if any("bad" in query for query in question["query"]) else lengths(question)

    responses = ["x" * length for length in range(MOST_AT_ONCE)]
    responses[5] = responses[6] = responses[40] = "bad"
    with reward_server(answer) as (url, _):
        rewards = await score(url, responses)
    assert [sample for sample, reward in enumerate(rewards) if reward == (0.0, "http_error")] == [5, 6, 40]
    assert all(reward == (float(sample), "scored") for sample, reward in enumerate(rewards) if sample not in {5, 6, 40})


async def test_a_server_that_takes_fewer_texts_at_once_scores_all_of_them():
    def answer(question):
        return lengths(question) if len(question["query"]) <= 20 else (413, {})

    with reward_server(answer) as (url, questions):
        assert await score(url, ["x"] * 50) == [(1.0, "scored")] * 50
    assert [len(question["query"]) for question in questions] == [50, 25, 12, 13, 25, 12, 13]


async def test_a_server_that_refuses_every_text_of_a_request_is_logged_once(caplog):
    with reward_server(lambda _question: (413, {})) as (url, _):
        assert await score(url, ["x"] * MOST_AT_ONCE) == [(0.0, "http_error")] * MOST_AT_ONCE
    assert [record.getMessage() for record in caplog.records] == [f"{url}: it answered with status 413"]


async def test_a_part_of_a_refused_request_has_its_verdict_before_the_next_one_is_answered():
    may_answer = threading.Event()

    def answer(question):
        if question["query"] == ["Rhyme.xx"]:
            may_answer.wait()
        return lengths(question) if len(question["query"]) == 1 else (413, {})

    with reward_server(answer) as (url, _):
        worker = UrlRewardWorker(url, 1, 30.0, ())
        try:
            await worker.score([poem(0, "x"), poem(1, "xx")])
            assert [verdict.request.sample for verdict in await asyncio.wait_for(worker.collect(), 20)] == [0]
            may_answer.set()
            assert [verdict.request.sample for verdict in await worker.collect()] == [1]
        finally:
            may_answer.set()
            await worker.close()


async def test_each_part_of_a_refused_request_has_its_own_time_and_the_first_one_is_within_the_limit(monkeypatch):
    """By a clock that the server moves, by all that it may take for each text."""
    now_s = 0.0

    def answer(question):
        nonlocal now_s
        now_s += 2.0 * len(question["query"])
        return lengths(question) if len(question["query"]) == 1 else (413, {})

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    with reward_server(answer) as (url, questions):
        worker = UrlRewardWorker(url, 1, 30.0, ())
        try:
            await worker.score([poem(sample, "x") for sample in range(MOST_AT_ONCE)])
            verdicts = await verdicts_of(worker, MOST_AT_ONCE)
        finally:
            await worker.close()
    assert {verdict.time_s for verdict in verdicts} == {2.0}
    sizes = [len(question["query"]) for question in questions]
    until_the_first = sizes[: sizes.index(1) + 1]
    assert longest_first_verdict_s(RewardSection(url=url, timeout_s=2.0)) == 2.0 * sum(until_the_first)


def test_a_request_has_the_time_of_each_of_its_responses():
    may_end = threading.Event()

    def hang(question):
        may_end.wait()
        return lengths(question)

    with reward_server(hang) as (url, _):
        began_s = time.monotonic()
        try:
            outcomes = ask(url, [poem(sample, "x") for sample in range(3)], 0.1)
        finally:
            may_end.set()
        assert time.monotonic() - began_s >= 0.3
    assert {outcome.problem for outcome in outcomes} == {"it took longer than 0.3 s for 3 responses"}


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["headers", "a body"])
async def test_a_server_that_answers_byte_by_byte_has_no_more_time_than_another(beginning):
    may_end = threading.Event()

    def drip(_number):
        yield beginning
        for _ in range(500):
            if may_end.wait(0.01):
                return
            yield b" " if beginning else b"H"
        yield b'{"rewards": [1.0]}'

    with raw_server(drip) as url:
        try:
            assert await score(url, ["x"], timeout_s=0.2) == [(0.0, "timeout")]
        finally:
            may_end.set()


async def test_a_server_that_refuses_a_long_request_need_not_read_it():
    def answer(_number):
        yield b'HTTP/1.1 200 OK\r\n\r\n{"rewards": [0.5]}'

    with raw_server(answer, most_bytes=5 << 20) as url:
        assert await score(url, ["x" * (4 << 20)] * 3) == [(0.5, "scored")] * 3


@pytest.mark.parametrize("body", [b"", b'{"rewards": [0'], ids=["before its body", "within it"])
async def test_a_server_that_dies_while_it_answers_is_asked_again(body):
    def answer(number):
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n"
        yield body if number == 0 else b'{"rewards": [0.5]}'

    with raw_server(answer) as url:
        assert await score(url, ["x"], pauses_s=(0.0,)) == [(0.5, "scored")]


async def test_as_many_requests_are_under_way_as_there_are_workers(monkeypatch):
    """More than the threads that an event loop has for all."""
    num_workers = 34
    monkeypatch.setattr(UrlRewardWorker, "most_at_once", 1)
    all_came = threading.Barrier(num_workers)

    def answer(question):
        all_came.wait(10)
        return lengths(question)

    with reward_server(answer) as (url, _):
        rewards = await score(url, ["x"] * num_workers, num_workers=num_workers)
    assert rewards == [(1.0, "scored")] * num_workers


@pytest.mark.parametrize("trouble", [(503, {}), (429, {}), (401, {}), (404, {}), (None, None)])
async def test_a_server_in_trouble_is_asked_again(trouble):
    answers = iter([trouble, trouble])
    with reward_server(lambda question: next(answers, None) or lengths(question)) as (url, questions):
        assert await score(url, ["xy"], pauses_s=(0.0, 0.0)) == [(2.0, "scored")]
        assert len(questions) == 3


async def test_a_server_that_stays_away_ends_the_run():
    """Or every further response would silently be worth nothing."""
    with reward_server(lengths) as (url, _):
        pass
    with pytest.raises(EngineFailed, match="cannot be used: Connection refused"):
        await score(url, ["x"], pauses_s=(0.0,))


@pytest.mark.parametrize("status", [401, 403, 404, 405])
async def test_a_server_that_refuses_whatever_it_is_sent_ends_the_run(status):
    with (
        reward_server(lambda _question: (status, {})) as (url, _),
        pytest.raises(EngineFailed, match=f"cannot be used: it answered with status {status}") as failed,
    ):
        await score(url, ["x"], pauses_s=(0.0,))
    assert "It was asked 2 times, with 0 s of pauses in all" in failed.value.allowed


WAITS = """
import asyncio, sys
from rollpacker.rewards.remote import UrlRewardWorker
from tests.rewards.asking import request_of

async def main(url):
    worker = UrlRewardWorker(url, 1, 600.0, ())
    await worker.score([request_of(0, "", "x")])
    await asyncio.to_thread(sys.stdin.readline)
    await worker.close()

asyncio.run(main(sys.argv[1]))
"""


def test_a_process_ends_although_a_server_that_hangs_owes_it_an_answer():
    came, may_end = threading.Event(), threading.Event()

    def hang(question):
        came.set()
        may_end.wait()
        return lengths(question)

    with reward_server(hang) as (url, _):
        words, root = [sys.executable, "-c", WAITS, url], Path(__file__).parents[2]
        with subprocess.Popen(words, stdin=subprocess.PIPE, text=True, cwd=root) as process:
            try:
                assert came.wait(60)
                process.communicate("close\n", timeout=30)
                assert process.returncode == 0
            finally:
                process.kill()
                may_end.set()


@pytest.mark.parametrize("most_texts", [1, MOST_AT_ONCE], ids=["refused", "taken"])
async def test_what_was_forgotten_has_no_verdict_and_no_part_of_it_is_asked_for(most_texts):
    came, may_answer = threading.Event(), threading.Event()

    def answer(question):
        came.set()
        may_answer.wait()
        return lengths(question) if len(question["query"]) <= most_texts else (413, {})

    with reward_server(answer) as (url, questions):
        worker = UrlRewardWorker(url, 1, 30.0, ())
        try:
            await worker.score([poem(0, "x"), poem(1, "x")])
            await asyncio.to_thread(came.wait)
            await worker.score([poem(2, "xx")])
            await worker.forget()
            await worker.score([poem(3, "xxx")])
            may_answer.set()
            assert [verdict.request.sample for verdict in await worker.collect()] == [3]
        finally:
            may_answer.set()
            await worker.close()
    assert [len(question["query"]) for question in questions] == [2, 1]
