"""Drafts change how many passes a response takes, and nothing of it: tokens, log-probabilities, ends, order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.commands import DraftRule
from rollpacker.core.errors import ModelError
from rollpacker.core.ids import EngineId, PromptId, RequestId
from rollpacker.engines.draft_lengths import DraftLengths
from rollpacker.engines.torch.attention import use_grouped_attention
from rollpacker.engines.torch.engine import TorchEngine
from rollpacker.engines.torch.model_files import load_model
from rollpacker.engines.torch.sampling import keep_likeliest, sample, uniform_numbers
from rollpacker.engines.torch.servable import require_verifiable
from rollpacker.engines.torch.verification import num_kept
from rollpacker.protocols.rollout import FinishReason
from tests.engines.exercises import collect, weights_of
from tests.engines.tiny import (
    EOS,
    VOCABULARY,
    begun_of,
    check_drawn_from,
    check_logprobs,
    make_decoder,
    make_model,
    mixed_requests,
    run_all,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rollpacker.engines.torch.sequences import Generation
    from rollpacker.protocols.rollout import GenerationRequest, TokenIds

ALWAYS = (DraftRule(64, 4, 0, 0),)
FULL_ATTENTION = ["qwen2", "llama", "gpt2", "mixtral", "deepseek_v3"]


class Guesses:
    """A history that knows what plain decoding writes, and proposes it with some mistakes."""

    def __init__(self, texts: list[list[int]], share_right: float = 0.8) -> None:
        self.texts = texts
        self.share_right = share_right
        self.numbers = np.random.default_rng(0)
        self.num_begun = self.num_ended = 0

    def begin(self, slot: int, prompt_token_ids: TokenIds) -> None:
        del slot, prompt_token_ids
        self.num_begun += 1

    def draft(self, slots: np.ndarray, texts: TokenIds, nums: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        drafts = self.numbers.integers(0, VOCABULARY, (len(slots), length))
        for row, (slot, num) in enumerate(zip(slots, nums, strict=True)):
            known = texts[slot, :num].tolist()
            for text in self.texts:
                if text[:num] == known:
                    rest = text[num : num + length]
                    drafts[row, : len(rest)] = rest
        is_wrong = self.numbers.random(drafts.shape) > self.share_right
        drafts = np.where(is_wrong, self.numbers.integers(0, VOCABULARY, drafts.shape), drafts)
        return drafts, self.numbers.integers(0, length + 1, len(slots))

    def end(self, slot: int, response_token_ids: TokenIds) -> None:
        del slot, response_token_ids
        self.num_ended += 1


def guesses_of(plain: Mapping[str, Generation], share_right: float = 0.8) -> Guesses:
    return Guesses([each.token_ids.tolist() for each in plain.values()], share_right)


def various(num: int, seed: int = 0) -> list[GenerationRequest]:
    """Mixed requests, greedy ones and truncated ones among them."""
    changes: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.7}, {}]
    return [replace(request, **changes[at % len(changes)]) for at, request in enumerate(mixed_requests(num, seed=seed))]


def assert_same(ended: Mapping[str, Generation], plain: Mapping[str, Generation]) -> None:
    assert ended.keys() == plain.keys()
    for key, expected in plain.items():
        assert ended[key].token_ids.tolist() == expected.token_ids.tolist()
        assert ended[key].finish_reason is expected.finish_reason
        np.testing.assert_allclose(ended[key].logprobs, expected.logprobs, rtol=0, atol=2e-4)


@pytest.mark.parametrize("architecture", FULL_ATTENTION)
@pytest.mark.parametrize("is_grouped", [True, False])
def test_tokens_and_logprobs_are_those_of_plain_decoding(architecture: str, is_grouped: bool) -> None:
    model = make_model(architecture)
    if is_grouped:
        use_grouped_attention(model)
    requests = various(15)
    plain = run_all(make_decoder(model, max_num_seqs=6), requests)
    decoder = make_decoder(model, max_num_seqs=6, rules=ALWAYS, history=guesses_of(plain))
    assert_same(run_all(decoder, requests), plain)
    (passes,) = decoder.draft_lengths.totals()
    assert passes.num_accepted > 50
    assert passes.num_drafted > passes.num_accepted


def test_logprobs_of_drafted_responses_are_those_of_a_forward_pass(model: Any) -> None:
    requests = mixed_requests(10)
    plain = run_all(make_decoder(model), requests)
    ended = run_all(make_decoder(model, rules=ALWAYS, history=guesses_of(plain)), requests)
    check_logprobs(model, requests, ended)


def test_a_second_epoch_with_the_same_seeds_is_drafted_by_the_first(model: Any) -> None:
    requests = mixed_requests(8, max_response_tokens=60)
    decoder = make_decoder(model, rules=ALWAYS)
    first = run_all(decoder, requests)
    steps = decoder.num_decode_steps
    again = [replace(request, request=RequestId(1, PromptId(1, request.request.prompt.key), 0)) for request in requests]
    assert_same(run_all(decoder, again), first)
    # one epoch of up to 59 passes, and one of up to 12 and what is lost where a text was not found
    assert decoder.num_decode_steps - steps < steps / 2


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    seed=st.integers(0, 1000),
    share_right=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    rules=st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 7), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=3
    ),
    aborts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 11)), max_size=4),
)
def test_rules_drafts_and_aborts_of_any_kind_change_no_token(
    seed: int, share_right: float, rules: list[tuple[int, int, int, int]], aborts: list[tuple[int, int]]
) -> None:
    requests = various(12, seed=seed)
    plain = run_all(make_decoder(_SHARED_MODEL, max_num_seqs=12), requests)
    table = tuple(DraftRule(*rule) for rule in sorted(rules))
    history = guesses_of(plain, share_right)
    decoder = make_decoder(_SHARED_MODEL, max_num_seqs=5, rules=table, history=history)
    for request in requests:
        decoder.add(request)
    ended: list[Generation] = []
    step = 0
    while not decoder.is_idle:
        ended += decoder.step()
        ended += decoder.abort([requests[index].request for at, index in aborts if at == step])
        assert decoder.num_cached_tokens == sum(
            running.num_prompt_tokens + running.num_generated_tokens - 1
            for running in decoder.progress()[: decoder.num_running]
        )
        step += 1
    assert len(ended) == 12
    for generation in ended:
        expected = plain[generation.request.prompt.key]
        num_tokens = len(generation.token_ids)
        if generation.finish_reason is not FinishReason.ABORTED:
            assert num_tokens == len(expected.token_ids)
        assert generation.token_ids.tolist() == expected.token_ids[:num_tokens].tolist()
        assert len(generation.logprobs) == num_tokens
    for passes in decoder.draft_lengths.totals():
        assert 0 <= passes.num_accepted <= passes.num_drafted <= passes.draft_length * passes.num_sequence_passes
        assert passes.num_sequence_passes <= passes.num_passes * passes.max_sequences
        assert passes.time_s > 0


def test_an_aborted_response_goes_on_elsewhere_with_drafts_as_if_nothing_had_happened(model: Any) -> None:
    requests = mixed_requests(6, max_response_tokens=60)
    plain = run_all(make_decoder(model, eos=()), requests)
    guesses = guesses_of(plain)
    decoder = make_decoder(model, eos=(), rules=ALWAYS, history=guesses)
    for request in requests:
        decoder.add(request)
    ended = [generation for _ in range(3) for generation in decoder.step()]
    moved = decoder.abort_all()
    assert any(len(generation.token_ids) > 4 for generation in moved)
    asked = {request.request: request for request in requests}
    elsewhere = make_decoder(model, eos=(), rules=ALWAYS, history=guesses)
    begun = [replace(asked[generation.request], begun=begun_of(generation)) for generation in moved]
    rest = run_all(elsewhere, begun)
    assert_same({generation.request.prompt.key: generation for generation in ended} | rest, plain)


def test_a_draft_that_ends_the_response_or_reaches_its_limit_ends_it(model: Any) -> None:
    requests = mixed_requests(24, max_response_tokens=60)
    ends = (EOS, 7, 9, 11)
    plain = run_all(make_decoder(model, max_num_seqs=24, eos=ends), requests)
    rules = (DraftRule(64, 8, 0, 0),)
    history = guesses_of(run_all(make_decoder(model, max_num_seqs=24, eos=()), requests), share_right=1)
    ended = run_all(make_decoder(model, max_num_seqs=24, eos=ends, rules=rules, history=history), requests)
    assert_same(ended, plain)
    assert {generation.finish_reason for generation in ended.values()} == {FinishReason.STOP, FinishReason.LENGTH}
    assert history.num_begun == history.num_ended == 24


def test_a_response_may_fill_the_models_last_position() -> None:
    """GPT-2 has no embedding for later ones, which padding behind the drafts of shorter rows would reach."""
    gpt2 = make_model("gpt2")
    requests = [
        replace(request, prompt_token_ids=np.resize(request.prompt_token_ids, 400), max_response_tokens=112 - 30 * at)
        for at, request in enumerate(mixed_requests(3))
    ]
    plain = run_all(make_decoder(gpt2, eos=(), max_tokens=512), requests)
    rules = (DraftRule(64, 16, 0, 0),)
    history = guesses_of(plain, share_right=0.95)
    assert_same(run_all(make_decoder(gpt2, eos=(), max_tokens=512, rules=rules, history=history), requests), plain)


def test_the_accept_rule_draws_from_the_policy_whatever_the_drafts_are() -> None:
    """100,000 sequences of three tokens; drafts are the likeliest tokens, the worst ones, or chance."""
    num, vocabulary = 100_000, 6
    numbers = np.random.default_rng(3)
    logits_QV = torch.from_numpy(numbers.normal(size=(3, vocabulary)).astype(np.float32)) * 1.5
    temperature, top_p = 0.8, 0.9
    flat = keep_likeliest(logits_QV, torch.full((3,), temperature), None, torch.full((3,), top_p))
    policy_QV = (flat / temperature).softmax(-1).double().numpy()
    seeds_B = numbers.integers(0, 2**63, num).astype(np.uint64)
    drafts_BG = np.where(
        (np.arange(num) % 3 == 0)[:, None],
        logits_QV[:2].argmax(-1).numpy(),
        np.where(
            (np.arange(num) % 3 == 1)[:, None], logits_QV[:2].argmin(-1).numpy(), numbers.integers(0, 6, (num, 2))
        ),
    )
    drawn_BQ = np.stack(
        [
            sample(
                flat[at].expand(num, -1),
                torch.full((num,), temperature),
                torch.from_numpy(uniform_numbers(seeds_B, np.full(num, at))),
            )[0].numpy()
            for at in range(3)
        ],
        axis=1,
    )
    kept_B = num_kept(drawn_BQ, drafts_BG, np.full(num, 2), np.array([], dtype=np.int64))
    assert set(np.unique(kept_B)) == {1, 2, 3}
    for at in range(3):  # also given how many drafts were accepted before
        for group in range(3):
            tokens = drawn_BQ[(kept_B > at) & (np.arange(num) % 3 == group), at]
            if len(tokens) > 100:
                check_drawn_from(tokens, policy_QV[at])
    accepted = (kept_B > 1)[np.arange(num) % 3 == 0].mean()
    assert abs(accepted - policy_QV[0].max()) < 0.01


def test_samples_of_one_prompt_are_distributed_alike_with_and_without_drafts(model: Any) -> None:
    """The siblings draft for each other; what they draw is compared with the model's own probabilities."""
    prompt = [3, 4, 5]
    requests = [
        replace(
            mixed_requests(1)[0],
            request=RequestId(0, PromptId(0, f"p{at}"), 0),
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            seed=at,
            temperature=0.3,
            max_response_tokens=3,
        )
        for at in range(1500)
    ]
    decoder = make_decoder(model, max_num_seqs=64, eos=(), rules=ALWAYS)
    ended = run_all(decoder, requests)
    assert decoder.draft_lengths.totals()[0].num_accepted > 300
    tokens = np.array([generation.token_ids for generation in ended.values()])
    known = list(prompt)
    for at in range(3):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([known])).logits[0, -1]
        probabilities = (logits / 0.3).double().softmax(-1).numpy()
        is_prefix = (tokens[:, :at] == known[3:]).all(axis=1)
        column = tokens[is_prefix, at]
        check_drawn_from(column, probabilities)
        known.append(int(np.bincount(column).argmax()))


