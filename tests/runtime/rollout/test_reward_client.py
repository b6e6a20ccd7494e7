"""A reward that stands still keeps nobody else waiting, and is named when its time is over."""

import asyncio
from dataclasses import replace

import pytest

from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.errors import DeadlineExceeded
from rollpacker.core.ids import RequestId, held_out_prompt, is_held_out
from rollpacker.runtime.rollout.reward_client import RewardClient
from rollpacker.runtime.waiting.watchdog import Watchdog
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.driving import WHOLE_BATCH, batch_of, driving, until
from tests.runtime.ray.test_judges import answers
from tests.runtime.rollout.test_replacements import Bringer, never, quick
from tests.runtime.scripted import ScriptedEngine, ScriptedReward
from tests.runtime.standstill import LATE_S, stoppable


class StandingReward(ScriptedReward):
    """Takes no order until it may go on."""

    def __init__(self):
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.num_calls = self.num_forgotten = 0

    async def score(self, responses):
        self.num_calls += 1
        await self.may_go_on.wait()
        await super().score(responses)

    async def forget(self):
        await self.may_go_on.wait()
        self.num_forgotten += 1


def client_of(watchdog, reward, told, stall_s=60.0):
    """A client that adds verdicts and errors to a list."""
    return RewardClient(
        reward,
        check_of=str,
        watchdog=watchdog,
        stall_s=stall_s,
        on_verdicts=told.extend,
        on_error=told.append,
    )


async def test_the_place_of_an_engine_that_dies_is_taken_while_the_reward_stands_still(tmp_path):
    dying, other = ScriptedEngine("engine-0", never), ScriptedEngine("engine-1", quick)
    bringer, reward = Bringer(), StandingReward()
    async with driving(tmp_path, [dying, other], reward=reward, replace=bringer) as driver:
        rolling = asyncio.create_task(driver.next_batch(0))
        await until(lambda: reward.num_calls == 1)
        dying.die()
        await until(lambda: "engine-0-r1" in driver.engines)
        await until(lambda: len(other.requests) == 8)
        assert (reward.num_calls, reward.scored) == (1, []), "one order at a time, and it still stands"
        reward.may_go_on.set()
        assert batch_of(await rolling) == WHOLE_BATCH
        assert reward.num_calls == 2, "what finished meanwhile goes out with the next order"
        await driver.quiesce()


class Paced(ScriptedEngine):
    """Finishes a response every 10 s."""

    async def _run(self, request):
        await asyncio.sleep(10 * (1 + 2 * int(request.prompt.key) + request.sample))
        await super()._run(request)


@pytest.mark.parametrize("engine", [ScriptedEngine, Paced])
def test_a_reward_that_stands_still_ends_the_run_by_the_name_of_what_it_has_whatever_engines_do(tmp_path, engine):
    async def main():
        async with driving(tmp_path, [engine("engine-0", quick)], reward=StandingReward(), stall_s=15) as driver:
            with pytest.raises(DeadlineExceeded) as caught:
                await driver.next_batch(0)
            return str(caught.value).splitlines()[0], asyncio.get_running_loop().time()

    words, at_s = run_in_virtual_time(main())
    num_more = {ScriptedEngine: 7, Paced: 1}[engine]
    assert words.startswith("Waited 15 s for the verdict of the reward (math) on sample 0 of prompt '0', ")
    assert words.endswith(f"which it has had for 15 s, and on {num_more} more, in vain.")
    assert at_s == {ScriptedEngine: 15, Paced: 25}[engine]


def test_a_reward_whose_judges_sleep_while_the_trainer_learns_has_its_time_after_they_wake(tmp_path):
    async def main():
        reward, told = StandingReward(), []
        client = client_of(Watchdog(tmp_path / "stall.txt", 60), reward, told, stall_s=15)
        client.add(answers(1))
        await asyncio.sleep(10)
        client.pause()
        await asyncio.sleep(1000)
        client.resume()
        await asyncio.sleep(14)
        assert told == []
        await asyncio.sleep(2)
        assert [type(each) for each in told] == [DeadlineExceeded]
        reward.may_go_on.set()
        await client.stop()

    run_in_virtual_time(main())


