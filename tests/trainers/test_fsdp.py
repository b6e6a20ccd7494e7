"""FSDP2 on two real processes with gloo, against the embedded trainer in this one."""

from __future__ import annotations

import asyncio
import math
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, FalconMambaConfig, Gemma2Config

from rollpacker.config.compose import compose
from rollpacker.protocols.tensors import checksum_of_tensors
from rollpacker.trainers.factory import make_trainer
from rollpacker.trainers.process_group import join, leave
from tests.trainers import fsdp_scenarios as scenarios
from tests.trainers.conftest import Bench
from tests.trainers.fsdp_scenarios import Outcome, Work
from tests.trainers.giving_up import GivenUp
from tests.trainers.streaming import NUM_BATCHES_OF_RANKS, STALE, random_rewards, require_rounding_only, stale

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

REWARDS = [(1, 0, 0, 1), (0, 0, 0, 1), (1, 1, 1, 1), (0.5, 0, 1, 0), (0, 0, 0, 0), (1, 1, 0, 1)]


def reference(bench: Any, work: Work) -> Outcome:
    """The same work by the embedded trainer."""
    return asyncio.run(scenarios._train(bench.trainer(dtype=work.dtype, **work.section), work))


@pytest.fixture
def alone() -> Iterator[None]:
    """This process is the only rank of an FSDP2 trainer."""
    join(None, timeout_s=60)
    yield
    leave()


def gradients(outcome: Outcome) -> dict[str, Tensor]:
    """Of the only update, unclipped: AdamW's first moment is 1 - beta1 of it."""
    return {name: moments["exp_avg"] / 0.1 for name, moments in outcome.moments.items()}


def require_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """Each tensor differs by less than so many times its own norm."""
    assert found.keys() == expected.keys()
    far = {
        name: float((found[name] - expected[name]).norm() / expected[name].norm())
        for name in expected
        if (found[name] - expected[name]).norm() > tolerance * expected[name].norm()
    }
    assert not far


def require_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("seed", range(4))
def test_loss_and_gradients_are_those_of_one_process_over_random_batches(bench, two_ranks, seed: int):
    section = {
        "max_grad_norm": 1e9,
        "max_tokens_per_microbatch": 64,  # many, and not equally many on each rank
        "loss_normalisation": ["sequence", "token_bound", "token_mean", "sequence"][seed],
        "kl_coefficient": [0.0, 0.1, 0.0, 0.0][seed],
        "shard_gradients": seed == 3,
        "recompute_activations": seed == 0,
    }
    batch = bench.groups(random_rewards(seed), seed=seed)
    split = sorted(np.random.default_rng(seed).integers(0, len(batch) + 1, 2).tolist())
    work = Work(model_path=bench.model_path, section=section, batches=[batch], split=split)
    expected = reference(bench, replace(work, split=()))
    found, other = two_ranks.run(scenarios.train, work)
    require_close(gradients(found), gradients(expected))
    (metrics,), (of_one,) = found.metrics, expected.metrics
    assert other.metrics == found.metrics
    assert metrics.loss == pytest.approx(of_one.loss, rel=1e-5, abs=1e-6)
    assert metrics.grad_norm == pytest.approx(of_one.grad_norm, rel=1e-5)
    assert (metrics.num_tokens, metrics.policy_version) == (of_one.num_tokens, 1)
    assert metrics.entropy == pytest.approx(of_one.entropy, rel=1e-6)
    assert metrics.logprob_mismatch_max < 1e-5


@pytest.mark.parametrize("section", STALE, ids=str)
def test_objectives_on_stale_tokens_are_those_of_one_process(bench, two_ranks, section):
    batch = stale(bench.groups(random_rewards(1), seed=1))
    section = {"max_grad_norm": 1e9, "max_tokens_per_microbatch": 64, **section}
    work = Work(model_path=bench.model_path, section=section, batches=[batch], split=(2,))
    expected = reference(bench, replace(work, split=()))
    found, _ = two_ranks.run(scenarios.train, work)
    require_close(gradients(found), gradients(expected))
    (metrics,), (of_one,) = found.metrics, expected.metrics
    assert metrics.loss == pytest.approx(of_one.loss, rel=1e-5, abs=1e-6)
    assert metrics.clip_fraction == of_one.clip_fraction > 0
    assert metrics.effective_sample_share == pytest.approx(of_one.effective_sample_share, rel=1e-5)