def test_the_rules_length_follows_the_batch_and_every_nth_pass_tries_another() -> None:
    lengths = DraftLengths()
    assert lengths.next_pass(1) is None
    lengths.use([DraftRule(2, 8, 0, 3), DraftRule(16, 2, 4, 2)])
    assert [lengths.next_pass(2) for _ in range(4)] == [(2, 8), (2, 8), (2, 0), (2, 8)]
    assert [lengths.next_pass(3) for _ in range(4)] == [(16, 2), (16, 4), (16, 2), (16, 4)]
    assert lengths.next_pass(17) is None
    lengths.use([DraftRule(2, 6, 0, 3)])  # rounds shorter than a trial's interval try, too
    assert [lengths.next_pass(1) for _ in range(3)] == [(2, 6), (2, 0), (2, 6)]


def test_a_decoder_counts_its_passes_under_the_rule_and_length_that_they_had(model: Any) -> None:
    requests = [replace(request, max_response_tokens=30) for request in mixed_requests(6)]
    plain = run_all(make_decoder(model, eos=()), requests)
    rules = (DraftRule(4, 3, 0, 2), DraftRule(5, 0, 0, 0))
    decoder = make_decoder(model, eos=(), rules=rules, history=guesses_of(plain))
    run_all(decoder, requests[:4])
    by_length = {(passes.max_sequences, passes.draft_length): passes for passes in decoder.draft_lengths.totals()}
    assert by_length.keys() == {(4, 0), (4, 3)}
    assert by_length[4, 0].num_drafted == by_length[4, 0].num_accepted == 0
    tokens = sum(passes.num_sequence_passes + passes.num_accepted for passes in by_length.values())
    assert tokens == 4 * 29  # the first one is of the prompts' pass
    assert sum(passes.num_passes for passes in by_length.values()) == decoder.num_decode_steps
    run_all(decoder, requests)
    assert (5, 0) not in by_length
    assert max(passes.max_sequences for passes in decoder.draft_lengths.totals()) <= 5


