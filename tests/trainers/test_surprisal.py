"""Engines that draw from the policy pass; those that draw from anything else are found, whatever they say."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rollpacker.config.sections.trainer import TrainerSection
from rollpacker.core.errors import WrongSampling
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.engines.torch import sampling
from rollpacker.engines.torch.decoder import Decoder
from rollpacker.protocols.rollout import GenerationRequest, Response, RolloutGroup
from rollpacker.trainers.surprisal import LEAST_GAP_NATS, surprisal_warning, surprisal_z

NUM_PROMPTS, NUM_RESPONSES, MAX_TOKENS, TEMPERATURE = 48, 8, 16, 0.7
SAMPLE = sampling.sample
Drawn = tuple[torch.Tensor, torch.Tensor]


def forgets_the_temperature(logits_BV: torch.Tensor, temperatures_B: Any, uniforms_B: torch.Tensor) -> Drawn:
    """The tokens are of temperature 1, and so is what it says of them."""
    return SAMPLE(logits_BV, None, uniforms_B)


def says_the_temperature_only(logits_BV: torch.Tensor, temperatures_B: Any, uniforms_B: torch.Tensor) -> Drawn:
    tokens_B, _ = SAMPLE(logits_BV, None, uniforms_B)
    return tokens_B, said(logits_BV, temperatures_B, tokens_B)


def samples_top_p(logits_BV: torch.Tensor, temperatures_B: Any, uniforms_B: torch.Tensor) -> Drawn:
    top_ps_B = torch.full((len(logits_BV),), 0.9)
    tokens_B, _ = SAMPLE(sampling.keep_likeliest(logits_BV, temperatures_B, None, top_ps_B), temperatures_B, uniforms_B)
    return tokens_B, said(logits_BV, temperatures_B, tokens_B)


def accepts_wrong_drafts(logits_BV: torch.Tensor, temperatures_B: Any, uniforms_B: torch.Tensor) -> Drawn:
    """One token in ten is another one than was drawn; its log-probability is the model's own."""
    tokens_B, _ = SAMPLE(logits_BV, temperatures_B, uniforms_B)
    is_draft_B = (uniforms_B * 1000).long() % 10 == 0
    tokens_B = torch.where(is_draft_B, (tokens_B + 7) % logits_BV.shape[1], tokens_B)
    return tokens_B, said(logits_BV, temperatures_B, tokens_B)


def said(logits_BV: torch.Tensor, temperatures_B: torch.Tensor, tokens_B: torch.Tensor) -> torch.Tensor:
    """Right log-probabilities."""
    scaled_BV = logits_BV.float() / temperatures_B[:, None]
    return scaled_BV.log_softmax(-1).gather(1, tokens_B[:, None])[:, 0]


def generate(model: Any) -> list[RolloutGroup]:
    """Groups of the torch engine's own decoder."""
    decoder = Decoder(model, max_num_seqs=64, max_tokens_per_seq=64, eos_token_ids=(1,), clock=lambda: 0.0)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(2, 24, generator.integers(1, 6)).astype(np.int32) for _ in range(NUM_PROMPTS)]
    for index, token_ids in enumerate(prompts):
        for sample in range(NUM_RESPONSES):
            decoder.add(
                GenerationRequest(
                    request=RequestId(0, PromptId(0, f"p{index}"), sample),
                    prompt_token_ids=token_ids,
                    seed=int(generator.integers(2**62)),
                    max_response_tokens=MAX_TOKENS,
                    temperature=TEMPERATURE,
                )
            )
    responses: dict[str, list[Response]] = {}
    while not decoder.is_idle:
        for made in decoder.step():
            response = Response(
                request=made.request,
                engine=EngineId("engine-0"),
                finish_reason=made.finish_reason,
                token_ids=made.token_ids,
                logprobs=made.logprobs,
                spans=(VersionSpan(policy_version=0, num_tokens=len(made.token_ids)),),
                queue_time_s=0.0,
                generation_time_s=0.0,
            )
            responses.setdefault(made.request.prompt.key, []).append(response)
    return [
        RolloutGroup(
            prompt=PromptId(0, f"p{index}"),
            domain=Domain("math"),
            prompt_token_ids=token_ids,
            responses=tuple(responses[f"p{index}"]),
            rewards=tuple(float(sample % 2) for sample in range(NUM_RESPONSES)),
        )
        for index, token_ids in enumerate(prompts)
    ]


async def update_of(bench: Any, monkeypatch: pytest.MonkeyPatch, sample: Any = SAMPLE, **section: object) -> Any:
    monkeypatch.setattr("rollpacker.engines.torch.decoder.sample", sample)
    groups = generate(AutoModelForCausalLM.from_pretrained(bench.model_path).eval())
    trainer = bench.trainer(temperature=TEMPERATURE, max_tokens_per_microbatch=1024, **section)
    await trainer.begin_step(bench.shape(groups))
    await trainer.accumulate(groups[:20])
    await trainer.accumulate(groups[20:])
    return await trainer.finish_step()


