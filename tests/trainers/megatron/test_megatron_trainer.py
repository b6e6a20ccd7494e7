"""Megatron-core on two real processes (gloo, under the CPU shim) against one process of plain torch."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rollpacker.protocols.tensors import checksum_of_tensors, named_tensors
from rollpacker.trainers.microbatches import Sample, pack
from rollpacker.trainers.models import load_model
from rollpacker.trainers.torch_policy import TorchPolicy
from tests.trainers.giving_up import GivenUp
from tests.trainers.megatron import scenarios
from tests.trainers.megatron.scenarios import Outcome, Work
from tests.trainers.ranks import Ranks
from tests.trainers.streaming import NUM_BATCHES_OF_RANKS, STALE, random_rewards, require_rounding_only, stale

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": {"tensor_parallel": 2},
    "pipeline": {"pipeline_parallel": 2},
    "context": {"context_parallel": 2},
    "context-by-length": {"context_parallel": 2, "context_parallel_above": 9},
    "data": {"data_parallel": 2},
}
REWARDS = [(1, 0, 0, 1), (0, 0, 0, 1), (1, 1, 1, 1), (0.5, 0, 1, 0)]
"""One group has no signal."""


class Torch:
    """What one process of plain torch makes of the same work."""

    def __init__(self, models: dict[str, Path], batches: dict[str, list[Any]]) -> None:
        self.models = models
        self._batches = batches
        self._known: dict[str, Outcome] = {}

    def train(self, model: str) -> Outcome:
        """Three steps."""
        if model not in self._known:
            self._known[model] = self.train_with(model)
        return self._known[model]

    def train_with(self, model: str, **section: Any) -> Outcome:
        work = Work(model_path=self.models[model], section=section, batches=self._batches[model])
        policy = TorchPolicy(
            work.model_path, scenarios.section_of(work), model_dtype="float32", temperature=1.0, seed=0
        )

        def gradients() -> dict[str, Tensor]:
            return {name: policy._optimizer.state[p]["exp_avg"] / 0.1 for name, p in policy._parameters.items()}

        return asyncio.run(scenarios.run(work, policy, gradients))


@pytest.fixture(scope="module")
def batches(models: dict[str, Path], bench_of: Any) -> dict[str, list[Any]]:
    """Three for each model."""
    return {name: [bench_of(path).groups(REWARDS, seed=seed) for seed in range(3)] for name, path in models.items()}


@pytest.fixture(scope="module")
def plain_torch(models: dict[str, Path], batches: dict[str, list[Any]]) -> Torch:
    return Torch(models, batches)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    generator = np.random.default_rng(3)
    return [
        Sample(
            prompt_token_ids=generator.integers(2, 24, int(generator.integers(1, 9))).astype(np.int32),
            response_token_ids=generator.integers(2, 24, length).astype(np.int32),
            behaviour_logprobs=np.zeros(length, dtype=np.float32),
            advantages_R=np.ones(length, dtype=np.float32),
        )
        for length in (1, 2, 5, 11, 16)
    ]


def assert_equal_training(found: list[Outcome], expected: Outcome) -> None:
    """Loss and norm within 1e-5, gradients within 1e-5 of the largest, and the weights after all updates."""
    for outcome in found:
        for own, other in zip(outcome.metrics, expected.metrics, strict=True):
            assert own.num_tokens == other.num_tokens
            assert own.loss == pytest.approx(other.loss, rel=1e-5, abs=1e-6)
            assert own.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)
            assert own.entropy == pytest.approx(other.entropy, rel=1e-5)
            assert own.logprob_mismatch_mean == pytest.approx(other.logprob_mismatch_mean, rel=1e-4, abs=1e-6)
    largest = max(float(gradient.abs().max()) for gradient in expected.gradients.values())
    assert_close(found[0].gradients, expected.gradients, atol=1e-5 * largest)
    assert_close(found[0].weights, expected.weights, atol=2e-5)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], *, atol: float) -> None:
    assert list(found) == sorted(expected)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=atol, msg=name)


def assert_bit_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == sorted(expected)
    assert [name for name, tensor in found.items() if not torch.equal(tensor, expected[name])] == []


def files_of(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["qwen2-tied", "llama"])
def test_two_ranks_train_as_one_process_of_torch_does(ranks: Ranks, plain_torch: Torch, batches, model, layout):
    work = Work(model_path=plain_torch.models[model], section=LAYOUTS[layout], batches=batches[model])
    assert_equal_training(ranks.run(scenarios.train, work), plain_torch.train(model))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_score_in_chunks_train_as_one_process_does_whole(ranks: Ranks, plain_torch: Torch, batches, layout):
    section = {**LAYOUTS[layout], "logits_chunk_tokens": 3}
    for model in ("qwen2-tied", "llama"):
        work = Work(model_path=plain_torch.models[model], section=section, batches=batches[model])
        assert_equal_training(ranks.run(scenarios.train, work), plain_torch.train(model))


@pytest.fixture(scope="module")
def on_stale_tokens(models: dict[str, Path], bench_of: Any) -> list[tuple[Work, Outcome]]:
    """Of each objective, and what one process of torch makes of it."""
    name = "qwen2-tied"
    batches = [stale(bench_of(models[name]).groups(REWARDS, seed=seed)) for seed in range(2)]
    plain_torch = Torch(models, {name: batches})
    works = [Work(model_path=models[name], section=section, batches=batches, split=(1,)) for section in STALE]
    return [(work, plain_torch.train_with(name, **work.section)) for work in works]


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("layout", ["tensor", "pipeline", "context", "context-by-length"])
def test_objectives_on_stale_tokens_are_those_of_one_process(ranks: Ranks, on_stale_tokens, layout, chunk):
    """The mean of a response over parts of its tokens, and the entropy's gradient over parts of the vocabulary."""
    for work, expected in on_stale_tokens:
        section = {**work.section, **LAYOUTS[layout], "logits_chunk_tokens": chunk}
        found = ranks.run(scenarios.train, dataclasses.replace(work, section=section))
        assert_equal_training(found, expected)
        assert found[0].metrics[0].clip_fraction == expected.metrics[0].clip_fraction > 0


