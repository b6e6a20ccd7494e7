"""Scores in chunks are the scores, and no tensor of all tokens times the vocabulary is made for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rollpacker.core.errors import ModelError
from rollpacker.protocols.trainer import BatchShape
from rollpacker.trainers.microbatches import Sample, pack
from rollpacker.trainers.models import load_model
from rollpacker.trainers.process_group import join, leave
from rollpacker.trainers.scoring import score_microbatch
from tests.trainers import fsdp_scenarios
from tests.trainers.fsdp_scenarios import Work
from tests.trainers.logits import LogitsWatch

VOCABULARY, WIDTH, CHUNK = 509, 16, 20
"""No other size is the vocabulary's, and a chunk has more rows than the transposed output layer."""
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "head_dim": 8,
}


def microbatch_of(*lengths: tuple[int, int]) -> Any:
    generator = np.random.default_rng(0)
    samples = [
        Sample(
            prompt_token_ids=generator.integers(0, VOCABULARY, num_prompt).astype(np.int32),
            response_token_ids=generator.integers(0, VOCABULARY, num_tokens).astype(np.int32),
            behaviour_logprobs=np.zeros(num_tokens, dtype=np.float32),
            advantages_R=np.ones(num_tokens, dtype=np.float32),
        )
        for num_prompt, num_tokens in lengths
    ]
    (microbatch,) = pack(samples, 4096, torch.device("cpu"))
    return microbatch


MICROBATCH = microbatch_of((3, 70), (9, 41), (1, 1), (30, 64))
NUM_TOKENS = 176


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def model(request):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=request.param, **_SIZES)).eval()


def scored(model: Any, chunk_tokens: int | None) -> tuple[Any, dict[str, torch.Tensor]]:
    """Scores at temperature 0.7, and the gradients of a loss that is no sum: each token counts differently."""
    model.zero_grad()
    scores = score_microbatch(model, MICROBATCH, 0.7, chunk_tokens)
    (scores.logprobs_N.exp() * torch.linspace(-1, 1, NUM_TOKENS)).sum().backward()
    return scores, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("chunk_tokens", [1, CHUNK, NUM_TOKENS, 4096])
def test_values_and_gradients_in_chunks_are_those_of_the_whole(model, chunk_tokens):
    expected, gradients = scored(model, None)
    found, of_chunks = scored(model, chunk_tokens)
    torch.testing.assert_close(found.logprobs_N, expected.logprobs_N)
    torch.testing.assert_close(found.entropies_N, expected.entropies_N)
    torch.testing.assert_close(found.variances_N, expected.variances_N, rtol=1e-4, atol=1e-5)
    assert not found.entropies_N.requires_grad
    assert not found.variances_N.requires_grad
    for name, gradient in gradients.items():
        torch.testing.assert_close(of_chunks[name], gradient, msg=name)
    assert "forward" not in model.state_dict()
    assert model(input_ids=MICROBATCH.input_ids_BT).logits.shape[-1] == VOCABULARY  # the layer gives logits again


def test_no_more_than_a_chunk_of_logits_exists_at_a_time(model):
    with LogitsWatch(VOCABULARY) as whole:
        scored(model, None)
    with LogitsWatch(VOCABULARY) as in_chunks:
        scored(model, CHUNK)
    assert whole.most_rows >= NUM_TOKENS
    assert in_chunks.most_rows == CHUNK


def test_under_bfloat16_autocast_the_chunks_are_rounded_alike(model):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, found = (score_microbatch(model, MICROBATCH, 1.0, chunk) for chunk in (None, CHUNK))
    assert found.logprobs_N.dtype == torch.float32
    torch.testing.assert_close(found.logprobs_N, expected.logprobs_N, atol=0.05, rtol=0.02)


def test_a_model_that_changes_its_logits_is_scored_whole_or_refused(monkeypatch):
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(final_logit_softcapping=5.0, **_SIZES)).eval()
    expected, _ = scored(model, None)
    found, _ = scored(model, CHUNK)
    assert torch.equal(found.logprobs_N, expected.logprobs_N)
    monkeypatch.setattr("rollpacker.trainers.scoring._CHANGES_OF_LOGITS", ())  # as if nobody knew of it
    with pytest.raises(ModelError, match=r"(?s)Gemma2ForCausalLM changes its logits.*logits_chunk_tokens=null"):
        score_microbatch(model, MICROBATCH, 1.0, CHUNK)