@pytest.mark.parametrize(
    "section",
    [{}, {"logits_chunk_tokens": 50}, {"num_minibatches": 2}, {"loss_normalisation": "token_mean"}],
    ids=str,
)
async def test_an_engine_that_draws_from_the_policy_passes(bench, monkeypatch, section):
    update = await update_of(bench, monkeypatch, **section)
    assert update.num_tokens > 2000
    assert abs(update.surprisal_z) < 3
    assert update.surprisal == pytest.approx(update.current_entropy, abs=0.1)
    assert update.logprob_mismatch_max < 1e-4
    assert surprisal_warning(update, TrainerSection(), 0) is None


@pytest.mark.parametrize(
    ("sample", "sign", "largest_gap"),
    [
        (forgets_the_temperature, 1, 10),
        (says_the_temperature_only, 1, 1e-4),
        (samples_top_p, -1, 1e-4),
        (accepts_wrong_drafts, 1, 1e-4),
    ],
)
async def test_an_engine_that_draws_from_something_else_ends_the_run(bench, monkeypatch, sample, sign, largest_gap):
    """Its log-probabilities are the trainer's to 1e-4 in all but the first case: they show nothing."""
    update = await update_of(bench, monkeypatch, sample)
    assert update.logprob_mismatch_max < largest_gap
    assert update.surprisal_z * sign > 12
    assert (update.surprisal - update.current_entropy) * sign > LEAST_GAP_NATS
    with pytest.raises(WrongSampling, match="tokens of step 7 are not drawn from the policy") as caught:
        surprisal_warning(update, TrainerSection(), 7)
    assert "trainer.surprisal_stop_z=12" in caught.value.allowed
    assert "speculative decoding" in caught.value.remedy
    warning = surprisal_warning(update, TrainerSection(surprisal_stop_z=None), 7)
    assert warning is not None
    assert "surprisal_z" in warning
    assert surprisal_warning(update, TrainerSection(surprisal_stop_z=None, surprisal_warn_z=None), 7) is None


def observed(probabilities: np.ndarray, generator: np.random.Generator, num_tokens: int) -> float:
    """z of tokens that are drawn from one distribution."""
    tokens = generator.choice(len(probabilities), num_tokens, p=probabilities)
    logs = np.log(probabilities)
    entropy = -(probabilities * logs).sum()
    gaps = -logs[tokens] - entropy
    variance = (probabilities * logs**2).sum() - entropy**2
    return surprisal_z(gaps.sum(), (gaps**2).sum(), variance * num_tokens)


def test_z_is_standard_normal_for_many_tokens():
    generator = np.random.default_rng(0)
    found = [observed(np.array([0.5, 0.3, 0.15, 0.05]), generator, 2000) for _ in range(500)]
    assert np.mean(found) == pytest.approx(0, abs=0.15)
    assert np.std(found) == pytest.approx(1, abs=0.1)


def test_a_policy_that_is_almost_sure_raises_no_alarm_whether_an_unlikely_token_comes_or_not():
    generator = np.random.default_rng(0)
    found = [observed(np.array([1 - 1e-4, 1e-4]), generator, 3000) for _ in range(500)]
    assert max(np.abs(found)) < 5
    assert len({round(z, 3) for z in found}) > 2  # none, one and two unlikely tokens


def test_where_nothing_is_random_there_is_no_alarm():
    assert surprisal_z(0.0, 0.0, 0.0) == 0
    update: Any = SimpleNamespace(surprisal=1e-6, current_entropy=0.0, surprisal_z=1e6)  # rounding, and no variance
    assert surprisal_warning(update, TrainerSection(), 0) is None


@pytest.mark.parametrize(("gap", "is_found"), [(0.01, False), (0.08, True)])
@pytest.mark.parametrize("stale_entropy", [0.1, 0.9])
def test_the_entropy_of_stale_tokens_neither_hides_a_broken_engine_nor_makes_one(gap, is_found, stale_entropy):
    entropies = {"current_entropy": 0.5, "entropy": (0.5 + stale_entropy) / 2}
    update: Any = SimpleNamespace(surprisal=0.5 + gap, surprisal_z=20.0, **entropies)
    warning = surprisal_warning(update, TrainerSection(surprisal_stop_z=None), 0)
    assert (warning is not None) == is_found
    assert warning is None or "surprisal is 0.58 nats, and the mean entropy of their distributions 0.5 " in warning


def test_a_modelled_step_is_not_tested_and_a_nan_is_no_pass():
    modelled: Any = SimpleNamespace(surprisal=None, current_entropy=None, surprisal_z=None)
    assert surprisal_warning(modelled, TrainerSection(), 0) is None
    z = surprisal_z(math.nan, math.nan, 1.0)
    broken: Any = SimpleNamespace(surprisal=math.nan, current_entropy=1.0, surprisal_z=z)
    with pytest.raises(WrongSampling, match="nan"):
        surprisal_warning(broken, TrainerSection(), 0)