def test_a_rank_makes_no_more_than_a_chunk_of_logits(ranks: Ranks, models, samples):
    section, width = LAYOUTS["tensor"], 13  # 25 tokens over two ranks; a hidden state has 16 numbers
    for chunk, is_legal in ((None, lambda rows: rows == 35), (16, lambda rows: rows == 16)):
        work = Work(model_path=models["llama"], section={**section, "logits_chunk_tokens": chunk})
        assert is_legal(ranks.run(scenarios.most_rows_of_logits, work, samples, width)[0])


@pytest.mark.parametrize("layout", ["pipeline", "data", "context-by-length"])
def test_a_batch_that_streams_in_gives_the_gradient_of_the_whole(
    ranks: Ranks, plain_torch: Torch, models, batches, layout
):
    work = Work(model_path=models["qwen3"], section=LAYOUTS[layout], batches=batches["qwen3"], split=(1, 3))
    assert_equal_training(ranks.run(scenarios.train, work), plain_torch.train("qwen3"))


def test_twenty_random_steps_that_stream_partly_on_one_replica_alone_are_those_that_do_not(
    ranks: Ranks, models, bench_of
):
    bench = bench_of(models["qwen2-tied"])
    batches = [bench.groups(random_rewards(seed), seed=seed) for seed in range(NUM_BATCHES_OF_RANKS)]
    section = {**LAYOUTS["data"], "kl_coefficient": 0.1}
    work = Work(model_path=models["qwen2-tied"], section=section, batches=batches)
    differences, _ = ranks.run(scenarios.streamed_steps, work)  # the first rank has the weights
    require_rounding_only(differences, NUM_BATCHES_OF_RANKS)
    assert sum(difference.num_alone for difference in differences) > 10


def by_length(ranks: Ranks, path: Path, bench_of: Any, section: dict[str, Any], num_batches: int) -> None:
    """Random batches in two calls, with random limits: the gradient stays that of split samples, to rounding."""
    batches = [bench_of(path).groups(random_rewards(seed) + random_rewards(seed + 99)) for seed in range(num_batches)]
    work = Work(model_path=path, section={**section, "kl_coefficient": 0.1}, batches=batches, split=(1,))
    limits = [int(limit) for limit in np.random.default_rng(0).integers(3, 20, num_batches)]
    of_ranks = ranks.run(scenarios.gradients_by_length, work, limits)
    for of_rank in of_ranks:
        assert max(found.gradient for found in of_rank) < 1e-5
        assert max(found.counts for found in of_rank) < 1e-4
        assert sum(found.num_whole for found in of_rank) > num_batches, "it had samples of its own"
        assert sum(found.num_split for found in of_rank) > num_batches, "and shared others"