@pytest.mark.parametrize(
    "section", [{"shard_gradients": True}, {"num_minibatches": 2, "kl_coefficient": 0.2, "learning_rate": 0.01}]
)
def test_parameters_and_metrics_after_several_updates_are_those_of_one_process(bench, two_ranks, section):
    batches = [bench.groups(REWARDS, seed=seed) for seed in range(3)]
    work = Work(model_path=bench.model_path, section={**section, "max_grad_norm": 0.5}, batches=batches, split=(1, 4))
    expected = reference(bench, work)
    found, other = two_ranks.run(scenarios.train, work)
    # AdamW divides by the root of the second moment, which blows up the rounding of gradients near zero.
    require_close(found.weights, expected.weights, tolerance=2e-4)
    assert other.metrics == found.metrics
    assert other.weights == {}
    for metrics, of_one in zip(found.metrics, expected.metrics, strict=True):
        assert metrics.grad_norm == pytest.approx(of_one.grad_norm, rel=1e-2)
        assert metrics.clip_fraction == pytest.approx(of_one.clip_fraction, abs=0.01)
        assert metrics.logprob_mismatch_mean == pytest.approx(of_one.logprob_mismatch_mean, rel=1e-2, abs=1e-6)


def test_a_streamed_step_equals_one_call_to_rounding_and_a_repeated_run_bit_for_bit(bench, two_ranks):
    whole = Work(model_path=bench.model_path, batches=[bench.groups(REWARDS)], section={"max_grad_norm": 1e9})
    streamed = replace(whole, split=(1, 2, 3, 4, 5))
    at_once, _ = two_ranks.run(scenarios.train, whole)
    in_calls, _ = two_ranks.run(scenarios.train, streamed)
    again, _ = two_ranks.run(scenarios.train, streamed)
    require_close(gradients(in_calls), gradients(at_once))
    require_equal(again.weights, in_calls.weights)
    assert again.metrics == in_calls.metrics


@pytest.mark.parametrize("section", [{"kl_coefficient": 0.1}, {"shard_ranks": 1}], ids=["sharded", "copies"])
def test_twenty_random_steps_that_stream_are_those_that_do_not(bench, two_ranks, section: dict[str, Any]):
    batches = [bench.groups(random_rewards(seed), seed=seed) for seed in range(NUM_BATCHES_OF_RANKS)]
    work = Work(model_path=bench.model_path, section=section, batches=batches)
    for differences in two_ranks.run(scenarios.streamed_steps, work):
        require_rounding_only(differences, NUM_BATCHES_OF_RANKS)
        assert (sum(difference.num_alone for difference in differences) > 10) == ("shard_ranks" in section)


def test_a_rank_without_any_sample_takes_part_in_every_pass(bench, two_ranks):
    work = Work(model_path=bench.model_path, batches=[bench.groups([(1.0,), (0.0,)])], section={"kl_coefficient": 0.1})
    work = replace(work, batches=[work.batches[0][:1]])  # one response: the other rank has none
    found, other = two_ranks.run(scenarios.train, work)
    assert other.metrics == found.metrics == [replace_close(found.metrics[0], reference(bench, work).metrics[0])]


def replace_close(found: Any, expected: Any) -> Any:
    """`found`, if it is `expected` to rounding."""
    assert found.num_tokens == expected.num_tokens
    assert found.entropy == pytest.approx(expected.entropy, rel=1e-6)
    assert found.grad_norm == pytest.approx(expected.grad_norm, abs=1e-5)
    return found


def test_a_batch_without_any_signal_is_still_an_update(bench, two_ranks):
    work = Work(model_path=bench.model_path, batches=[bench.groups([(1, 1), (0, 0)])], section={"weight_decay": 0.1})
    found, _ = two_ranks.run(scenarios.train, work)
    assert found.metrics[0].grad_norm == 0.0
    require_equal(found.weights, reference(bench, work).weights)


def test_the_initial_policy_is_exported_bit_for_bit_in_the_models_dtype(bench, two_ranks):
    for dtype in ("float32", "bfloat16"):
        work = Work(model_path=bench.model_path, dtype=dtype)
        expected = reference(bench, work)
        found, _ = two_ranks.run(scenarios.train, work)
        require_equal(found.weights, expected.weights)
        assert {tensor.dtype for tensor in found.weights.values()} == {getattr(torch, dtype)}
        assert found.checksum == expected.checksum == checksum_of_tensors(found.weights)


