"""What is measured of modelled workers is what the model says of them, in its own time."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rollpacker.config.compose import compose
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.sandbox import SandboxSection
from rollpacker.core.errors import DeadlineExceeded
from rollpacker.core.events import CaseRun
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId
from rollpacker.metrics.profiles import ENGINE_MEASUREMENTS, MEASUREMENTS, ProfileFacts
from rollpacker.profiling.probes.reward import scoring_time_s
from rollpacker.profiling.probes.trainer import of_equal_tokens
from rollpacker.profiling.profiler import NUM_REPEATS, measure
from rollpacker.profiling.workload import Workload
from rollpacker.protocols.rollout import FinishReason, Response, RolloutGroup, Verdict
from rollpacker.sim import decoder
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.plan import plan_cluster
from rollpacker.sim.virtual_time import run_in_virtual_time
from rollpacker.sim.workload import Workload as Modelled

FACTS = ProfileFacts(
    hardware="modelled",
    model="{}",
    dtype="bfloat16",
    num_parameters=1,
    num_weight_bytes=1,
    engine="torch",
    trainer="torch",
    num_engines=1,
    engine_threads=1,
    trainer_threads=1,
    collect_interval_s=0.03,
    measured_on="2026-11-21",
    rollpacker_version="0.1",
    num_trainer_gpus=None,
)


def config_of(system, tmp_path, *words):
    return compose(
        [
            "backend=sim",
            "hardware=h800",
            "hardware.rollout_start_s=0",
            "model=qwen2.5-7b",
            "workload=math",
            f"system={system}",
            "engine.num_engines=1",
            "engine.max_num_seqs=16",
            "trainer.tensor_parallel=1",
            "rollout.num_prompts=4",
            "rollout.num_responses=2",
            "rollout.max_response_tokens=200",
            f"run.dir={tmp_path / 'run'}",
            *words,
        ]
    )


class OnSharedGpu:
    """A modelled worker on a GPU that it shares; asleep it can do nothing."""

    def __init__(self, worker, awake, name, calls):
        self._worker, self._awake, self._name, self._calls = worker, awake, name, calls

    def __getattr__(self, call):
        if call in self._calls:
            assert self._awake == {self._name}, f"{self._name} was asked to {call} while {self._awake} had the GPU"
        return getattr(self._worker, call)

    async def sleep(self):
        self._awake.discard(self._name)
        await self._worker.sleep()

    async def wake(self):
        self._awake.add(self._name)
        await self._worker.wake()


class SharedGpuBackend(ModelledBackend):
    """Engines and the trainer on the same GPUs."""

    @asynccontextmanager
    async def open(self, surroundings):
        awake = {"trainer"}
        async with super().open(surroundings) as workers:
            fleets = {
                degree: replace(
                    fleet,
                    engines={
                        name: OnSharedGpu(engine, awake, f"engines of TP {degree}", ("generate", "load_weights"))
                        for name, engine in fleet.engines.items()
                    },
                )
                for degree, fleet in workers.fleets.items()
            }
            trainer = OnSharedGpu(workers.trainer, awake, "trainer", ("begin_step", "accumulate", "export_weights"))
            names = frozenset(name for fleet in fleets.values() for name in fleet.engines)
            yield replace(workers, fleets=fleets, trainer=trainer, colocated_engines=names)


class Silent:
    """A modelled engine whose responses never arrive."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, call):
        return getattr(self._engine, call)

    async def collect(self):
        await asyncio.Event().wait()


class SilentBackend(ModelledBackend):
    @asynccontextmanager
    async def open(self, surroundings):
        async with super().open(surroundings) as workers:
            [(degree, fleet)] = workers.fleets.items()
            engines = {name: Silent(engine) for name, engine in fleet.engines.items()}
            yield replace(workers, fleets={degree: replace(fleet, engines=engines)})


def measured(config, tmp_path, backend=ModelledBackend):
    return run_in_virtual_time(
        measure(
            config,
            backend(config),
            FACTS,
            logs=tmp_path / "logs",
            on_progress=lambda *_: None,
            on_note=lambda _: None,
        )
    )