def test_short_samples_that_are_not_split_give_the_gradient_of_split_ones(ranks: Ranks, models, bench_of):
    by_length(ranks, models["qwen3"], bench_of, LAYOUTS["context"], 10)


@pytest.mark.parametrize("section", [{"num_minibatches": 2}, {"loss_normalisation": "token_mean"}], ids=str)
def test_samples_that_wait_for_the_end_of_their_step_stay_whole(
    ranks: Ranks, models, plain_torch: Torch, batches, section
):
    work = Work(
        model_path=models["qwen3"], section={**LAYOUTS["context-by-length"], **section}, batches=batches["qwen3"]
    )
    found, expected = ranks.run(scenarios.train, work), plain_torch.train_with("qwen3", **section)
    assert_close(found[0].weights, expected.weights, atol=5e-5)
    for outcome in found:
        for own, other in zip(outcome.metrics, expected.metrics, strict=True):
            assert own.num_tokens == other.num_tokens
            assert own.loss == pytest.approx(other.loss, rel=1e-5, abs=1e-6)
            assert own.clip_fraction == other.clip_fraction


def test_random_steps_that_stream_split_other_samples_than_those_that_do_not_and_are_the_same(
    ranks: Ranks, models, bench_of
):
    batches = [bench_of(models["llama"]).groups(random_rewards(seed), seed=seed) for seed in range(8)]
    work = Work(model_path=models["llama"], section=LAYOUTS["context-by-length"], batches=batches)
    differences, _ = ranks.run(scenarios.streamed_steps, work)
    require_rounding_only(differences, 8)


def test_pipelines_that_share_long_samples_and_have_short_ones_of_their_own_train_as_one_process_does(
    models, plain_torch: Torch, batches, bench_of
):
    four = Ranks(4, ["rollpacker.trainers.megatron.policy"])
    try:
        layouts: tuple[dict[str, Any], ...] = (
            {"context_parallel": 2, "pipeline_parallel": 2, "recompute_activations": True},
            {"context_parallel": 2, "tensor_parallel": 2},
            {"context_parallel": 2, "data_parallel": 2},
        )
        for layout in layouts:
            section = {**layout, "context_parallel_above": 9}
            work = Work(model_path=models["qwen2-tied"], section=section, batches=batches["qwen2-tied"])
            assert_equal_training(four.run(scenarios.train, work), plain_torch.train("qwen2-tied"))
            by_length(four, models["qwen2-tied"], bench_of, layout, 4)
    finally:
        four.close()


def test_a_reference_policy_and_minibatches_work_on_a_pipeline(ranks: Ranks, plain_torch: Torch, models, batches):
    section = {"kl_coefficient": 0.1, "num_minibatches": 2}
    work = Work(model_path=models["qwen3"], section={**section, "pipeline_parallel": 2}, batches=batches["qwen3"])
    found = ranks.run(scenarios.train, work)
    expected = plain_torch.train_with("qwen3", **section)
    for outcome in found:
        for own, other in zip(outcome.metrics, expected.metrics, strict=True):
            assert own.kl_to_reference == pytest.approx(other.kl_to_reference, rel=1e-3, abs=1e-7)
            assert own.clip_fraction == other.clip_fraction
    assert_close(found[0].weights, expected.weights, atol=5e-5)


@pytest.mark.parametrize("layout", ["tensor", "pipeline", "context"])
def test_scores_are_those_of_torch_and_zeros_before_the_last_stage(ranks: Ranks, models, samples, layout):
    work = Work(model_path=models["llama"], section=LAYOUTS[layout], temperature=0.7)
    torch_policy = TorchPolicy(
        work.model_path, scenarios.section_of(work), model_dtype="float32", temperature=0.7, seed=0
    )
    expected = torch_policy.score(pack(samples, 64, torch_policy.device))
    answers = ranks.run(scenarios.scores, work, samples)
    reporters = {"tensor": [True, False], "pipeline": [False, True], "context": [True, True]}
    assert [is_reporter for is_reporter, _ in answers] == reporters[layout]
    for rank, (_, found) in enumerate(answers):
        for own, other in zip(found, expected, strict=True):
            is_blind = layout == "pipeline" and rank == 0
            zeros_N = torch.zeros_like(other.logprobs_N)
            for own_N, other_N in zip(own, (other.logprobs_N, other.entropies_N, other.variances_N), strict=True):
                torch.testing.assert_close(own_N, zeros_N if is_blind else other_N, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["qwen2-tied", "qwen2-untied", "qwen3", "llama"])
