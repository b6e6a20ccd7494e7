"""Larger engines take over in the midst of a round: scripted ones, and ones with a model."""

from dataclasses import replace

import numpy as np

from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.ids import EngineId
from rollpacker.core.round_time_model import DegreeCosts
from rollpacker.core.settings import ParallelismSettings, StreamSettings
from rollpacker.core.tail_escalation_settings import TailEscalationSettings
from rollpacker.engines.torch.engine import TorchEngine
from rollpacker.protocols.backend import Fleet
from rollpacker.transfer.snapshots import SnapshotSync
from tests.engines.exercises import weights_of
from tests.engines.tiny import make_model
from tests.runtime.driving import WHOLE_BATCH, batch_of, driving, fleet_of, settings, turns, until, weights
from tests.runtime.scripted import ScriptedEngine


def costs_of(degree, num_engines, full_s=3.0):
    """A token takes a second; on a larger engine half of one, but more in large batches."""
    return DegreeCosts(
        degree=degree,
        num_engines=num_engines,
        max_num_seqs=8,
        kv_tokens=1000,
        batch_sizes=(1.0, 2.0, 4.0),
        pass_s=(1.0, 1.0, 1.0) if degree == 1 else (0.5, 0.5, full_s),
        kv_read_s=0.0,
        prefill_s=0.0,
    )