def test_an_untied_output_layer_is_exported_as_a_tensor_of_its_own(bench, two_ranks, untied_model_path: Path):
    work = Work(model_path=untied_model_path)
    found, _ = two_ranks.run(scenarios.train, work)
    require_equal(found.weights, reference(type(bench)(model_path=untied_model_path), work).weights)
    assert "lm_head.weight" in found.weights


def test_in_bfloat16_passes_are_rounded_while_updates_add_up_in_float32(bench, two_ranks):
    work = Work(model_path=bench.model_path, dtype="bfloat16", batches=[bench.groups(REWARDS)])
    slow = replace(work, section={"learning_rate": 1e-5, "max_grad_norm": 1e9}, split=(3,))
    expected = reference(bench, replace(slow, dtype="float32"))
    found, _ = two_ranks.run(scenarios.train, slow)
    assert 1e-4 < found.metrics[0].logprob_mismatch_max < 0.5
    for name, gradient in gradients(found).items():
        assert gradient.dtype == torch.float32
        of_float32 = gradients(expected)[name]
        assert torch.cosine_similarity(gradient.flatten(), of_float32.flatten(), dim=0) > 0.97, name
    name = "model.layers.0.mlp.up_proj.weight"
    unmoved = found.weights[name] == reference(bench, Work(model_path=bench.model_path, dtype="bfloat16")).weights[name]
    assert unmoved.float().mean() > 0.9  # too small a step for bfloat16
    # Twenty such steps show, because the master weights are float32.
    assert found.moments[name]["exp_avg_sq"].dtype == torch.float32


@pytest.mark.parametrize(
    ("section", "dtype"),
    [
        ({}, "float32"),
        ({"kl_coefficient": 0.1}, "bfloat16"),
        ({"shard_gradients": True}, "float32"),
        ({"shard_ranks": 1}, "float32"),
    ],
    ids=str,
)
def test_sleeping_and_waking_in_the_midst_of_a_step_changes_no_bit(bench, two_ranks, section, dtype):
    batches = [bench.groups(REWARDS, seed=seed) for seed in range(2)]
    work = Work(model_path=bench.model_path, batches=batches, split=(3,), section=section, dtype=dtype)
    awake, _ = two_ranks.run(scenarios.train, work)
    napping, _ = two_ranks.run(scenarios.train, replace(work, naps=True))
    require_equal(napping.weights, awake.weights)
    assert napping.metrics == awake.metrics


def test_a_copy_that_gives_lent_gpus_back_while_the_other_sleeps_learns_the_same(bench, two_ranks):
    batches = [bench.groups(REWARDS, seed=seed) for seed in range(2)]
    work = Work(model_path=bench.model_path, batches=batches, split=(3,), section={"shard_ranks": 1})
    kept, _ = two_ranks.run(scenarios.train, replace(work, lent=1))
    given_back, _ = two_ranks.run(scenarios.train, replace(work, lent=1, naps=True))
    require_equal(given_back.weights, kept.weights)
    assert given_back.metrics == kept.metrics


def test_one_rank_trains_bit_for_bit_as_the_embedded_trainer_does(bench, alone):
    batches = [bench.groups(REWARDS, seed=seed) for seed in range(2)]
    work = Work(model_path=bench.model_path, batches=batches, split=(2,))
    work = replace(work, section={"kl_coefficient": 0.1, "max_tokens_per_microbatch": 64})
    found, expected = scenarios.train(work), reference(bench, work)
    require_equal(found.weights, expected.weights)
    assert found.metrics == expected.metrics