def test_weights_come_out_bit_for_bit_as_they_went_in(ranks: Ranks, models, model):
    layouts = [LAYOUTS[name] for name in ("tensor", "pipeline", "data")]
    works = [
        Work(model_path=models[model], section=layout, dtype=dtype)
        for layout in layouts
        for dtype in ("float32", "bfloat16")
    ]
    stored = files_of(models[model])
    for work, found in zip(works, ranks.run(scenarios.weights, works)[0], strict=True):
        assert_bit_equal(found, {name: tensor.to(getattr(torch, work.dtype)) for name, tensor in stored.items()})


@pytest.mark.parametrize("layouts", [("tensor", "pipeline"), ("pipeline", "data"), ("context", "tensor")], ids="-".join)
def test_a_checkpoint_goes_on_under_another_layout(ranks: Ranks, plain_torch: Torch, batches, tmp_path, layouts):
    written, read = layouts
    model = plain_torch.models["qwen2-tied"]
    first, *rest = batches["qwen2-tied"]
    work = Work(model_path=model, section=LAYOUTS[written], batches=[first], save_to=tmp_path)
    saved = ranks.run(scenarios.train, work)[0]
    assert_bit_equal(saved.weights, files_of(tmp_path / "model"))
    assert load_model(tmp_path / "model").config.tie_word_embeddings
    work = Work(model_path=model, section=LAYOUTS[read], load_from=tmp_path, first_step=1, batches=rest)
    resumed = ranks.run(scenarios.train, work)[0]
    expected = plain_torch.train("qwen2-tied")
    assert [own.policy_version for own in resumed.metrics] == [2, 3]
    assert [own.grad_norm for own in resumed.metrics] == pytest.approx(
        [other.grad_norm for other in expected.metrics[1:]], rel=1e-5
    )
    assert_close(resumed.weights, expected.weights, atol=2e-5)


