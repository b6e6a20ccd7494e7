"""The driver carries facts in and commands out, over any engines and any reward."""

import asyncio
import itertools
import random
from fractions import Fraction

import pytest

from rollpacker.core.commands import RoundKind
from rollpacker.core.errors import DeadlineExceeded, EngineFailed, RollpackerError
from rollpacker.core.events import DraftPasses
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.core.settings import ParallelismSettings, SpeculativeDecodingSettings
from rollpacker.protocols.rollout import FinishReason
from rollpacker.runtime.rollout.requests import sample_seed
from tests.runtime.driving import PROMPTS, WHOLE_BATCH, batch_of, driving, fleet_of, lending, settings, until, weights
from tests.runtime.scripted import ScriptedEngine, ScriptedReward

STALL_S = 0.5
"""What hangs for ever is waited for so long, and nothing else takes that, also where many processes share a core."""


@pytest.mark.parametrize("seed", range(5))
async def test_a_plain_batch_is_the_same_in_whatever_order_its_responses_finish(tmp_path, seed):
    rng = random.Random(seed)
    engines = [ScriptedEngine(f"engine-{i}", lambda _: rng.randrange(30)) for i in range(2)]
    async with driving(tmp_path, engines) as driver:
        record = await driver.next_batch(0)
        await driver.quiesce()
    assert record.begin.kind is RoundKind.PLAIN
    assert batch_of(record) == WHOLE_BATCH
    assert all(len(group.rewards) == 2 for group in record.groups())


async def test_in_a_short_round_the_slow_are_aborted_and_run_again_in_the_long_round(tmp_path):
    slow = {"1": None, "6": None}

    def turns(request):
        return slow.get(request.prompt.key, 1)

    async with driving(
        tmp_path, [ScriptedEngine("engine-0", turns)], policy=settings("tail", Fraction(3, 2))
    ) as driver:
        kinds, trained = [], []
        for step in range(3):
            if step == 2:
                slow.clear()
            record = await driver.next_batch(step)
            await driver.quiesce()
            kinds.append(record.begin.kind)
            trained += [group.prompt for group in record.groups()]
            reasons = {str(r.request): r.response.finish_reason for r in record.requests.values()}
            assert set(reasons.values()) <= {FinishReason.STOP, FinishReason.ABORTED}
    assert kinds == [RoundKind.SHORT, RoundKind.SHORT, RoundKind.LONG]
    assert len(set(trained)) == len(trained) == 12
    assert {PromptId(0, "1"), PromptId(0, "6")} <= set(trained[8:])


async def test_quiesce_waits_until_every_engine_has_confirmed_its_aborts(tmp_path):
    engine = ScriptedEngine("engine-0", lambda request: 1 if request.prompt.key < "4" else None)
    async with driving(tmp_path, [engine], policy=settings("tail")) as driver:
        record = await driver.next_batch(0)
        await driver.quiesce()
        await driver.publish(weights(1))
    assert all(request.response is not None for request in record.requests.values())


async def test_the_requests_of_a_lost_engine_run_on_the_others(tmp_path):
    dying = ScriptedEngine("engine-1", lambda _: None)
    healthy = ScriptedEngine("engine-0", lambda _: 2)
    async with driving(tmp_path, [healthy, dying]) as driver:
        dying.die()
        record = await driver.next_batch(0)
        assert batch_of(record) == WHOLE_BATCH
        assert {request.engine for request in record.requests.values()} == {"engine-0"}
        assert list(driver.engines) == ["engine-0"]
        assert driver.notes == [
            "The process of engine-1 died. Its requests go to the other engines. It cannot be replaced."
        ]
        await driver.quiesce()


async def test_losing_the_last_engine_ends_the_round_with_its_name(tmp_path):
    engine = ScriptedEngine("engine-0", lambda _: None)
    async with driving(tmp_path, [engine]) as driver:
        engine.die()
        with pytest.raises(EngineFailed, match="engine-0"):
            await driver.next_batch(0)


async def test_a_stalled_rollout_says_what_it_waits_for(tmp_path):
    engines = [ScriptedEngine("engine-0", lambda _: 1), ScriptedEngine("engine-1", lambda _: None)]
    async with driving(tmp_path, engines, stall_s=STALL_S) as driver:
        with pytest.raises(DeadlineExceeded, match="4 responses of engine-1"):
            await driver.next_batch(0)