def test_a_checkpoint_goes_from_two_ranks_to_one_and_back_bit_for_bit(bench, two_ranks, alone, tmp_path: Path):
    folders = [tmp_path / name for name in ("of-two", "of-one", "of-two-again")]
    for folder in folders:
        folder.mkdir()
    section = {"kl_coefficient": 0.1}
    batches = [bench.groups(REWARDS, seed=seed) for seed in range(2)]
    written, _ = two_ranks.run(
        scenarios.train, Work(model_path=bench.model_path, section=section, batches=batches, save_to=folders[0])
    )
    moved = Work(model_path=bench.model_path, section=section, load_from=folders[0], save_to=folders[1])
    of_one = scenarios.train(moved)
    back, _ = two_ranks.run(scenarios.train, replace(moved, load_from=folders[1], save_to=folders[2]))
    for outcome in (of_one, back):
        require_equal(outcome.weights, written.weights)
        for name, moments in written.moments.items():
            assert all(torch.equal(value, outcome.moments[name][key]) for key, value in moments.items())
    # A complete model in float32 for everybody else, and the same one each time.
    model = AutoModelForCausalLM.from_pretrained(folders[0] / "model")
    assert torch.equal(model.model.embed_tokens.weight, written.weights["model.embed_tokens.weight"])
    assert (folders[0] / "model" / "tokenizer.json").read_bytes() == (bench.model_path / "tokenizer.json").read_bytes()
    first, last = (folder / "model" / "model.safetensors" for folder in (folders[0], folders[2]))
    assert first.read_bytes() == last.read_bytes()
    # Training goes on from it as if nothing had been.
    unbroken, _ = two_ranks.run(
        scenarios.train,
        Work(model_path=bench.model_path, section=section, batches=[*batches, bench.groups(REWARDS, seed=9)]),
    )
    resumed, _ = two_ranks.run(
        scenarios.train,
        Work(
            model_path=bench.model_path,
            section=section,
            load_from=folders[2],
            batches=[bench.groups(REWARDS, seed=9)],
            first_step=2,
        ),
    )
    assert resumed.metrics == unbroken.metrics[2:]
    require_equal(resumed.weights, unbroken.weights)


def test_the_saved_model_is_byte_for_byte_what_the_embedded_trainer_writes(bench, two_ranks, tmp_path: Path):
    for name in ("embedded", "sharded"):
        (tmp_path / name).mkdir()
    reference(bench, Work(model_path=bench.model_path, save_to=tmp_path / "embedded"))
    two_ranks.run(scenarios.train, Work(model_path=bench.model_path, save_to=tmp_path / "sharded"))
    written = {path.name: path.read_bytes() for path in (tmp_path / "embedded" / "model").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "sharded" / "model").iterdir()} == written
    assert not (tmp_path / "sharded" / "moments").exists()  # nothing was updated


def test_a_checkpoint_that_cannot_be_loaded_is_refused_by_all_ranks_alike_and_changes_nothing(
    bench, two_ranks, other_model_path: Path, tmp_path: Path
):
    whole = tmp_path / "whole"
    whole.mkdir()
    work = Work(model_path=bench.model_path, batches=[bench.groups(REWARDS)], save_to=whole)
    two_ranks.run(scenarios.train, work)
    part = max((whole / "moments").glob("*.distcp"))
    broken = {
        "fsdp.pt": "cannot be read",
        "model/model.safetensors": "cannot be loaded",
        f"moments/{part.name}": "cannot be read",
        "moments/.metadata": "cannot be read",
    }
    for file, says in broken.items():
        torn = tmp_path / file.replace("/", "-")
        shutil.copytree(whole, torn)
        (torn / file).write_bytes(b"garbage")
        answers = two_ranks.run(scenarios.load_error, Work(model_path=bench.model_path), torn)
        for error, before, after in answers:
            assert error.startswith("CheckpointError")
            assert says in error
            assert str(torn) in error
            assert before == after
    for error, *_ in two_ranks.run(scenarios.load_error, Work(model_path=other_model_path), whole):
        assert "other tensors" in error


def test_a_disk_that_takes_no_more_is_told_by_all_ranks_alike(bench, two_ranks, tmp_path: Path):
    work = Work(model_path=bench.model_path, batches=[bench.groups(REWARDS)])
    told = two_ranks.run(scenarios.errors_of_a_full_disk, work, tmp_path)
    assert told[0] == told[1]
    assert len(told[0]) == 2
    assert all("StorageFailed" in error and "the file is larger than the limit" in error for error in told[0])


def test_a_missing_model_is_told_by_all_ranks_though_only_one_looks(bench, two_ranks, tmp_path: Path):
    told = two_ranks.run(scenarios.make_error, Work(model_path=tmp_path / "nowhere"))
    assert told[0] == told[1]
    assert "ModelError" in told[0]
    assert "nowhere" in told[0]