def test_a_checkpoint_holds_every_number_of_the_optimizer_bit_for_bit(ranks: Ranks, models, batches, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    model, (first, second, third) = models["qwen2-tied"], batches["qwen2-tied"]
    work = Work(model_path=model, section=LAYOUTS["pipeline"], dtype="bfloat16", batches=[first], save_to=folders[0])
    ranks.run(scenarios.train, work)
    unbroken = ranks.run(
        scenarios.train,
        Work(model_path=model, section=LAYOUTS["pipeline"], dtype="bfloat16", batches=[first, second, third]),
    )[0]
    work = Work(model_path=model, section=LAYOUTS["data"], dtype="bfloat16", load_from=folders[0], save_to=folders[1])
    ranks.run(scenarios.train, work)
    assert_bit_equal(files_of(folders[1] / "model"), files_of(folders[0] / "model"))
    work = Work(
        model_path=model,
        section=LAYOUTS["pipeline"],
        dtype="bfloat16",
        load_from=folders[1],
        first_step=1,
        batches=[second, third],
    )
    assert_bit_equal(ranks.run(scenarios.train, work)[0].weights, unbroken.weights)


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_the_reference_is_read_once_and_rows_are_packed_by_their_sum_unless_a_pipeline_would_idle(
    ranks: Ranks, models, samples, tmp_path, layout
):
    num_tokens = sum(sample.num_inputs for sample in samples)
    assert num_tokens < len(samples) * max(sample.num_inputs for sample in samples)
    section = {**LAYOUTS[layout], "kl_coefficient": 0.1, "max_tokens_per_microbatch": num_tokens}
    work = Work(model_path=models["qwen3"], section=section)
    found = ranks.run(scenarios.checksum_and_passes, work, samples, tmp_path)
    checksum = checksum_of_tensors(named_tensors(load_model(models["qwen3"])))
    num_passes = 2 if layout == "pipeline" else 1
    assert found == [(checksum, num_passes)] * 2


def test_a_torn_checkpoint_is_refused_on_all_ranks_and_changes_nothing(ranks: Ranks, models, tmp_path):
    work = Work(model_path=models["qwen3"], section=LAYOUTS["tensor"], save_to=tmp_path)
    ranks.run(scenarios.train, work)
    (tmp_path / "moments" / ".metadata").unlink()
    (error, is_same), other = ranks.run(scenarios.load_error, work, tmp_path)
    assert error.startswith("CheckpointError: The optimizer in")
    assert is_same
    assert other == (error, True)
    (tmp_path / "megatron.pt").unlink()
    (error, _), (other, _) = ranks.run(scenarios.load_error, work, tmp_path)
    assert error == other
    assert "megatron.pt cannot be read" in error


def test_recomputed_activations_change_nothing(ranks: Ranks, models, batches):
    work = Work(model_path=models["llama"], section=LAYOUTS["tensor"], batches=batches["llama"])
    plain = ranks.run(scenarios.train, work)[0]
    work = Work(
        model_path=models["llama"],
        section={**LAYOUTS["tensor"], "recompute_activations": True},
        batches=batches["llama"],
    )
    assert_bit_equal(ranks.run(scenarios.train, work)[0].weights, plain.weights)


def test_a_trainer_that_sleeps_between_calls_learns_and_saves_the_same_and_holds_no_memory(
    ranks: Ranks, models, batches, tmp_path
):
    *batches, last = batches["qwen3"]
    known: dict[str, Any] = {
        "model_path": models["qwen3"],
        "section": {**LAYOUTS["data"], "kl_coefficient": 0.1},
        "dtype": "bfloat16",
    }
    weights = []
    for naps in (False, True):
        folder = tmp_path / f"naps-{naps}"
        folder.mkdir()
        work = Work(**known, batches=batches, split=(1, 2), naps=naps, save_to=folder)
        weights.append(ranks.run(scenarios.train, work)[0].weights)
        work = Work(**known, batches=[last], first_step=2, load_from=folder)
        weights.append(ranks.run(scenarios.train, work)[0].weights)
    assert_bit_equal(weights[2], weights[0])
    assert_bit_equal(weights[3], weights[1])
    assert_bit_equal(files_of(tmp_path / "naps-True" / "model"), files_of(tmp_path / "naps-False" / "model"))


def test_updates_that_bfloat16_cannot_hold_add_up_in_the_main_weights(ranks: Ranks, models, batches, tmp_path):
    section = {**LAYOUTS["data"], "learning_rate": 1e-5}
    work = Work(
        model_path=models["qwen2-untied"],
        section=section,
        dtype="bfloat16",
        batches=batches["qwen2-untied"],
        save_to=tmp_path,
    )
    exported = ranks.run(scenarios.train, work)[0].weights
    before, after = files_of(models["qwen2-untied"]), files_of(tmp_path / "model")
    name = "model.layers.0.mlp.up_proj.weight"
    moved = (after[name] - before[name]).abs()
    assert moved.max() <= 3.1e-5
    assert moved.median() > 1e-5, "three steps of up to 1e-5 each"
    unmoved = exported[name] == before[name].bfloat16()
    assert unmoved.float().mean() > 0.9, "steps so small that bfloat16 does not show them"
    assert_bit_equal(exported, {name: tensor.bfloat16() for name, tensor in after.items()})


def test_a_gradient_that_is_no_number_changes_no_weight(ranks: Ranks, models, samples):
    work = Work(model_path=models["qwen3"], section=LAYOUTS["tensor"])
    for norm, is_same in ranks.run(scenarios.update_after_a_loss_that_is_no_number, work, samples):
        assert np.isnan(norm)
        assert is_same


def test_writing_a_checkpoint_starts_no_process(ranks: Ranks, models, tmp_path):
    work = Work(model_path=models["qwen3"], section=LAYOUTS["data"])
    assert ranks.run(scenarios.num_children_after_saving, work, tmp_path) == [0, 0]


@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_every_response_token_is_scored_by_exactly_one_context_parallel_rank(ranks: Ranks, samples, num_parts):
    parts = ranks.run(scenarios.packed, samples, num_parts)[0]
    pairs = [pair for part in parts for pair in zip(part.tokens, part.targets, strict=True)]
    targets = [int(token) for sample in samples for token in sample.response_token_ids]
    assert [target for _, target in sorted(pairs)] == targets
    # What stands at a scored place is the token before the target in its sequence.
    before = [
        int(token) for sample in samples for token in [sample.prompt_token_ids[-1], *sample.response_token_ids[:-1]]
    ]
    for part in parts:
        assert [part.token_ids[place] for place in part.scored] == [before[token] for token in part.tokens]


@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_what_an_environment_wrote_is_scored_by_no_rank(ranks: Ranks, samples, num_parts):
    masks = [np.arange(len(sample.response_token_ids)) % 3 != 1 for sample in samples]
    turns = [dataclasses.replace(sample, mask_R=mask) for sample, mask in zip(samples, masks, strict=True)]
    pairs = [
        pair
        for part in ranks.run(scenarios.packed, turns, num_parts)[0]
        for pair in zip(part.tokens, part.targets, strict=True)
    ]
    targets = [token for each, mask in zip(samples, masks, strict=True) for token in each.response_token_ids[mask]]
    assert sorted(pairs) == list(enumerate(targets))
    assert len(targets) < sum(len(sample.response_token_ids) for sample in samples)


@pytest.mark.parametrize("num_parts", [2, 3])
def test_context_parallel_ranks_have_equally_much_attention_to_compute(ranks: Ranks, samples, num_parts):
    parts = ranks.run(scenarios.packed, samples, num_parts)[0]
    assert len({sum(queries * (2 * keys - queries) for queries, keys in part.segments) for part in parts}) == 1
    for part in parts:
        assert part.key_ids is not None
        assert len(part.key_ids) == sum(keys for _, keys in part.segments)
        assert max(part.key_ids) < num_parts * len(part.token_ids)


def test_models_that_would_compute_something_else_are_refused(ranks: Ranks, models, tmp_path):
    deviations = {
        "attends within a sliding window": ("qwen2-tied", {"use_sliding_window": True}),
        "scales its rotary embedding by linear": (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}},
        ),
        "has biases in attention": ("llama", {"attention_bias": True}),
        "activates with gelu": ("qwen3", {"hidden_act": "gelu"}),
        "is of model_type gpt2": ("qwen3", {"model_type": "gpt2"}),
        "the tensor model.layers.2.input_layernorm.weight is missing": (
            "qwen3",
            {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4},
        ),
        "config.json says (16, 32)": ("qwen2-untied", {"intermediate_size": 32}),
    }
    works = []
    for index, (model, changes) in enumerate(deviations.values()):
        folder = shutil.copytree(models[model], tmp_path / str(index))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        works.append(Work(model_path=folder, section=LAYOUTS["tensor"]))
    own, other = ranks.run(scenarios.make_errors, works)
    assert own == other
    for problem, expected in zip(own, deviations, strict=True):
        assert problem.startswith("ModelError")
        assert expected in problem


