"""Engines that are lost are replaced beside the round, and what is trained never depends on when."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from rollpacker.core.errors import EngineFailed, WeightSyncFailed
from rollpacker.core.settings import ParallelismSettings, StreamSettings
from tests.runtime.driving import WHOLE_BATCH, batch_of, driving, fleet_of, lending, settings, turns, until, weights
from tests.runtime.scripted import DAMAGED, ScriptedEngine, ScriptedReward, confirm, damage, never_confirm

LOST = "The process of engine-0 died. Its requests go to the other engines."


def quick(_):
    return 1


def never(_):
    return None


class Bringer:
    """Replaces engines by scripted ones, as the test says."""

    def __init__(self, num_turns=quick, make=ScriptedEngine, on_weights=confirm):
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.brought = {}
        self.asked = []
        self._num_turns = num_turns
        self._make = make
        self._on_weights = on_weights

    async def __call__(self, slot, name):
        self.asked.append((slot, name))
        await self.may_start.wait()
        self.brought[name] = self._make(name, self._num_turns, on_weights=self._on_weights)
        return self.brought[name]


class Hanging(ScriptedEngine):
    """Neither sleeps nor ends."""

    async def sleep(self):
        await never_confirm(None)

    async def close(self):
        await never_confirm(None)


class Deaf(ScriptedEngine):
    """Orders to it fail, and what it runs comes all the same."""

    async def generate(self, requests):
        await super().generate(requests)
        raise EngineFailed(f"{self.engine} does not answer.")


def engines_of(record):
    return {request.engine for request in record.requests.values()}


async def test_without_an_engine_a_round_waits_for_the_replacement_which_has_a_name_of_its_own(tmp_path):
    engine, bringer = ScriptedEngine("engine-0", never), Bringer()
    async with driving(tmp_path, [engine], replace=bringer) as driver:
        engine.die()
        record = await driver.next_batch(0)
        assert batch_of(record) == WHOLE_BATCH
        assert engines_of(record) == {"engine-0-r1"}
        assert bringer.asked == [("engine-0", "engine-0-r1")]
        assert driver.notes == [
            f"{LOST} engine-0-r1 is to take its place: restart 1 of 3.",
            "engine-0-r1 has taken the place of engine-0.",
        ]
        assert (driver.turnover().num_lost, driver.turnover().num_replaced) == (1, 0), "counted once"
        await driver.quiesce()


async def test_the_others_go_on_until_the_replacement_joins_the_round(tmp_path):
    """The round can only end on the newcomer: the other engine never finishes what it got first."""
    dying, stuck, bringer = ScriptedEngine("engine-0", never), ScriptedEngine("engine-1", never), Bringer()
    async with driving(tmp_path, [dying, stuck], replace=bringer) as driver:
        rolling = asyncio.create_task(driver.next_batch(0))
        await until(lambda: len(stuck.running) == 4)
        dying.die()
        await until(lambda: len(stuck.running) == 8)
        await until(lambda: "engine-0-r1" in driver.engines)
        stuck.die()
        record = await rolling
        assert batch_of(record) == WHOLE_BATCH
        assert engines_of(record) == {"engine-0-r1"}
        await driver.quiesce()


async def test_what_a_lost_engine_says_late_is_not_taken_for_a_word_of_its_successor(tmp_path):
    deaf, bringer = Deaf("engine-0", lambda _: 50), Bringer(num_turns=lambda _: 500)
    async with driving(tmp_path, [deaf], replace=bringer) as driver:
        record = await driver.next_batch(0)
        assert engines_of(record) == {"engine-0-r1"}
        assert {response.engine for group in record.groups() for response in group.responses} == {"engine-0-r1"}
        await driver.quiesce()


async def test_an_engine_that_starts_while_new_weights_are_published_ends_up_with_these(tmp_path):
    engines, bringer = [ScriptedEngine(f"engine-{i}", quick) for i in range(2)], Bringer()
    bringer.may_start.clear()
    async with driving(tmp_path, engines, replace=bringer) as driver:
        engines[0].die()
        await driver.next_batch(0)
        await driver.quiesce()
        await driver.publish(weights(1))
        assert list(driver.engines) == ["engine-1"]
        bringer.may_start.set()
        engines[1]._num_turns = never
        rolling = asyncio.create_task(driver.next_batch(1))
        await until(lambda: "engine-0-r1" in driver.engines)
        assert bringer.brought["engine-0-r1"].policy_version == 1
        engines[1].die()
        assert {
            span.policy_version for group in (await rolling).groups() for r in group.responses for span in r.spans
        } == {1}
        await driver.quiesce()


async def test_new_weights_wait_for_an_engine_that_takes_the_old_ones_and_reach_it_too(tmp_path):
    loading, may_load = [], asyncio.Event()

    async def load(weights):
        loading.append(weights.policy_version)
        await may_load.wait()
        return weights.checksum

    engines, bringer = [ScriptedEngine(f"engine-{i}", quick) for i in range(2)], Bringer(on_weights=load)
    async with driving(tmp_path, engines, replace=bringer) as driver:
        engines[0].die()
        await until(lambda: loading)
        await driver.next_batch(0)
        await driver.quiesce()
        publishing = asyncio.create_task(driver.publish(weights(1)))
        await turns(20)
        assert engines[1].policy_version == 0, "one after the other"
        may_load.set()
        await publishing
        assert {name: engine.policy_version for name, engine in driver.engines.items()} == {
            "engine-1": 1,
            "engine-0-r1": 1,
        }
        record = await driver.next_batch(1)
        assert engines_of(record) == {"engine-1", "engine-0-r1"}
        await driver.quiesce()


async def test_an_engine_that_is_ready_between_two_rounds_joins_with_the_next_weights(tmp_path):
    engines, bringer = [ScriptedEngine(f"engine-{i}", quick) for i in range(2)], Bringer()
    async with driving(tmp_path, engines, replace=bringer) as driver:
        await driver.next_batch(0)
        await driver.quiesce()
        engines[0].die()  # while the trainer works
        await until(lambda: "engine-0-r1" in bringer.brought)
        await driver.publish(weights(1))
        record = await driver.next_batch(1)
        assert "engine-0-r1" in driver.engines
        assert batch_of(record) == [(f"{index}@0", [0, 1]) for index in range(4, 8)]
        await driver.quiesce()


async def test_a_crash_loop_ends_the_run_with_the_last_error_and_the_name_of_its_log(tmp_path):
    class Dying(ScriptedEngine):
        async def generate(self, requests):
            raise EngineFailed(f"{self.engine} ran out of memory before {len(requests)} requests.")

    async with driving(tmp_path, [Dying("engine-0", never)], replace=Bringer(make=Dying), max_restarts=2) as driver:
        with pytest.raises(EngineFailed, match=r"engine-0-r2 ran out of memory(.|\n)*engine-0-r2\.log"):
            await driver.next_batch(0)
        assert driver.notes[-1].endswith("It is not replaced: engine.max_restarts=2.")


async def test_an_engine_that_never_starts_again_is_done_without(tmp_path):
    async def refuse(slot, name):
        raise EngineFailed(f"{name} found no memory.")

    engines = [ScriptedEngine("engine-0", never), ScriptedEngine("engine-1", quick)]
    async with driving(tmp_path, engines, replace=refuse) as driver:
        engines[0].die()
        assert engines_of(await driver.next_batch(0)) == {"engine-1"}
        await until(lambda: len(driver.notes) == 4)
        assert driver.notes[1:] == [
            "engine-0-r1 found no memory. engine-0-r2 is to take its place: restart 2 of 3.",
            "engine-0-r2 found no memory. engine-0-r3 is to take its place: restart 3 of 3.",
            "engine-0-r3 found no memory. It is not replaced: engine.max_restarts=3.",
        ]
        await driver.quiesce()
        engines[1].die()
        with pytest.raises(EngineFailed, match=r"engine-1-r3 found no memory\. No engine is left"):
            await driver.next_batch(1)


async def test_an_engine_that_does_not_start_in_time_counts_as_failed(tmp_path):
    bringer = Bringer()
    bringer.may_start.clear()
    engine = ScriptedEngine("engine-0", never)
    async with driving(tmp_path, [engine], replace=bringer, max_restarts=1, start_s=0.01) as driver:
        engine.die()
        with pytest.raises(EngineFailed, match="for engine-0-r1 to start, in vain"):
            await driver.next_batch(0)


async def test_an_engine_with_other_weights_than_the_round_has_does_not_join_it(tmp_path):
    damages = iter([DAMAGED])  # the first replacement's

    async def load(weights):
        return next(damages, weights.checksum)

    engine, bringer = ScriptedEngine("engine-0", never), Bringer(on_weights=load)
    async with driving(tmp_path, [engine], replace=bringer) as driver:
        engine.die()
        assert engines_of(await driver.next_batch(0)) == {"engine-0-r2"}
        assert not bringer.brought["engine-0-r1"].requests
        assert any("engine-0-r1 holds weights with checksum 00000bad" in note for note in driver.notes)
        await driver.quiesce()


@pytest.mark.parametrize("trouble", ["dead", "slow", "torn"])
async def test_who_does_not_get_new_weights_is_replaced_and_the_others_do_not_wait(tmp_path, trouble):
    async def die(_):
        raise EngineFailed("The process of engine-0 died.")

    engines, bringer = [ScriptedEngine(f"engine-{i}", quick) for i in range(2)], Bringer()
    async with driving(tmp_path, engines, replace=bringer) as driver:
        engines[0].on_weights = {"dead": die, "slow": never_confirm, "torn": damage}[trouble]
        published = await driver.publish(weights(1, straggler_s=0.5))
        assert list(published.lost) == ["engine-0"]
        assert list(driver.engines) == ["engine-1"]
        engines[1]._num_turns = never
        rolling = asyncio.create_task(driver.next_batch(0))
        await until(lambda: "engine-0-r1" in driver.engines)
        engines[1].die()
        assert batch_of(await rolling) == WHOLE_BATCH
        await driver.quiesce()


async def test_weights_that_no_engine_confirms_end_the_run(tmp_path):
    engines = [ScriptedEngine(f"engine-{i}", quick) for i in range(2)]
    async with driving(tmp_path, engines, replace=Bringer()) as driver:
        for engine in engines:
            engine.on_weights = damage
        with pytest.raises(WeightSyncFailed, match="engine-0 holds weights with checksum 00000bad"):
            await driver.publish(weights(1))


async def test_no_engine_is_brought_where_the_trainer_has_the_gpus_until_it_gives_them_back(tmp_path):
    bringer = Bringer()
    async with lending(tmp_path, replace=bringer) as (driver, _, lent, _):
        lent.die()
        await driver.quiesce()
        await turns(20)
        assert bringer.asked == []
        await driver.publish(weights(1))
        await driver.next_batch(1)
        await until(lambda: bringer.asked == [(lent.engine, f"{lent.engine}-r1")])
        await driver.quiesce()


async def test_a_lent_engine_that_died_in_its_sleep_is_replaced_as_soon_as_the_others_come_back(tmp_path):
    bringer = Bringer()
    async with lending(tmp_path, replace=bringer) as (driver, _, lent, _):
        lent.die()
        await turns(20)
        assert bringer.asked == []
        assert await driver._engines.take_back([lent.engine]) == ()
        await until(lambda: bringer.asked == [(lent.engine, f"{lent.engine}-r1")])
        await driver.quiesce()


@pytest.mark.parametrize("victim", range(4))
async def test_an_engine_that_dies_as_it_is_lent_costs_the_part_of_the_trainer_it_shares_gpus_with(tmp_path, victim):
    class Mortal(ScriptedEngine):
        async def sleep(self):
            self.die()
            raise EngineFailed(f"The process of {self.engine} died.")

    def long_tail(request):
        return 1 if request.prompt.key < "2" else 40

    engines = [(Mortal if i == victim else ScriptedEngine)(f"engine-{i}", long_tail) for i in range(4)]
    policy = settings(stream=StreamSettings(replicas=((0, 1), (2, 3)), max_response_tokens=8))
    async with driving(tmp_path, engines, policy=policy) as driver:
        assert batch_of(await driver.next_batch(0)) == WHOLE_BATCH
        assert driver.lent == [(0, frozenset() if victim < 2 else frozenset({0, 1}))]
        await driver.quiesce()


@pytest.mark.parametrize("is_last", [False, True])
async def test_an_engine_that_hangs_is_killed_when_the_trainer_is_to_have_its_gpus(tmp_path, is_last):
    ended = []

    async def end(slot):
        ended.append(slot)

    engines = [Hanging("engine-0", quick), ScriptedEngine("engine-1", quick)]
    slots = [engine.engine for engine in engines]
    async with driving(tmp_path, engines, engine_call_s=0.1, stop_s=0.1, replace=Bringer(), end_engine=end) as driver:
        await driver.next_batch(0)
        await driver.quiesce()
        await (driver.end_engines if is_last else driver.leave_gpus)(slots)
        assert ended == ["engine-0"]
        assert engines[1].is_closed == is_last


async def test_a_trainer_does_not_get_gpus_on_which_an_engine_cannot_be_ended(tmp_path):
    engines = [Hanging("engine-0", quick), ScriptedEngine("engine-1", quick)]
    async with driving(tmp_path, engines, engine_call_s=0.1, stop_s=0.1, end_engine=never_confirm) as driver:
        await driver.next_batch(0)
        await driver.quiesce()
        with pytest.raises(EngineFailed, match="the process in the slot of engine-0 to end"):
            await driver.leave_gpus(["engine-0", "engine-1"])


@asynccontextmanager
async def about_to_change(tmp_path, bringer, ended, engine=ScriptedEngine):
    """A driver whose two engines are to make place for a larger one with the next weights."""
    preemptions = iter([0, 0, 1, 3, 6, 10, 15, 21])
    single = [ScriptedEngine("engine-0", quick), engine("engine-1", quick, preemptions=preemptions)]
    double = [ScriptedEngine("engine-tp2-0", quick)]
    await double[0].sleep()

    async def end(slot):
        ended.append(slot)

    policy = settings(parallelism=ParallelismSettings(degrees=(1, 2), initial=1))
    fleets = {1: fleet_of(single), 2: fleet_of(double, 2)}
    async with driving(tmp_path, policy=policy, fleets=fleets, replace=bringer, end_engine=end) as driver:
        for step in range(6):
            await driver.next_batch(step)
            await driver.measure_round()
            await driver.quiesce()
            if driver._engines.next_tensor_parallel == 2:
                break
            await driver.publish(weights(step + 1))
        yield driver, single, double, step + 1


async def test_a_replacement_of_the_fleet_that_goes_to_sleep_is_cancelled_and_counts_for_nothing(tmp_path):
    bringer = Bringer()
    bringer.may_start.clear()
    async with about_to_change(tmp_path, bringer, []) as (driver, single, _, step):
        single[0].die()
        await until(lambda: bringer.asked)
        await driver.publish(weights(step))
        assert list(driver.engines) == ["engine-tp2-0"]
        assert bringer.asked == [("engine-0", "engine-0-r1")]
        bringer.may_start.set()
        await turns(20)
        assert bringer.brought == {}


async def test_a_replacement_that_is_ready_as_its_fleet_is_to_leave_sleeps_with_it_and_is_not_ended(tmp_path):
    bringer, ended = Bringer(), []
    async with about_to_change(tmp_path, bringer, ended) as (driver, single, _, step):
        single[0].die()
        await until(lambda: driver._engines._replacements.ready or "engine-0-r1" in driver.engines)
        await turns(20)
        await driver.leave_gpus(["engine-0", "engine-1"])
        assert ended == []
        assert bringer.brought["engine-0-r1"].is_asleep
        await driver.publish(weights(step))
        assert list(driver.engines) == ["engine-tp2-0"]
        assert bringer.brought["engine-0-r1"].is_asleep
        assert batch_of(await driver.next_batch(step))
        await driver.quiesce()


async def test_a_replacement_that_has_started_while_its_fleet_goes_to_sleep_goes_to_sleep_too(tmp_path):
    bringer, ended = Bringer(), []
    bringer.may_start.clear()

    class Slow(ScriptedEngine):
        async def sleep(self):
            bringer.may_start.set()
            await turns(20)
            await super().sleep()

    async with about_to_change(tmp_path, bringer, ended, Slow) as (driver, single, double, step):
        single[0].die()
        await until(lambda: bringer.asked)
        await driver.publish(weights(step))
        assert list(driver.engines) == ["engine-tp2-0"]
        started = bringer.brought["engine-0-r1"]
        assert started.is_asleep, "its GPU is another's"
        assert batch_of(await driver.next_batch(step))
        await driver.quiesce()
        assert driver._engines._sets.all == {"engine-1": single[1], "engine-0-r1": started, "engine-tp2-0": double[0]}
        assert not driver._scheduler.restarts.are_expected(["engine-1", "engine-tp2-0"])
        assert len(bringer.asked) == 1


async def test_a_driver_that_stops_calls_off_what_is_under_way(tmp_path):
    engine, bringer = ScriptedEngine("engine-0", never), Bringer()
    bringer.may_start.clear()
    async with driving(tmp_path, [engine], replace=bringer) as driver:
        engine.die()
        rolling = asyncio.create_task(driver.next_batch(0))
        await until(lambda: bringer.asked)
        rolling.cancel()
        await asyncio.gather(rolling, return_exceptions=True)
    left = {task.get_name() for task in asyncio.all_tasks()}
    assert not [name for name in left if name.startswith(("replacement", "pump"))]


async def test_a_replaced_engine_may_be_lost_and_replaced_again(tmp_path):
    class Once(ScriptedEngine):
        """Finishes one request and dies."""

        async def generate(self, requests):
            if self.requests:
                return
            await super().generate(requests[:1])
            await until(lambda: not self.running)
            self.die()

    rewards = ScriptedReward()
    async with driving(
        tmp_path, [Once("engine-0", quick)], reward=rewards, replace=Bringer(make=Once), max_restarts=10
    ) as driver:
        record = await driver.next_batch(0)
        assert batch_of(record) == WHOLE_BATCH
        assert sorted(rewards.scored) == sorted(set(rewards.scored)), "nothing twice"
        assert len(engines_of(record)) == 8
        await driver.quiesce()