@pytest.mark.parametrize("architecture", ["gemma3", "bloom", "lfm2", "qwen3_next"])
def test_drafts_of_a_model_with_other_layers_than_full_attention_are_refused(architecture: str) -> None:
    with pytest.raises(ModelError, match="cannot verify draft tokens") as error:
        require_verifiable(make_model(architecture))
    assert "system.speculative_decoding=false" in str(error.value)


def test_drafts_of_a_model_that_caps_the_scores_of_its_full_attention_are_refused(tmp_path: Path) -> None:
    model = make_model("vaultgemma")
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="it caps its attention scores"):
        require_verifiable(load_model(tmp_path, "float32"))
    model.config.attn_logit_softcapping = None
    model.save_pretrained(tmp_path)
    require_verifiable(load_model(tmp_path, "float32"))


async def test_an_engine_drafts_from_earlier_rounds_over_sleep_and_new_weights(model_path: Path) -> None:
    engine = TorchEngine(EngineId("e"), model_path, EngineSection(max_num_seqs=8), 256, "float32", drafts=True)
    weights = [weights_of(make_model(seed=seed), seed) for seed in range(2)]
    try:
        await engine.use_draft_lengths(ALWAYS)
        seen: list[dict[str, Any]] = []
        for version in (0, 1):
            await engine.load_weights(weights[version])
            for _ in range(2):
                await engine.generate(mixed_requests(6))
                seen.append(await collect(engine, 6))
                seen[-1]["passes"] = (await engine.stats()).draft_passes[0]
            await engine.sleep()
            await engine.wake()
        passes = [responses.pop("passes") for responses in seen]
        gained = [after.num_accepted - before.num_accepted for before, after in itertools.pairwise(passes)]
        assert gained[0] > 20
        assert gained[2] > 20
        for first, second in (seen[:2], seen[2:]):
            assert {key: each.token_ids.tolist() for key, each in first.items()} == {
                key: each.token_ids.tolist() for key, each in second.items()
            }
        await engine.use_draft_lengths(())
        await engine.load_weights(weights[0])
        await engine.generate(mixed_requests(6))
        await collect(engine, 6)
        assert (await engine.stats()).draft_passes[0].num_passes == passes[-1].num_passes
    finally:
        await engine.close()


_SHARED_MODEL = make_model()