def test_the_shim_changes_what_megatron_sees_and_nothing_else(ranks: Ranks, models):
    answers = ranks.run(scenarios.what_the_shim_leaves_alone, models["qwen3"])
    assert answers == [("torch.FloatTensor", "meta", True)] * 2


def test_a_rank_whose_peer_does_not_come_gives_up_at_its_deadline(ranks: Ranks, models, samples):
    work = Work(model_path=models["qwen3"], section=LAYOUTS["tensor"])
    alone, _ = ranks.run(scenarios.left_alone, work, samples)
    assert "Timed out" in alone


@pytest.mark.parametrize("layout", ["tensor", "context", "context-by-length"])
def test_ranks_of_a_replica_give_a_step_up_together_though_one_of_them_is_not_told(
    models, bench_of, ranks, tmp_path, layout
):
    groups = bench_of(models["qwen3"]).groups(8 * [(1, 0, 0, 1)])
    section = {**LAYOUTS[layout], "max_tokens_per_microbatch": 16}
    work = Work(model_path=models["qwen3"], section=section)
    other, told = ranks.run(scenarios.gives_up, work, groups, tmp_path, 1)
    assert told == GivenUp(num_passes=2, is_dropped=True, is_unchanged=True)
    if layout == "context-by-length":  # whose passes are each part's own
        told = dataclasses.replace(told, num_passes=other.num_passes)
    assert other == told