async def test_an_abort_that_an_engine_ignores_is_named_too(tmp_path):
    deaf = ScriptedEngine("engine-0", lambda request: 1 if request.prompt.key < "4" else None, ignores_aborts=True)
    async with driving(tmp_path, [deaf], policy=settings("tail"), stall_s=STALL_S) as driver:
        await driver.next_batch(0)
        with pytest.raises(DeadlineExceeded, match="responses of engine-0"):
            await driver.quiesce()


async def test_nothing_waits_for_the_aborts_of_an_engine_that_is_lost(tmp_path):
    engines = [
        ScriptedEngine(f"engine-{i}", lambda request: 1 if request.prompt.key < "4" else None, ignores_aborts=i == 1)
        for i in range(2)
    ]
    async with driving(tmp_path, engines, policy=settings("tail"), stall_s=STALL_S) as driver:
        await driver.next_batch(0)
        engines[1].die()
        await driver.quiesce()
        assert list(driver.engines) == ["engine-0"]


class Unhearing(ScriptedEngine):
    """Accepts no order, and does not say so."""

    async def generate(self, requests):
        del requests
        await asyncio.Event().wait()


async def test_an_engine_that_accepts_no_orders_holds_no_other_up_and_is_lost_in_the_end(tmp_path):
    well = ScriptedEngine("engine-1", lambda _: 1)
    async with driving(tmp_path, [Unhearing("engine-0", lambda _: 1), well], engine_call_s=STALL_S) as driver:
        rolling = asyncio.create_task(driver.next_batch(0))
        await until(lambda: len(well.requests) == 4 and not well.running)
        assert list(driver.engines) == ["engine-0", "engine-1"], "the one that works has finished before that"
        batch = await rolling
        assert len(batch.accepted) == 4
        assert {record.engine for record in batch.requests.values()} == {"engine-1"}
        assert list(driver.engines) == ["engine-1"]
        assert f"Waited {STALL_S:g} s for engine-0 to take its orders" in driver.notes[0]
        await driver.quiesce()


async def test_facts_that_come_while_the_trainer_learns_are_noted_when_they_come(tmp_path):
    """Nobody awaits the driver meanwhile."""
    engine = ScriptedEngine("engine-0", lambda request: 1 if request.prompt.key < "4" else None)
    async with driving(tmp_path, [engine], policy=settings("tail")) as driver:
        batch = await driver.next_batch(0)
        unfinished = [record for record in batch.requests.values() if record.response is None]
        assert unfinished
        await until(lambda: all(record.finished_at_s is not None for record in unfinished))


async def test_a_reward_that_fails_ends_the_rollout_with_its_reason(tmp_path):
    def fail(request):
        raise RollpackerError("the checker is broken")

    async with driving(tmp_path, [ScriptedEngine("engine-0", lambda _: 1)], reward=ScriptedReward(fail)) as driver:
        with pytest.raises(RollpackerError, match="the checker is broken"):
            await driver.next_batch(0)


async def test_a_run_over_finite_data_ends_when_every_prompt_was_trained_once(tmp_path):
    trained = []
    async with driving(tmp_path, [ScriptedEngine("engine-0", lambda _: 1)], policy=settings("tail")) as driver:
        for step in range(100):
            record = await driver.next_batch(step)
            await driver.quiesce()
            if record is None:
                break
            trained += [group.prompt for group in record.groups()]
    assert sorted(trained) == sorted(PromptId(0, key) for key in PROMPTS)


async def test_every_sample_has_a_seed_of_its_own_that_depends_on_its_names_only(tmp_path):
    engines = [ScriptedEngine(f"engine-{i}", lambda _: 1) for i in range(3)]
    async with driving(tmp_path, engines) as driver:
        await driver.next_batch(0)
        await driver.quiesce()
    seeds = {request: sent.seed for engine in engines for request, sent in engine.requests.items()}
    assert len(set(seeds.values())) == 8
    for request, seed in seeds.items():
        assert seed == sample_seed(7, request)
    assert sample_seed(7, RequestId(0, PromptId(0, "a"), 0)) == 4633935478271565051


