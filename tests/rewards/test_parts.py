"""A reward of several parts: the weighted sum, each part on its own, and what becomes of a part that fails."""

import asyncio
import dataclasses
import textwrap

import pytest

from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.events import CaseRun
from rollpacker.rewards.factory import make_reward_worker
from rollpacker.rewards.routing import SummingRewardWorker
from rollpacker.rewards.scores import CHECKER_CRASHED, CORRECT, TIMEOUT, has_failed, verdict_of
from rollpacker.rewards.worker import InPlaceRewardWorker
from tests.rewards.asking import request_of, verdicts_of


async def score(worker, *requests):
    try:
        await worker.score(requests)
        return await verdicts_of(worker, len(requests))
    finally:
        await worker.close()


@pytest.fixture
def functions(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent(
            """
            def is_short(response):
                return {"score": len(response) < 8, "reason": "short", "num_characters": len(response)}

            def length(response):
                return len(response)

            def fail(response):
                raise ValueError("no")
            """
        )
    )
    return path


async def test_the_reward_is_the_weighted_sum_and_every_part_is_kept(functions):
    section = RewardSection(
        parts={
            "accuracy": {"name": "walk", "weight": 2.0},
            "brevity": {"function": f"{functions}:is_short", "weight": 0.5},
            "seen": {"function": f"{functions}:is_short", "weight": 0.0},
        },
        timeout_s=20.0,
    )
    right, wrong, long = await score(
        make_reward_worker(section),
        request_of(0, "3 4", "+1 4"),
        request_of(1, "3 4", "+1 5"),
        request_of(2, "3 6", "+1 4 +1 5 +1 6"),
    )
    assert [right.reward, wrong.reward, long.reward] == [2.5, 0.5, 2.0]
    assert [right.reason, wrong.reason, long.reason] == ["correct", "wrong_sum", "correct"]
    assert {"accuracy": 1.0, "brevity": 1.0, "seen": 1.0, "brevity.num_characters": 4.0}.items() <= right.parts.items()
    assert long.parts["brevity"] == 0.0


async def test_the_reason_of_a_part_that_failed_stands_before_all_others(functions):
    section = RewardSection(
        parts={"accuracy": {"name": "walk"}, "mine": {"function": f"{functions}:fail"}}, timeout_s=20.0
    )
    [verdict] = await score(make_reward_worker(section), request_of(0, "3 4", "+1 4"))
    assert (verdict.reward, verdict.reason) == (1.0, "checker_crashed")
    assert verdict.parts == {"accuracy": 1.0, "mine": 0.0}


RUNS = (CaseRun(case=0, time_s=1.0, is_passed=False),)


class ScriptedWorker(InPlaceRewardWorker):
    """Gives each response the same verdict."""

    def __init__(self, score, case_runs=()):
        self._verdict = score, case_runs
        super().__init__(lambda: 0.0)

    def _score(self, request):
        score, case_runs = self._verdict
        return dataclasses.replace(verdict_of(request, score), case_runs=case_runs)


@pytest.mark.parametrize(
    ("program", "check", "reason", "is_failure"),
    [
        (CORRECT, CORRECT, "correct", False),
        (CORRECT, TIMEOUT, "timeout", True),
        (TIMEOUT, CORRECT, "timeout", False),
        (TIMEOUT, CHECKER_CRASHED, "checker_crashed", True),
        (TIMEOUT, TIMEOUT, "timeout", True),
    ],
)
async def test_the_time_limit_of_a_program_is_no_failure_and_that_of_a_check_beside_it_is_one(
    program, check, reason, is_failure
):
    parts = {"tests": (ScriptedWorker(program, RUNS), 1.0), "mine": (ScriptedWorker(check), 1.0)}
    [verdict] = await score(SummingRewardWorker(parts), request_of(0, ""))
    assert (verdict.reason, has_failed(verdict)) == (reason, is_failure)
    assert verdict.case_runs == (() if is_failure else RUNS)


async def test_a_part_keeps_its_own_value_beside_an_inner_one_of_the_same_name():
    parts = {
        "a": (InPlaceRewardWorker(lambda: {"score": 1.0, "b": 5.0, "c": 3.0}), 1.0),
        "a.b": (InPlaceRewardWorker(lambda: 0.5), 1.0),
    }
    [verdict] = await score(SummingRewardWorker(parts), request_of(0, ""))
    assert verdict.parts == {"a": 1.0, "a.b": 0.5, "a.c": 3.0}


async def test_a_reason_that_a_part_gives_stands_before_that_of_a_part_without_one(functions):
    section = RewardSection(
        parts={
            "length": {"function": f"{functions}:length"},
            "brevity": {"function": f"{functions}:is_short"},
            "accuracy": {"name": "walk"},
        },
        timeout_s=20.0,
    )
    [verdict] = await score(make_reward_worker(section), request_of(0, "3 4", "+1 4"))
    assert verdict.reason == "short"


async def test_a_domain_may_have_a_check_of_its_own_beside_parts(functions):
    section = RewardSection(
        parts={"accuracy": {"name": "walk", "weight": 3.0}, "more": {"name": "walk"}},
        domains={"poems": f"{functions}:is_short"},
        timeout_s=20.0,
    )
    walk, poem = await score(
        make_reward_worker(section), request_of(0, "3 4", "+1 4"), request_of(1, "", "roses", domain="poems")
    )
    assert (walk.reward, walk.parts) == (4.0, {"accuracy": 1.0, "more": 1.0})
    assert (poem.reward, poem.reason, poem.parts) == (1.0, "short", {"num_characters": 5.0})


class LateWorker(InPlaceRewardWorker):
    """Gives its verdicts when it may."""

    def __init__(self, function):
        super().__init__(function)
        self.may_answer = asyncio.Event()

    async def collect(self):
        await self.may_answer.wait()
        return await super().collect()


async def test_a_response_that_was_forgotten_between_its_parts_has_no_verdict():
    early, late = InPlaceRewardWorker(lambda: 1.0), LateWorker(lambda: 2.0)
    worker = SummingRewardWorker({"early": (early, 1.0), "late": (late, 1.0)})
    try:
        await worker.score([request_of(0, "")])
        await worker.forget()
        await worker.score([request_of(1, "")])
        late.may_answer.set()
        [verdict] = await worker.collect()
        assert (verdict.request.sample, verdict.reward) == (1, 3.0)
    finally:
        await worker.close()