def test_a_request_to_a_server_may_take_its_limit_beside_that_of_the_rollout(tmp_path):
    rewards = RewardSection(url="http://reward:5000", timeout_s=10)

    async def main():
        engine, reward = ScriptedEngine("engine-0", quick), StandingReward()
        async with driving(tmp_path, [engine], reward=reward, rewards=rewards, stall_s=15) as driver:
            with pytest.raises(DeadlineExceeded, match=r"^Waited 1285 s for the verdict of the reward"):
                await driver.next_batch(0)
            return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == 15 + 127 * 10


async def test_a_reward_is_not_charged_with_time_in_which_the_process_was_stopped(tmp_path):
    watchdog, reward, told = Watchdog(tmp_path / "stall.txt", 60), StandingReward(), []
    client = client_of(watchdog, reward, told, stall_s=3 * LATE_S)
    async with stoppable(watchdog) as stop:
        client.add(answers(1))
        for stopped_s in (LATE_S, 1000.0, LATE_S):
            await stop(stopped_s)
        assert told == []
        await stop(LATE_S)
        await until(lambda: bool(told))
        assert [type(each) for each in told] == [DeadlineExceeded]
        reward.may_go_on.set()
        await client.stop()


def test_a_reward_that_brings_one_verdict_after_the_other_may_take_its_time(tmp_path):
    class SlowReward(ScriptedReward):
        async def collect(self):
            await asyncio.sleep(10)
            return await super().collect()

    async def main():
        async with driving(tmp_path, [ScriptedEngine("engine-0", quick)], reward=SlowReward(), stall_s=15) as driver:
            return batch_of(await driver.next_batch(0)), asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == (WHOLE_BATCH, 80)


async def test_what_is_forgotten_before_it_was_handed_over_never_is_and_the_reward_hears_of_it_in_turn(tmp_path):
    reward, told = StandingReward(), []
    client = client_of(Watchdog(tmp_path / "stall.txt", 60), reward, told)
    client.start()
    client.add(answers(2))
    await until(lambda: reward.num_calls == 1)
    client.add(answers(2, first=2))
    client.forget()
    client.add(answers(1, first=4))
    assert reward.num_forgotten == 0, "the first order stands still"
    reward.may_go_on.set()
    await until(lambda: len(told) == 3)
    assert [verdict.request.sample for verdict in told] == [0, 1, 4]
    assert (reward.num_calls, reward.num_forgotten, client.describe_wait()) == (2, 1, [])
    await client.stop()


class PatientReward(ScriptedReward):
    """Keeps what it is told until it is to score it."""

    def __init__(self):
        super().__init__()
        self.has = []

    async def score(self, responses):
        self.has += responses

    async def score_first(self, number):
        responses, self.has = self.has[:number], self.has[number:]
        await super().score(responses)


async def test_held_out_responses_beside_a_round_are_handed_over_behind_the_others_and_few_at_a_time(tmp_path):
    reward, told = PatientReward(), []
    client = client_of(Watchdog(tmp_path / "stall.txt", 60), reward, told)
    client.start()
    held_out = [
        replace(each, request=RequestId(0, held_out_prompt("new", "q"), each.request.sample)) for each in answers(40)
    ]
    client.add([*held_out, *answers(2)], is_filling=True)
    await until(lambda: len(reward.has) == 2)
    assert not any(is_held_out(each.request) for each in reward.has)
    await reward.score_first(2)
    await until(lambda: len(reward.has) == 16)
    client.add(answers(1, first=2), is_filling=True)
    await until(lambda: len(reward.has) == 17)
    await reward.score_first(16)
    await until(lambda: len(told) == 18)
    assert [is_held_out(each.request) for each in reward.has] == [False], "nothing follows while it has another one"
    await reward.score_first(1)
    await until(lambda: len(reward.has) == 16)
    client.forget()
    assert client.describe_wait() == []
    await client.stop()


class SlowToGiveUp(ScriptedReward):
    """Takes a moment to end a call that is cancelled."""

    def __init__(self):
        super().__init__()
        self.is_given_up, self.may_end = asyncio.Event(), asyncio.Event()

    async def collect(self):
        try:
            await asyncio.Event().wait()
        finally:
            self.is_given_up.set()
            await self.may_end.wait()


async def test_who_ends_the_client_and_is_cancelled_meanwhile_hears_of_it(tmp_path):
    reward, told = SlowToGiveUp(), []
    client = client_of(Watchdog(tmp_path / "stall.txt", 60), reward, told)
    client.start()
    await asyncio.sleep(0)
    ending = asyncio.create_task(client.stop())
    await reward.is_given_up.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert told == []
