"""Which judge gets which answer, and where the answers of a judge that dies go."""

import asyncio

import numpy as np
import pytest

from rollpacker.config.sections.judge import JudgeSection
from rollpacker.config.sections.model import ModelSection
from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import Domain, PromptId, RequestId
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import Prompt, Verdict
from rollpacker.runtime.ray.judges import RoutedReward
from rollpacker.runtime.waiting.watchdog import Watchdog
from tests.runtime.driving import until
from tests.runtime.standstill import LATE_S, stoppable


def section(*, stall_s=300, **keys):
    judge = JudgeSection(
        model=ModelSection(path="judge"), max_open=2, restart_pause_s=0, max_restarts=2, stall_s=stall_s
    )
    return RewardSection(name="walk", domains={"qa": "judge"}, judge=judge, **keys)


def answers(num, domain="qa", first=0):
    prompt = Prompt(key="p", domain=Domain(domain), messages=(), text="?", reference=AnswerReference(text="!"))
    return [
        ResponseToScore(
            request=RequestId(0, PromptId(0, domain), sample),
            prompt=prompt,
            token_ids=np.zeros(1, np.int32),
            is_truncated=False,
        )
        for sample in range(first, first + num)
    ]


class ScriptedJudge:
    """Scores and dies on command."""

    def __init__(self):
        self.handed: asyncio.Queue[RequestId] = asyncio.Queue()
        self.verdicts: asyncio.Queue[list[Verdict] | EngineFailed] = asyncio.Queue()
        self.num_forgotten = 0
        self.is_closed = self.is_dead = self.is_asleep = False

    async def score(self, responses):
        if self.is_dead:
            raise EngineFailed("The process of the judge died.")
        for response in responses:
            self.handed.put_nowait(response.request)

    async def samples(self, num):
        return [(await self.handed.get()).sample for _ in range(num)]

    def judge(self, *requests, time_s=0.0):
        self.verdicts.put_nowait(
            [Verdict(request=request, reward=1.0, reason="judged_right", time_s=time_s) for request in requests]
        )

    def die(self):
        self.is_dead = True
        self.verdicts.put_nowait(EngineFailed("The process of the judge died."))

    async def sleep(self):
        if self.is_dead:
            raise EngineFailed("The process of the judge died.")
        self.is_asleep = True

    async def wake(self):
        self.is_asleep = False

    async def forget(self):
        self.num_forgotten += 1

    async def collect(self):
        verdicts = await self.verdicts.get()
        if isinstance(verdicts, EngineFailed):
            raise verdicts
        return verdicts

    async def close(self):
        self.is_closed = True


DIED = "The process of the judge died. The answers that it had go to other judges, or wait."


@pytest.fixture
def judges():
    return {f"judge-{index}": ScriptedJudge() for index in range(2)}


async def test_rules_get_theirs_at_once_and_judges_what_they_have_room_for(judges):
    rules = ScriptedJudge()
    reward = RoutedReward(section(), rules, judges, note=lambda _: None)
    first, second = judges.values()
    await reward.score([*answers(6), *answers(3, "walk")])
    assert await rules.samples(3) == [0, 1, 2]
    assert await first.samples(2) == [0, 2]
    assert await second.samples(2) == [1, 3]
    second.judge(answers(6)[3].request)
    assert [(verdict.request.sample, verdict.scorer) for verdict in await reward.collect()] == [(3, "judge-1")]
    assert await second.samples(1) == [4]  # the one that has room
    assert first.handed.empty()
    rules.judge(answers(1, "walk")[0].request)
    assert [verdict.scorer for verdict in await reward.collect()] == ["reward"]
    await reward.close()
    assert all(service.is_closed for service in (rules, first, second))