@pytest.mark.parametrize(
    ("system", "num_launched"),
    [("verl", 4 * 2), ("tail", 5 * 3), ("tail-reward", 5 * 3)],
)
def test_a_profile_of_modelled_workers_has_their_costs(system, num_launched, tmp_path):
    config = config_of(system, tmp_path)
    plan = plan_cluster(config, needs_judge=False)
    profile = measured(config, tmp_path)
    assert {point.measurement for point in profile.points} == {*MEASUREMENTS} - {"sandbox_start", "program"}
    for point in profile.of("decode"):
        if point.num_items == round(point.num_items):  # else some ended within the window
            pass_s = plan.engine.pass_s(round(point.num_items)) + plan.engine.kv_read_s * point.num_tokens
            assert point.seconds == pytest.approx(pass_s, rel=1e-3)
    [update], [sync], [kv_cache] = (profile.of(name) for name in ("update", "weight_sync", "kv_cache"))
    assert update.seconds == pytest.approx(plan.trainer.update_s())
    assert sync.seconds == pytest.approx(plan.weight_transfer_s(1))
    assert kv_cache.num_tokens == plan.engine.num_kv_tokens
    for name in ("first_rollout", "first_train"):  # a modelled worker does nothing only once
        [first] = profile.of(name)
        assert (first.seconds, first.num_repeats) == (pytest.approx(0, abs=1e-9), 1)
    assert {point.num_items for point in profile.of("request")} == {1, max(1, num_launched // 8), num_launched}
    assert all(point.num_repeats >= NUM_REPEATS for point in profile.of("train"))
    assert {point.num_items for point in profile.of("train")} == {2, 4, 8}


def prefill_s(costs, size, context, budget):
    """Of prompts of equal lengths, each pass as full as the budget allows."""
    bounds = [*range(0, size * context, budget), size * context]
    return sum(
        costs.prefill_pass_s(
            0,
            [
                (max(begin - first, 0), min(end - first, context))
                for first in range(0, size * context, context)
                if begin < first + context and end > first
            ],
        )
        for begin, end in pairwise(bounds)
    )


@pytest.mark.parametrize("budget", [500, 2048, 8192, 1_000_000])
def test_passes_are_told_apart_however_many_the_prompts_of_a_batch_take(budget, tmp_path, monkeypatch):
    """Also where a prompt takes several itself, and where sequences decode beside the prompts of later ones."""
    monkeypatch.setattr(decoder, "PREFILL_TOKENS_PER_PASS", budget)
    words = ("engine.max_num_seqs=66", "data.max_prompt_tokens=1024", "rollout.max_response_tokens=1024")
    config = config_of("verl", tmp_path, "rollout.num_prompts=32", *words)
    costs = plan_cluster(config, needs_judge=False).engine
    profile = measured(config, tmp_path)
    prefilled = profile.of("prefill")
    assert {point.num_items for point in prefilled} == {1, 2, 4, 8, 16, 32, 64}
    for point in prefilled:
        size = round(point.num_items)
        true_s = prefill_s(costs, size, round(point.num_tokens / size), budget)
        assert point.seconds == pytest.approx(true_s, rel=1e-6)
    decoded = profile.of("decode")
    assert len(decoded) == len(prefilled)
    for point in decoded:
        true_s = costs.pass_s(point.num_items) + costs.kv_read_s * point.num_tokens
        assert point.seconds == pytest.approx(true_s, rel=0.02)
    assert max(point.num_items for point in decoded) == pytest.approx(64, rel=0.1), "the sequences met"
    assert profile.of("ending")
    for point in profile.of("ending"):  # a median of rounds whose lengths differ, and means
        true_s = costs.pass_s(point.num_items) + costs.kv_read_s * point.num_tokens
        assert point.seconds == pytest.approx(true_s, rel=0.03)


def test_a_batch_that_the_kv_cache_does_not_hold_is_not_measured_as_if_it_ran(tmp_path):
    """Some of it would wait or be preempted: the time of another size."""
    words = ("engine.max_num_seqs=66", "data.max_prompt_tokens=1024", "rollout.max_response_tokens=1024")
    config = config_of("verl", tmp_path, "rollout.num_prompts=32", *words, "hardware.memory_gb=18.2")
    costs = plan_cluster(config, needs_judge=False).engine
    profile = measured(config, tmp_path)
    sizes = Counter(round(point.num_tokens / point.num_items) for point in profile.of("prefill"))
    assert (costs.num_kv_tokens, sizes) == (20_032, {256: 7, 674: 5, 2022: 4}), "up to 64, 16 and 8 sequences"
    assert len(profile.of("decode")) == sizes.total()
    for point in profile.of("decode"):
        true_s = costs.pass_s(point.num_items) + costs.kv_read_s * point.num_tokens
        assert point.seconds == pytest.approx(true_s, rel=0.02)
    assert profile.of("ending"), "of a round that is larger than the cache, as much as fits"
    for point in profile.of("ending"):  # a median of rounds whose lengths differ, and means
        true_s = costs.pass_s(point.num_items) + costs.kv_read_s * point.num_tokens
        assert point.seconds == pytest.approx(true_s, rel=0.03)


def test_of_a_round_with_more_requests_than_slots_as_many_are_rolled_out_as_there_are(tmp_path):
    """So that the profile has all that a modelled run asks of it."""
    profile = measured(config_of("verl", tmp_path, "rollout.num_prompts=16"), tmp_path)
    assert {*ENGINE_MEASUREMENTS} <= {point.measurement for point in profile.points}
    assert max(point.num_items for point in profile.of("ending")) <= 16


def test_a_batch_may_take_longer_than_the_deadline_as_long_as_responses_arrive(tmp_path):
    """One of 76 s, in which none arrives for 60 s."""
    words = ("rollout.max_response_tokens=16384", "backend.deadlines.rollout_stall_s=65")
    config = config_of("verl", tmp_path, *words)
    assert measured(config, tmp_path).of("ending")
    with pytest.raises(DeadlineExceeded, match="Waited 65 s for an answer of what is measured"):
        measured(config, tmp_path, SilentBackend)


def test_no_two_bursts_have_a_prompt_in_common_and_a_group_shares_one():
    config = compose(["backend=sim", "model=qwen2.5-7b", "hardware=h800", "workload=math", "rollout.num_responses=2"])
    [prompt] = [replace(each, token_ids=np.arange(5000)) for each in list(Modelled(config).prompts.values())[:1]]
    workload = Workload(config, [prompt])
    bursts = [workload.requests(64, [1] * 4, 1.0) for _ in range(20)]
    for a, b, c, d in bursts:
        assert a.prompt_token_ids.tolist() == b.prompt_token_ids.tolist()
        assert c.prompt_token_ids.tolist() == d.prompt_token_ids.tolist()
    assert len({burst[index].prompt_token_ids.tobytes() for burst in bursts for index in (0, 2)}) == 40


def test_a_round_s_start_is_told_from_its_first_token_and_what_a_sequence_costs_from_its_tokens(tmp_path):
    words = ("hardware.rollout_start_s=7", "hardware.engine_switch_s=0.5", "hardware.training_sequence_overhead_s=0.3")
    profile = measured(config_of("verl", tmp_path, *words), tmp_path)
    [wake], [start] = profile.of("wake"), profile.of("rollout_start")
    assert (wake.seconds, start.seconds) == (pytest.approx(0.5), pytest.approx(7, abs=1e-3))
    few, many = profile.of("train_lengths")
    assert (many.num_items, many.num_tokens) == (8 * few.num_items, few.num_tokens)
    assert (many.seconds - few.seconds) / (many.num_items - few.num_items) == pytest.approx(0.3, rel=1e-2)


@pytest.mark.parametrize(
    ("system", "words"),
    [("tail-reward", ()), ("rollpacker", ("engine.num_engines=2", "engine.degrees=[1,2]"))],
    ids=str,
)
def test_engines_and_trainer_that_share_gpus_take_turns_and_each_point_is_without_engines_switches(
    system, words, tmp_path
):
    """`wake` tells it, and a modelled run adds it to each round."""
    config = config_of(system, tmp_path, *words)
    apart, shared = (measured(config, tmp_path, backend) for backend in (ModelledBackend, SharedGpuBackend))
    assert [(point.measurement, point.tensor_parallel, point.num_items) for point in shared.points] == [
        (point.measurement, point.tensor_parallel, point.num_items) for point in apart.points
    ]
    assert [each.seconds for each in shared.points] == pytest.approx([each.seconds for each in apart.points], abs=1e-6)


def test_bytes_of_a_token_are_of_all_gpus_of_an_engine_each_with_a_head_where_there_are_fewer_heads(tmp_path):
    words = ("engine.num_engines=2", "engine.degrees=[1,2]", "model.shape.num_kv_heads=1")
    one, two = measured(config_of("rollpacker", tmp_path, *words), tmp_path).of("kv_cache")
    assert (one.num_bytes, two.num_bytes) == (28 * 2 * 128 * 2, 2 * 28 * 2 * 128 * 2)


@pytest.mark.parametrize("num_prompts", [1, 3, 16])
def test_the_same_tokens_come_in_few_long_sequences_and_in_eight_times_as_many_short_ones(num_prompts):
    few, many = of_equal_tokens([group(index) for index in range(num_prompts)], longest=300)
    assert len(many) == 8 * len(few) == 8 * max(1, num_prompts // 8)
    lengths = [
        [len(each.prompt_token_ids) + response.num_tokens for each in groups for response in each.responses]
        for groups in (few, many)
    ]
    assert sum(lengths[0]) == sum(lengths[1])
    assert set(lengths[0]) == {8 * length for length in lengths[1]}
    assert max(lengths[0]) <= 300
    assert len({each.prompt for each in many}) == len(many), "a step takes each prompt once"


def group(index):
    """Two responses of different lengths."""
    responses = tuple(
        Response(
            request=RequestId(0, PromptId(0, f"p{index}"), sample),
            engine=EngineId("engine-0"),
            finish_reason=FinishReason.STOP,
            token_ids=np.arange(10 + index + sample, dtype=np.int32),
            logprobs=np.zeros(10 + index + sample, dtype=np.float32),
            spans=(),
            queue_time_s=0.0,
            generation_time_s=0.0,
        )
        for sample in range(2)
    )
    return RolloutGroup(
        prompt=PromptId(0, f"p{index}"),
        domain=Domain("math"),
        prompt_token_ids=np.arange(1, 40, dtype=np.int32),
        responses=responses,
        rewards=(0.0, 0.0),
    )


def test_programs_are_timed_without_their_sandboxes_start_and_only_those_that_no_limit_stopped(tmp_path):
    """Modelled programs take the paper's times; those that never end are stopped at 30 s."""
    words = ("reward.kinds.math=sandbox", "workload.endless_share=0.3", "reward.timeout_s=30", "reward.num_workers=64")
    profile = measured(config_of("tail-reward", tmp_path, *words, "reward.num_cores=64"), tmp_path)
    [start], [program] = profile.of("sandbox_start"), profile.of("program")
    assert start.seconds_high == pytest.approx(0, abs=1e-9)
    assert 0 < program.seconds_low < program.seconds < program.seconds_high < 30
    assert start.num_repeats == program.num_repeats > NUM_REPEATS


def test_scoring_side_by_side_is_taken_off_once():
    def verdict(sample, time_s, scorer="reward", **others):
        request = RequestId(0, PromptId(0, "p"), sample)
        return Verdict(request=request, reward=1.0, reason="correct", time_s=time_s, scorer=scorer, **others)

    section = RewardSection(num_workers=2, sandbox=SandboxSection(num_workers=4))
    checked = [verdict(sample, 0.5) for sample in range(4)]
    ran = [verdict(sample, 2.0, case_runs=(CaseRun(case=0, time_s=1.0, is_passed=True),)) for sample in range(4)]
    of_two_judges = [verdict(sample, 3.0 + sample % 2, f"judge-{sample % 2}") for sample in range(8)]
    assert scoring_time_s(section, checked) == 1.0
    assert scoring_time_s(section, ran) == 2.0
    assert scoring_time_s(section, of_two_judges) == 4.0
    assert scoring_time_s(section, [*checked, *of_two_judges, verdict(9, 1.5, "judge-0")]) == 1.0 + 4.5