async def test_lent_engines_sleep_once_their_requests_went_on_elsewhere_and_wake_with_the_next_weights(tmp_path):
    """Half of the requests finish at once; what the lent engine still had goes on from the tokens that it has."""
    async with lending(tmp_path) as (driver, record, lent, kept):
        assert driver.lent == [(0, {"engine-0": {0}, "engine-1": {1}}[lent.engine])]
        moved = {request for request, sent in kept.requests.items() if sent.begun is not None}
        assert moved
        assert moved <= lent.requests.keys()
        assert all(kept.requests[request].begun.engine == lent.engine for request in moved)
        assert batch_of(record) == WHOLE_BATCH
        await driver.quiesce()
        costs = await driver.measure_round()
        assert costs.num_engines_lent == 1
        await driver.publish(weights(1))
        assert not lent.is_asleep
        await driver.next_batch(1)
        await driver.quiesce()


async def test_an_engine_lost_while_it_is_lent_costs_nothing_but_itself(tmp_path):
    async with lending(tmp_path) as (driver, record, lent, _):
        lent.die()
        await driver.quiesce()
        await driver.publish(weights(1))
        following = await driver.next_batch(1)
        await driver.quiesce()
    assert len(batch_of(record)) == len(batch_of(following)) == 4
    assert [note.split(". ")[0] for note in driver.notes] == [f"The process of {lent.engine} died"]


async def test_a_planner_moves_a_run_to_the_other_fleet_between_two_rounds(tmp_path):
    """The engines preempt more and more, so the degree doubles; the weights go to the new engines alone."""
    single = [ScriptedEngine(f"engine-{i}", lambda _: 1, preemptions=itertools.accumulate(range(99))) for i in range(2)]
    double = [ScriptedEngine("engine-tp2-0", lambda _: 1)]
    await double[0].sleep()
    policy = settings(parallelism=ParallelismSettings(degrees=(1, 2), initial=1))
    fleets = {1: fleet_of(single), 2: fleet_of(double, 2)}
    async with driving(tmp_path, policy=policy, fleets=fleets) as driver:
        degrees, switches = [], []
        for step in range(3):
            record = await driver.next_batch(step)
            assert len(batch_of(record)) == 4
            await driver.quiesce()
            degrees.append((await driver.measure_round()).tensor_parallel)
            if step < 2:  # the last measurement may order the way back: these engines are fast or slow by chance
                await driver.publish(weights(step + 1))
                switches.append(driver.turnover().switch_time_s > 0)
    assert degrees == [1, 1, 2]
    assert switches == [False, True]
    assert [engine.is_asleep for engine in (*single, *double)] == [True, True, False]
    assert double[0].policy_version == 2 > single[0].policy_version


async def test_engines_draft_by_what_their_passes_gained_in_the_round_before(tmp_path):
    engines = [ScriptedEngine(f"engine-{i}", lambda _: 1) for i in range(2)]
    drafts = SpeculativeDecodingSettings(max_sequences=1, lengths=(0, 2), num_trial_passes=20)
    async with driving(tmp_path, engines, policy=settings(speculative_decoding=drafts)) as driver:
        for step in range(2):
            await driver.next_batch(step)
            for engine in engines:  # totals; of them, the second round has the same again
                n = step + 1
                engine.draft_passes = (
                    DraftPasses(1, 0, 80 * n, 80 * n, 0, 0, 80.0 * n),
                    DraftPasses(1, 2, 10 * n, 10 * n, 20 * n, 15 * n, 11.0 * n),
                )
            await driver.quiesce()
            costs = await driver.measure_round()
            assert {passes[0].num_passes for passes in costs.draft_passes().values()} == {80}
            await driver.publish(weights(step + 1))
        await driver.next_batch(2)
        await driver.quiesce()
    lengths = [[rule.draft_length for rule in rules] for rules in engines[0].draft_rules]
    assert lengths == [[0], [2], [2]], "both engines together have seen 20 trials"
    assert engines[1].draft_rules == engines[0].draft_rules


async def test_without_speculative_decoding_no_engine_is_told_how_to_draft(tmp_path):
    engines = [ScriptedEngine("engine-0", lambda _: 1)]
    async with driving(tmp_path, engines) as driver:
        await driver.next_batch(0)
        await driver.quiesce()
    assert engines[0].draft_rules == []


async def test_a_stream_that_fails_ends_the_round_that_runs_at_once(tmp_path):
    """Its engines never finish; what fails is the trainer, which only a stream asks for something by then."""
    engines = [ScriptedEngine("engine-0", lambda _: None)]
    async with driving(tmp_path, engines) as driver:
        driver.interrupt(EngineFailed("The process of trainer-1 died."))
        with pytest.raises(EngineFailed, match="trainer-1"):
            await driver.next_batch(0)