def planner_of(num_engines=4, full_s=3.0, **escalation):
    return ParallelismSettings(
        degrees=(1, 2),
        initial=1,
        costs=(costs_of(1, num_engines), costs_of(2, num_engines // 2, full_s)),
        escalation=TailEscalationSettings(max_response_tokens=8, first_cost_s=0.0, **escalation),
    )


def half(request):
    """Half of the first batch's prompts end, and the others do not."""
    return 1 if request.round > 0 or request.prompt.key < "2" else None


async def fleets_of(*, small=half, num_small=4):
    singles = [ScriptedEngine(f"engine-{i}", small) for i in range(num_small)]
    doubles = [ScriptedEngine(f"engine-tp2-{i}", lambda _: 1) for i in range(num_small // 2)]
    for engine in doubles:
        await engine.sleep()
    return singles, doubles, {1: fleet_of(singles), 2: fleet_of(doubles, 2)}


async def test_larger_engines_finish_the_round_from_the_tokens_that_there_are_and_small_ones_begin_the_next(tmp_path):
    singles, doubles, fleets = await fleets_of()
    async with driving(tmp_path, policy=settings(parallelism=planner_of()), fleets=fleets) as driver:
        assert [engine.stands_by for engine in doubles] == [True, True]
        record = await driver.next_batch(0)
        assert batch_of(record) == WHOLE_BATCH
        moved = {request: engine for engine in doubles for request in engine.requests}
        assert {request.prompt.key for request in moved} == {"2", "3"}
        assert {len(engine.requests) for engine in doubles} == {2}, "they share what was under way"
        assert all(engine.requests[request].begun.num_tokens == 1 for request, engine in moved.items())
        assert [engine.is_asleep for engine in (*singles, *doubles)] == [True] * 4 + [False] * 2
        await driver.quiesce()
        costs = await driver.measure_round()
        assert (costs.tensor_parallel, costs.escalated_from, costs.num_engines) == (2, 1, 2)
        assert costs.growth("num_generated_tokens") == 4 * 3 + 4 * 1 + 4 * 3, "before the change, and after it"
        await driver.publish(weights(1))
        assert [engine.stands_by for engine in doubles] == [True, True]
        assert {engine.policy_version for engine in (*singles, *doubles)} == {1}
        following = await driver.next_batch(1)
        assert {request.engine for request in following.requests.values()} <= {engine.engine for engine in singles}
        await driver.quiesce()
        assert (await driver.measure_round()).escalated_from is None


async def test_larger_engines_on_lent_gpus_sleep_until_the_next_weights(tmp_path):
    singles, doubles, fleets = await fleets_of()
    policy = settings(
        parallelism=planner_of(full_s=0.5, gpus=((0, 1), (2, 3))),
        stream=StreamSettings(replicas=((0, 1), (2, 3)), max_response_tokens=8),
    )
    async with driving(tmp_path, policy=policy, fleets=fleets) as driver:
        record = await driver.next_batch(0)
        assert batch_of(record) == WHOLE_BATCH
        [(_, lent)] = driver.lent
        assert [engine.is_asleep for engine in doubles] == [set(gpus) <= lent for gpus in ({0, 1}, {2, 3})]
        assert all(engine.is_asleep for engine in singles)
        await driver.quiesce()
        await driver.measure_round()
        await driver.publish(weights(1))  # the planner keeps the larger engines: by their costs they are faster
        assert list(driver.engines) == [engine.engine for engine in doubles]
        assert batch_of(await driver.next_batch(1)) == [(f"{index}@0", [0, 1]) for index in range(4, 8)]
        assert all(any(request.round == 1 for request in engine.requests) for engine in doubles)
        await driver.quiesce()


async def test_no_larger_engine_starts_on_lent_gpus_in_the_place_of_one_that_was_lost(tmp_path):
    _, doubles, fleets = await fleets_of()
    policy = settings(
        parallelism=planner_of(full_s=0.5, gpus=((0, 1), (2, 3))),
        stream=StreamSettings(replicas=((0, 1), (2, 3)), max_response_tokens=8),
    )
    asked, ended = [], []

    async def start(slot, name):
        asked.append(slot)
        return ScriptedEngine(name, lambda _: 1)

    async def end(slot):
        ended.append(slot)

    async with driving(tmp_path, policy=policy, fleets=fleets, replace=start, end_engine=end) as driver:
        doubles[0].die()
        await until(lambda: driver.notes)
        await driver.next_batch(0)
        await turns(20)
        assert driver.lent == [(0, frozenset({0, 1}))]
        assert set(ended) == {"engine-tp2-0"}, "one that hangs would keep its memory"
        assert asked == []
        await driver.quiesce()
        await driver.measure_round()
        await driver.publish(weights(1))
        await until(lambda: asked == ["engine-tp2-0"])


async def test_a_larger_engine_that_is_lost_while_it_stands_by_is_not_waited_for(tmp_path):
    _, doubles, fleets = await fleets_of()
    async with driving(tmp_path, policy=settings(parallelism=planner_of(full_s=0.5)), fleets=fleets) as driver:
        doubles[1].die()
        await until(lambda: driver.notes)
        record = await driver.next_batch(0)
        assert batch_of(record) == WHOLE_BATCH
        assert len(doubles[0].requests) == 4
        await driver.quiesce()


async def test_engines_that_stand_by_end_with_the_others_for_a_last_checkpoint(tmp_path):
    singles, doubles, fleets = await fleets_of()
    async with driving(tmp_path, policy=settings(parallelism=planner_of()), fleets=fleets) as driver:
        await driver.end_engines([engine.engine for engine in (*singles, *doubles)])
        assert all(engine.is_closed for engine in (*singles, *doubles))


async def test_a_small_engine_that_is_lost_as_it_makes_place_takes_nothing_with_it(tmp_path):
    singles, doubles, fleets = await fleets_of()

    class Dying(ScriptedEngine):
        async def abort(self, requests):
            del requests
            self.die()

    dying = Dying("engine-0", half)
    fleets[1] = fleet_of([dying, *singles[1:]])
    async with driving(tmp_path, policy=settings(parallelism=planner_of()), fleets=fleets) as driver:
        record = await driver.next_batch(0)
        assert batch_of(record) == WHOLE_BATCH
        assert sum(len(engine.requests) for engine in doubles) == 4
        await driver.quiesce()
        await driver.measure_round()
        await driver.publish(weights(1))
        assert list(driver.engines) == [engine.engine for engine in singles[1:]]


class Policy:
    """Exports a model's weights."""

    def __init__(self, model):
        self._model = model

    async def export_weights(self):
        return weights_of(self._model, 0)


async def test_samples_are_the_same_whoever_finishes_them(tmp_path):
    alone, costs = await rolled_out(tmp_path / "alone", escalates=False)
    assert costs.escalated_from is None
    moved, costs = await rolled_out(tmp_path / "moved", escalates=True)
    assert costs.escalated_from == 1
    assert {response.engine for response in moved.values()} > {"engine-tp2-0"}
    for request, response in alone.items():
        assert moved[request].token_ids.tolist() == response.token_ids.tolist()
        np.testing.assert_allclose(moved[request].logprobs, response.logprobs, atol=1e-5)


async def rolled_out(folder, *, escalates):
    """Roll out a batch on engines with a model, each of which decodes one response after the other."""
    folder.mkdir()
    model = make_model("qwen2")
    model.save_pretrained(folder / "model")
    names = [EngineId(name) for name in ("engine-0", "engine-1", "engine-tp2-0")]
    section = EngineSection(max_num_seqs=1)
    engines = {name: TorchEngine(name, folder / "model", section, 256, "float32") for name in names}
    await engines[names[2]].sleep()
    planner = planner_of(num_engines=2, full_s=0.5)
    policy = settings(parallelism=planner if escalates else replace(planner, escalation=None))
    fleets = {
        1: Fleet(engines={name: engines[name] for name in names[:2]}),
        2: Fleet(engines={names[2]: engines[names[2]]}),
    }
    try:
        async with driving(folder, policy=policy, fleets=fleets, sync=SnapshotSync(Policy(model), 5.0)) as driver:
            record = await driver.next_batch(0)
            await driver.quiesce()
            costs = await driver.measure_round()
    finally:
        for engine in engines.values():
            await engine.close()
    return {request: each.response for request, each in record.requests.items()}, costs
