"""An LLM judge costs prefill, batch by batch, on GPUs of its own or of the actor."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.run.status import read_status
from rollpacker.sim.costs import EngineCosts
from rollpacker.sim.judge import Answer, Judge, JudgeCosts, plan_judge
from rollpacker.sim.plan import plan_cluster
from tests.sim.clusters import SMALL, hardware

WORDS = ["backend=sim", "model=qwen2.5-7b", "run.dir=x", "engine.num_engines=16", "reward.judge.placement=dedicated"]


LAYERS_BYTES = 2 * 28 * (3584 * 128 * 2 * (28 + 4) + 3 * 3584 * 18944)
"""Of Qwen2.5-7B in bf16: 13.1 GB of 15.2."""


def judge_costs(**changes) -> JudgeCosts:
    values = {
        "engine": EngineCosts(model=SMALL, hardware=hardware(), tensor_parallel=1),
        "resident_share": 1.0,
        "num_slots": 2,
        "is_loaded_per_batch": False,
        "start_s": 0.0,
    }
    return JudgeCosts(**(values | changes))


def planned(*words: str):
    return plan_judge(compose([*WORDS, *words]))


def test_a_batch_of_qwen_7b_on_an_h800_takes_the_prefill_of_its_tokens():
    costs = planned().costs
    # 2 FLOPs per multiplied parameter and token, attention at 4 * 28 layers * 3584 per token pair; 989 TFLOP/s at 60 %
    num_multiplied = 28 * (3584 * 128 * 2 * (28 + 4) + 3 * 3584 * 18944) + 152064 * 3584
    rate = 989e12 * 0.6
    overhead_s = costs.engine.hardware.step_overhead_s
    attention_s = 8 * 2 * 28 * 28 * 128 * 1000**2 / rate
    assert costs.batch_s([1000] * 8) == pytest.approx(overhead_s + 2 * num_multiplied * 8000 / rate + attention_s)


def test_what_is_longer_than_a_pass_takes_several():
    costs = judge_costs()
    one = costs.batch_s([20_000])
    assert one > costs.engine.pass_s(8192) * 2 + costs.engine.pass_s(20_000 - 2 * 8192)
    assert one == pytest.approx(
        costs.engine.pass_s(8192) * 2
        + costs.engine.pass_s(20_000 - 2 * 8192)
        + costs.engine.prefill_attention_s(0, 20_000)
    )


def test_streamed_layers_cost_time_only_when_compute_does_not_hide_them():
    resident, half, streamed = (planned(f"reward.judge.resident_share={share}").costs for share in (1, 0.5, 0))
    few, many = [500], [1000] * 8
    transfer_s = LAYERS_BYTES / (64e9 * 0.7)  # over PCIe 5.0 x16 at 70 %
    assert streamed.batch_s(few) == pytest.approx(transfer_s, rel=1e-3)
    assert half.batch_s(few) == pytest.approx(transfer_s / 2, rel=1e-3)
    assert half.batch_s(many) == resident.batch_s(many) < streamed.batch_s(many)


def test_with_one_slot_every_copy_is_waited_for():
    resident, streamed, waited = (
        planned(*words).costs
        for words in (
            ["reward.judge.resident_share=1"],
            ["reward.judge.resident_share=0"],
            ["reward.judge.resident_share=0", "reward.judge.num_slots=1"],
        )
    )
    transfer_s = LAYERS_BYTES / (64e9 * 0.7)
    for lengths, num_passes in (([500], 1), ([1000] * 8, 1), ([20_000], 3)):
        assert waited.batch_s(lengths) == pytest.approx(resident.batch_s(lengths) + num_passes * transfer_s)
        assert waited.batch_s(lengths) > streamed.batch_s(lengths)
    assert streamed.memory_bytes_per_gpu - waited.memory_bytes_per_gpu == pytest.approx(LAYERS_BYTES / 28)


def test_a_dedicated_judge_counts_its_own_gpus_and_takes_nothing_from_the_engines():
    without = plan_cluster(compose(WORDS), needs_judge=False)
    plan = plan_cluster(
        compose([*WORDS, "reward.judge.num_gpus=6", "reward.judge.tensor_parallel=2"]), needs_judge=True
    )
    assert (plan.gpus.number, plan.num_all_gpus, plan.judge.num_replicas) == (16, 22, 3)
    assert plan.engine == without.engine
    assert (without.num_all_gpus, without.judge) == (16, None)


@pytest.mark.parametrize(("placement", "num_gpus"), [("dedicated", 2 + 3), ("shared", 2)])
def test_the_run_says_that_it_holds_the_gpus_of_its_judge(tmp_path, placement, num_gpus):
    judge = ["reward.judge.num_gpus=3", f"reward.judge.placement={placement}"]
    words = ["backend=sim", "hardware=h800", "model=qwen2.5-7b", "system=verl", "engine.num_engines=2", *judge]
    pipeline.run(compose([*words, f"run.dir={tmp_path}", "run.num_steps=1", "run.progress=none"]))
    assert read_status(tmp_path).num_gpus == num_gpus


def test_a_shared_judge_takes_its_share_of_processors_and_memory_from_the_engines():
    without = plan_cluster(compose(WORDS), needs_judge=False)
    shared = ["reward.judge.placement=shared", "reward.judge.gpu_share=0.25"]
    plan = plan_cluster(compose([*WORDS, *shared]), needs_judge=True)
    assert (plan.num_all_gpus, plan.judge.num_replicas) == (16, 16)
    taken = (without.engine.num_kv_tokens - plan.engine.num_kv_tokens) * 57_344
    assert taken == pytest.approx(plan.judge.costs.engine.model.num_weight_bytes, rel=1e-3)
    long = 8192
    assert _matmul_s(plan.engine, long) == pytest.approx(_matmul_s(without.engine, long) / 0.75, rel=1e-6)
    assert _matmul_s(plan.judge.costs.engine, long) == pytest.approx(_matmul_s(without.engine, long) / 0.25, rel=1e-6)
    assert plan.engine.kv_read_s == without.engine.kv_read_s
    streamed = plan_cluster(compose([*WORDS, *shared, "reward.judge.resident_share=0"]), needs_judge=True)
    assert plan.engine.num_kv_tokens < streamed.engine.num_kv_tokens < without.engine.num_kv_tokens
    assert streamed.trainer == without.trainer  # the judge is at rest while the trainer works


def _matmul_s(costs: EngineCosts, num_tokens: int) -> float:
    return costs.forward_s(num_tokens) - costs.hardware.step_overhead_s


def test_a_judge_that_takes_turns_is_loaded_for_each_batch_and_only_then():
    costs = planned("reward.judge.placement=turns", "system=verl", "reward.judge.start_s=3").costs
    transfer_s = costs.engine.model.num_weight_bytes / (64e9 * 0.7)
    judge = Judge(costs, num_replicas=16)
    for began in (0.0, 100.0):
        judge.add([Answer(num_tokens=1000) for _ in range(4)], began)
        assert judge.next_at_s == pytest.approx(began + 3 + transfer_s + costs.batch_s([1000] * 4))
        judge.add([Answer(num_tokens=1000)], began + 1)  # comes while it is being loaded
        assert judge.next_at_s == pytest.approx(began + 3 + transfer_s + costs.batch_s([1000]))
        while judge.next_at_s is not None:
            judge.advance(judge.next_at_s)
    assert planned().costs.load_s == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward.judge.placement=turns"], "turns with system.reward=scheduled"),
        (["reward.judge.placement=shared", "hardware.profile=p.parquet"], "shared with hardware.profile=p.parquet"),
        (["reward.judge.tensor_parallel=3"], "3 on 1 GPUs"),
        (["reward.judge.tensor_parallel=16", "reward.judge.num_gpus=16"], "16 with hardware.gpus_per_node=8"),
        (["reward.judge.tensor_parallel=8", "reward.judge.num_gpus=8"], "8 does not divide the model's 28 attention"),
        (["reward.judge.model.shape=null"], "neither a path nor a shape"),
        (["reward.judge.model.shape=null", "reward.kinds.math=judge"], "responses of domain `math`"),
        (["model@reward.judge.model=qwen2.5-32b", "hardware=a100-40g"], "takes 66 GB of a GPU"),
    ],
)
def test_a_judge_that_cannot_be_is_refused(words, message):
    with pytest.raises(ConfigError, match=message) as caught:
        planned(*words)
    assert caught.value.remedy


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30_000)), min_size=1, max_size=60),
    st.integers(1, 5),
    st.booleans(),
)
def test_each_answer_is_judged_once_and_no_replica_works_on_two_batches(load, num_replicas, is_loaded):
    costs = judge_costs(is_loaded_per_batch=is_loaded, start_s=0.05)
    judge = Judge(costs, num_replicas=num_replicas)
    answers: list[Answer] = []
    judged: list[Answer] = []
    for at_s, num_tokens in [*sorted(load), (math.inf, 0)]:
        while judge.next_at_s is not None and judge.next_at_s <= at_s:
            now = judge.next_at_s
            judged += judge.advance(now)
            judge.check(now)
        if num_tokens:
            answers.append(Answer(num_tokens=num_tokens))
            judge.add([answers[-1]], at_s)
            judge.check(at_s)
    assert sorted(map(id, judged)) == sorted(map(id, answers))
    assert judge.num_waiting == 0


def test_replicas_share_a_large_batch():
    costs = judge_costs()
    times = {}
    for num_replicas in (1, 4):
        judge = Judge(costs, num_replicas=num_replicas)
        judge.add([Answer(num_tokens=4096) for _ in range(64)], 0.0)
        while judge.next_at_s is not None:
            times[num_replicas] = judge.next_at_s
            judge.advance(judge.next_at_s)
    assert times[1] == pytest.approx(32 * costs.batch_s([4096, 4096]))
    assert times[1] / times[4] == pytest.approx(4)
