"""The bounds of synchronous and asynchronous steps, and the shares that balance them."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker import pipeline
from rollpacker.cli.main import main
from rollpacker.config.compose import compose
from rollpacker.metrics.tables import read_frame
from rollpacker.sim.split import suggested_gpus, theory_of
from rollpacker.sim.theory import StepTheory
from tests.sim.composed import composed

seconds = st.floats(1e-3, 1e4)
theories = st.builds(
    StepTheory,
    num_samples=st.integers(1, 10_000),
    num_gpus=st.integers(2, 1024),
    generation_s=seconds,
    training_s=seconds,
    longest_s=st.floats(0, 1e5),
)
staleness = st.integers(0, 16)


def test_the_formulas_give_what_they_give_by_hand():
    theory = StepTheory(num_samples=1000, num_gpus=10, generation_s=3.0, training_s=1.0, longest_s=600.0)
    assert theory.work_s == 400
    assert theory.synchronous_s == 1000
    assert theory.asynchronous_s(2) == 600
    assert theory.trainer_share(2) == pytest.approx(1000 / (1000 + 3000 + 2000))
    # 100 / b = 300 / (1 - b) + 200: 2 b^2 - 6 b + 1 = 0
    assert theory.tighter_trainer_share(2) == pytest.approx((6 - 28**0.5) / 4)


@given(theories, staleness)
def test_the_paper_s_share_gives_the_paper_s_bound(theory, bound):
    share = theory.trainer_share(bound)
    training_s = theory.num_samples * theory.training_s / (share * theory.num_gpus)
    assert training_s == pytest.approx(theory.asynchronous_s(bound))
    assert theory.split_s(share, bound) <= theory.asynchronous_s(bound) * (1 + 1e-9)


@given(theories, staleness, st.floats(0.01, 0.99))
def test_no_share_has_a_lower_bound_than_the_tighter_one(theory, bound, other):
    share = theory.tighter_trainer_share(bound)
    assert theory.trainer_share(bound) * (1 - 1e-9) <= share < 1
    assert theory.split_s(share, bound) <= theory.split_s(other, bound) * (1 + 1e-6)


@given(theories)
def test_without_a_tail_both_shares_are_the_trainer_s_part_of_the_work(theory):
    even = dataclasses.replace(theory, longest_s=0.0)
    part = even.training_s / (even.training_s + even.generation_s)
    assert even.trainer_share(0) == pytest.approx(part)
    assert even.tighter_trainer_share(0) == pytest.approx(part)


@given(theories, staleness)
def test_a_higher_bound_is_never_slower_and_never_more_than_that_many_times_faster(theory, bound):
    assert theory.asynchronous_s(0) == theory.synchronous_s
    assert theory.asynchronous_s(bound + 1) <= theory.asynchronous_s(bound)
    assert theory.synchronous_s / theory.asynchronous_s(bound) <= (bound + 1) * (1 + 1e-9)


WORDS = (
    *("backend=sim", "model=qwen3-8b", "workload=think", "run.dir=x", "rollout.num_prompts=64", "system=flash"),
    *("rollout.num_responses=8", "rollout.max_response_tokens=32768"),
    *("hardware.num_nodes=4", "engine.num_engines=null", "placement.engine=rest"),
)


def test_the_terms_are_those_of_the_run_s_own_engines_trainer_and_lengths():
    config = composed(*WORDS, "placement.trainer=6-7")
    theory = theory_of(config)
    assert (theory.num_samples, theory.num_gpus) == (512, 32)
    fewer_slots = theory_of(composed(*WORDS, "placement.trainer=6-7", "engine.max_num_seqs=8"))
    assert fewer_slots.generation_s > 2 * theory.generation_s  # a pass reads the weights for fewer sequences
    assert fewer_slots.longest_s < theory.longest_s
    # on half of its GPUs the trainer takes nearly twice the time, so a sample the same share of a GPU
    assert theory_of(composed(*WORDS, "placement.trainer=7")).training_s == pytest.approx(theory.training_s, rel=0.2)


@pytest.mark.parametrize(
    ("share", "words", "expected"),
    [
        (0.01, (), 3),  # 131 GB of weights, gradients and moments on GPUs of 80 GB
        (0.25, (), 8),
        (0.99, (), 31),
        (0.3, ("engine.tensor_parallel=4", "trainer.tensor_parallel=2"), 12),
        (0.5, ("hardware.memory_gb=24", "engine.tensor_parallel=2"), 16),
    ],
)
def test_a_share_is_rounded_to_replicas_that_hold_the_model_beside_whole_engines(share, words, expected):
    config = composed(*WORDS, "placement.trainer=4-7", *words)
    assert suggested_gpus(config, 32, share) == expected


def test_check_prints_the_split_in_use_beside_both_formulas(capsys):
    assert main(["check", *WORDS, "placement.trainer=6-7"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "8 of 32 GPUs train (25%): a step takes at most" in printed
    for formula in ("ROLL Flash's formula", "the tighter bound"):
        assert f"{formula}: " in printed
    assert "placement.engine=rest placement.trainer=" in printed
    assert "with system.lookahead=1 engines may run out of prompts" in printed
    synchronous = [word.replace("system=flash", "system=verl") for word in WORDS]
    assert main(["check", *synchronous, "placement.trainer=6-7"]) == 0
    assert "of the GPUs train" not in capsys.readouterr().out


@pytest.mark.parametrize("split", ["7", "6-7", "4-7"])
def test_modelled_steps_take_no_longer_than_the_bound(tmp_path, split):
    words = [word.replace("system=flash", "system=roll-flash").replace("num_nodes=4", "num_nodes=1") for word in WORDS]
    small = ("rollout.num_prompts=16", "hardware=h100", "run.checkpoint_every_steps=0", "run.progress=none")
    kept = [word for word in words if not word.startswith(("rollout.num_prompts", "run.dir"))]
    config = compose([*kept, *small, f"placement.trainer={split}", f"run.dir={tmp_path}", "run.num_steps=8"])
    pipeline.run(config)
    steps = read_frame(tmp_path, "steps")
    theory = theory_of(config)
    share = 1 - config.engine.num_engines / 8
    per_step_s = steps["step_time_s"].mean() - steps["weight_sync_time_s"].mean()
    assert per_step_s <= theory.split_s(share, 2)
    assert per_step_s > theory.split_s(share, 2) / 4  # a bound that says something