async def test_answers_of_a_judge_that_dies_are_read_by_another_before_those_that_wait(judges):
    notes = []
    reward = RoutedReward(section(), None, judges, note=notes.append)
    first, second = judges.values()
    await reward.score(answers(6))
    assert await first.samples(2) == [0, 2]
    assert await second.samples(2) == [1, 3]
    first.judge(answers(1)[0].request)
    assert len(await reward.collect()) == 1
    assert await first.samples(1) == [4]
    first.die()
    second.judge(*(request.request for request in answers(4)[1::2]))
    assert [verdict.request.sample for verdict in await reward.collect()] == [1, 3]
    assert await second.samples(2) == [2, 4]  # of the dead one, in their order; 5 waits
    assert notes == [f"{DIED} It cannot be replaced."]
    second.judge(*(request.request for request in answers(6)[2::2]))
    assert [verdict.request.sample for verdict in await reward.collect()] == [2, 4]
    assert await second.samples(1) == [5]
    second.die()
    with pytest.raises(EngineFailed, match=r"No judge is left.*\n.*judge-1\.log"):
        await reward.collect()
    await reward.close()


async def test_a_judge_that_dies_while_it_is_handed_answers_loses_none(judges):
    reward = RoutedReward(section(), None, judges, note=lambda _: None)
    first, second = judges.values()
    first.is_dead = True
    await reward.score(answers(2))
    assert sorted(await second.samples(2)) == [0, 1]
    await reward.close()


async def test_rules_get_no_more_than_they_are_to_hold_and_the_rest_as_verdicts_come():
    rules = ScriptedJudge()
    reward = RoutedReward(section(max_open=3), rules, {}, note=lambda _: None)
    sent = answers(5, "walk")
    await reward.score(sent)
    assert await rules.samples(3) == [0, 1, 2]
    assert rules.handed.empty()
    rules.judge(sent[1].request)
    await reward.collect()
    assert await rules.samples(1) == [3]
    await reward.forget()
    await reward.score(answers(1, "walk", first=10))
    assert await rules.samples(1) == [10]
    await reward.close()


class Replacer:
    """Replaces a judge by a scripted one; the first few times it fails."""

    def __init__(self, num_failures=0):
        self.asked, self.started, self.may_start = [], {}, asyncio.Event()
        self.may_start.set()
        self._num_failures = num_failures

    async def __call__(self, slot, name):
        self.asked.append((slot, name))
        await self.may_start.wait()
        if len(self.asked) <= self._num_failures:
            raise EngineFailed(f"{name} does not start.")
        self.started[name] = ScriptedJudge()
        return self.started[name]


async def test_answers_wait_for_the_one_that_takes_the_place_of_the_last_judge(judges):
    notes, replacer = [], Replacer(num_failures=1)
    del judges["judge-1"]
    reward = RoutedReward(section(), None, judges, note=notes.append, replace_judge=replacer)
    await reward.score(answers(3))
    assert await judges["judge-0"].samples(2) == [0, 1]
    judges["judge-0"].die()
    await until(lambda: "judge-0-r2" in replacer.started)
    fresh = replacer.started["judge-0-r2"]
    assert await fresh.samples(2) == [0, 1]
    fresh.judge(answers(1)[0].request)
    assert [verdict.scorer for verdict in await reward.collect()] == ["judge-0-r2"]
    assert notes == [
        f"{DIED} judge-0-r1 is to take its place: restart 1 of 2.",
        "judge-0-r1 does not start. judge-0-r2 is to take its place: restart 2 of 2.",
        "judge-0-r2 has taken the place of judge-0.",
    ]
    fresh.die()
    with pytest.raises(EngineFailed, match=r"No judge is left.*\n.*judge-0-r2\.log"):
        await reward.collect()
    await reward.close()
    assert fresh.is_closed