class InPlace(Qwen2ForCausalLM):
    """Changes its logits where they lie."""

    def forward(self, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        output.logits.mul_(0.5)
        return output


class Cut(Qwen2ForCausalLM):
    """Returns the first of its logits, which lie where all of them do."""

    def forward(self, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        output.logits = output.logits[..., :2]
        return output


@pytest.mark.parametrize("kind", [InPlace, Cut])
def test_a_model_that_changes_its_logits_where_they_lie_is_refused(kind):
    model = kind(Qwen2Config(**_SIZES)).eval()
    with pytest.raises(ModelError, match=f"{kind.__name__} changes its logits"):
        score_microbatch(model, MICROBATCH, 1.0, CHUNK)


def test_a_model_whose_configuration_tells_of_padded_logits_is_scored_whole(model):
    model.config.unpadded_vocab_size = VOCABULARY - 9
    with LogitsWatch(VOCABULARY) as watch:
        scored(model, CHUNK)
    assert watch.most_rows >= NUM_TOKENS


def test_a_model_whose_logits_pass_through_a_factor_of_one_is_scored_whole():
    torch.manual_seed(0)
    sizes = {name: size for name, size in _SIZES.items() if name != "head_dim"}
    model = GraniteForCausalLM(GraniteConfig(logits_scaling=1.0, **sizes)).eval()
    expected, _ = scored(model, None)
    found, _ = scored(model, CHUNK)
    assert torch.equal(found.logprobs_N, expected.logprobs_N)


@pytest.mark.parametrize("chunk_tokens", [None, CHUNK])
def test_attention_scores_are_capped_where_the_model_caps_them(tmp_path, chunk_tokens):
    torch.manual_seed(0)
    sizes = {**_SIZES, "num_hidden_layers": 2, "sliding_window": 16, "query_pre_attn_scalar": 8}
    config = Gemma2Config(attn_logit_softcapping=1.0, final_logit_softcapping=None, **sizes)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    exact = Gemma2ForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float64).eval()
    expected, gradients = scored(exact, None)
    found, of_loaded = scored(load_model(tmp_path), chunk_tokens)
    torch.testing.assert_close(found.logprobs_N, expected.logprobs_N, rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(of_loaded[name].double(), gradient, rtol=1e-3, atol=1e-5, msg=name)


REWARDS = [(1, 0, 0, 1), (0, 0, 0, 1), (0.5, 0, 1, 0)]


@pytest.mark.parametrize("section", [{}, {"shard_gradients": True, "recompute_activations": True}], ids=str)
def test_ranks_that_share_parameters_train_in_chunks_as_one_process_does_whole(bench, two_ranks, section):
    batches = [bench.groups(REWARDS, seed=seed) for seed in range(2)]
    work = Work(model_path=bench.model_path, batches=batches, split=(1,), section={"kl_coefficient": 0.1, **section})
    expected = asyncio.run(fsdp_scenarios._train(bench.trainer(**work.section), work))
    found, _ = two_ranks.run(fsdp_scenarios.train, replace(work, section={**work.section, "logits_chunk_tokens": 5}))
    for name, weights in expected.weights.items():
        torch.testing.assert_close(found.weights[name], weights, rtol=1e-4, atol=2e-5, msg=name)
    for own, other in zip(found.metrics, expected.metrics, strict=True):
        assert (own.loss, own.entropy) == pytest.approx((other.loss, other.entropy), rel=1e-4, abs=1e-6)


def test_a_shard_makes_no_more_than_a_chunk_of_logits(bench, tmp_path):
    Qwen2ForCausalLM(Qwen2Config(**_SIZES)).save_pretrained(tmp_path)
    batch = bench.groups(REWARDS)
    join(None, timeout_s=60)
    try:
        most = []
        for chunk in (None, CHUNK):
            work = Work(model_path=tmp_path, batches=[batch], section={"logits_chunk_tokens": chunk})
            trainer = fsdp_scenarios.make_trainer(work)
            with LogitsWatch(VOCABULARY) as watch:
                trainer._policy.accumulate(*_work_of(trainer, batch, bench.shape(batch)))
            most.append(watch.most_rows)
    finally:
        leave()
    assert most[0] > 2 * CHUNK
    assert most[1] == CHUNK


def _work_of(trainer: Any, batch: Any, shape: BatchShape) -> tuple[Any, Any]:
    """Micro-batches and a loss, on this thread: the trainer has one of its own, where nobody watches."""
    samples = [sample for group in batch for sample in trainer._objective.samples_of(group, shape)]
    return pack(samples, 512, torch.device("cpu")), lambda _, scores: scores.logprobs_N.sum()