def test_every_rank_refuses_the_same_and_none_is_left_waiting(bench, two_ranks):
    answers = two_ranks.run(scenarios.refusals, Work(model_path=bench.model_path), bench.groups(REWARDS), [0])
    assert answers[0] == answers[1]
    never_begun, foreign, on_a_part, twice, incomplete = answers[0]
    assert "No step is open" in never_begun
    assert foreign.startswith("ForeignVersion")
    assert "1 of 2 replicas" in on_a_part
    assert "came twice" in twice
    assert "1 of 6 groups" in incomplete


def test_weights_that_nobody_takes_are_still_passed_on(bench, two_ranks):
    (stopped, names_of_0), (taken, names_of_1) = two_ranks.run(
        scenarios.weights_while_one_rank_stops_early, Work(model_path=bench.model_path)
    )
    assert len(stopped) == 3
    assert stopped[-1] == "raised"
    assert names_of_0 == names_of_1 == ",".join(taken)


def test_sums_and_maxima_over_ranks_keep_double_precision_and_nan(two_ranks):
    for sums, maxima in two_ranks.run(scenarios.sums_and_maxima, None):
        assert sums == [2.0, 2e-300]
        assert maxima[0] == 1
        assert math.isnan(maxima[1])
        assert maxima[2] == -5.0


@pytest.mark.parametrize("section", [{}, {"shard_gradients": True}, {"kl_coefficient": 0.1}])
def test_ranks_give_a_step_up_before_the_same_pass_though_one_of_them_is_not_told(bench, two_ranks, tmp_path, section):
    work = Work(model_path=bench.model_path, section={"max_tokens_per_microbatch": 16, **section})
    outcomes = two_ranks.run(scenarios.gives_up, work, bench.groups(8 * [(1, 0, 0, 1)]), tmp_path, {1})
    assert outcomes == 2 * [GivenUp(num_passes=2, is_dropped=True, is_unchanged=True)]
    (checksum, *_) = two_ranks.run(scenarios.train, replace(work, load_from=tmp_path))
    assert checksum.checksum == reference(bench, Work(model_path=bench.model_path)).checksum


@pytest.mark.parametrize("name", ["start_s", "train_s", "weight_sync_s", "checkpoint_s"])
def test_ranks_wait_for_each_other_as_long_as_any_call_of_the_trainer_may_take(bench, name):
    words = [f"model.path={bench.model_path}", "data.path=p.jsonl", "run.dir=r", "trainer=fsdp"]
    make_trainer(compose([*words, f"backend.deadlines.{name}=9000"]))
    try:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.options._timeout.total_seconds() == 9000
    finally:
        leave()


_TINY = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "eos_token_id": 1, "pad_token_id": 0}


@pytest.mark.parametrize(
    "config",
    [
        FalconMambaConfig(**_TINY, state_size=4),  # whose mixers lie in blocks, both of them indivisible
        Gemma2Config(**_TINY, head_dim=8, num_attention_heads=2, num_key_value_heads=1, attn_logit_softcapping=0.5),
    ],
    ids=lambda config: config.model_type,
)
def test_other_architectures_are_trained_as_by_one_process(two_ranks, tmp_path, config):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    bench = Bench(model_path=tmp_path)
    section = {"max_grad_norm": 1e9, "recompute_activations": True}
    work = Work(model_path=tmp_path, section=section, batches=[bench.groups(REWARDS)])
    found, _ = two_ranks.run(scenarios.train, work)
    require_close(gradients(found), gradients(reference(bench, work)))


def test_groups_of_copies_have_the_trainers_deadline(bench, two_ranks):
    work = Work(model_path=bench.model_path, section={"shard_ranks": 1})
    assert two_ranks.run(scenarios.deadlines_s, work) == 2 * [2 * [scenarios.DEADLINE_S]]


def test_a_copy_of_the_parameters_gives_a_step_up_without_the_other_copies(bench, two_ranks, tmp_path):
    section = {"max_tokens_per_microbatch": 16, "shard_ranks": 1}
    groups = bench.groups(8 * [(1, 0, 0, 1)])
    told, other = two_ranks.run(
        scenarios.gives_up, Work(model_path=bench.model_path, section=section), groups, tmp_path, {0}
    )
    assert told == GivenUp(num_passes=2, is_dropped=True, is_unchanged=True)
    assert other.num_passes > 2
    assert not other.is_dropped