async def test_a_judge_that_gives_no_verdict_is_replaced_and_what_it_says_late_is_not_heard(judges):
    notes, replacer = [], Replacer()
    del judges["judge-0"]
    hung = judges["judge-1"]
    reward = RoutedReward(section(stall_s=0.1), None, judges, note=notes.append, replace_judge=replacer)
    await reward.score(answers(2))
    assert await hung.samples(2) == [0, 1]
    await until(lambda: "judge-1-r1" in replacer.started)
    first, second = answers(2)
    hung.judge(first.request)
    assert await replacer.started["judge-1-r1"].samples(2) == [0, 1]
    replacer.started["judge-1-r1"].judge(first.request, second.request)
    verdicts = [*await reward.collect()]
    assert [(verdict.request.sample, verdict.scorer) for verdict in verdicts] == [(0, "judge-1-r1"), (1, "judge-1-r1")]
    assert notes[0].startswith("judge-1 has 2 answers and gave no verdict for 0.1 s. The answers that it had go to")
    await reward.close()


async def test_judges_are_not_charged_with_time_in_which_the_process_was_stopped(judges, tmp_path):
    notes = []
    reward = RoutedReward(section(stall_s=4 * LATE_S), None, judges, note=notes.append)
    async with stoppable(Watchdog(tmp_path / "stall.txt", 60)) as stop:
        await reward.score(answers(2))
        await stop(0)
        for stopped_s in (LATE_S, 1000.0, LATE_S, LATE_S):
            await stop(stopped_s)
        assert notes == []
        await stop(LATE_S)
        assert notes[0].startswith("judge-0 has 1 answers and gave no verdict")
        await reward.close()


async def test_judges_that_sleep_or_have_nothing_to_do_are_not_taken_for_hung(judges):
    replacer = Replacer()
    reward = RoutedReward(
        section(stall_s=0.1),
        None,
        judges,
        note=lambda _: None,
        replace_judge=replacer,
        colocated=["judge-0", "judge-1"],
    )
    await reward.score(answers(1))
    await asyncio.sleep(0.5)
    judges["judge-0"].judge(answers(1)[0].request)
    await reward.collect()
    await reward.wake()
    await asyncio.sleep(0.5)
    assert (replacer.asked, reward.colocated) == ([], ["judge-0", "judge-1"])
    await reward.close()


async def test_judges_on_the_trainers_gpus_sleep_while_it_works_and_an_empty_place_there_waits_for_its_end(judges):
    replacer, (first, second) = Replacer(), judges.values()
    reward = RoutedReward(
        section(), None, judges, note=lambda _: None, replace_judge=replacer, colocated=["judge-0", "judge-1"]
    )
    assert reward.colocated == ["judge-0", "judge-1"]
    await reward.wake()
    await reward.score(answers(2))
    first.die()
    await until(lambda: "judge-0-r1" in replacer.started)
    third = replacer.started["judge-0-r1"]
    await reward.sleep()
    assert (second.is_asleep, third.is_asleep) == (True, True)
    second.die()
    await until(lambda: third.handed.qsize() == 2)
    assert len(replacer.asked) == 1, "the trainer has the place"
    await reward.wake()
    assert not third.is_asleep
    await until(lambda: "judge-1-r1" in replacer.started)
    await reward.close()


async def test_what_is_forgotten_is_handed_to_no_judge(judges):
    reward = RoutedReward(section(), None, judges, note=lambda _: None)
    first, second = judges.values()
    await reward.score(answers(6))
    assert await first.samples(2) + await second.samples(2) == [0, 2, 1, 3]
    await reward.forget()
    assert (first.num_forgotten, second.num_forgotten) == (1, 1)
    await reward.score(answers(2, first=10))
    assert await first.samples(1) + await second.samples(1) == [10, 11]
    first.judge(answers(1)[0].request)  # under way when it was forgotten
    assert [verdict.request.sample for verdict in await reward.collect()] == [0]
    await reward.close()


async def test_a_mistake_of_the_users_ends_the_run_at_once(judges):
    reward = RoutedReward(section(), None, judges, note=lambda _: None)
    (first, _) = judges.values()

    async def collect():
        raise ValueError("broken")

    first.collect = collect
    with pytest.raises(ValueError, match="broken"):
        await reward.collect()
    await reward.close()
