"""Continuous batching without threads: parity, independence of the batch, ends, aborts, order, counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.engines.torch.attention import NAME, use_grouped_attention
from rollpacker.engines.torch.model_files import load_model
from rollpacker.protocols.rollout import FinishReason
from tests.engines.tiny import (
    EOS,
    VOCABULARY,
    begun_of,
    check_drawn_from,
    check_logprobs,
    make_decoder,
    make_model,
    make_request,
    mixed_requests,
    run_all,
)

ARCHITECTURES = ["qwen2", "llama", "gemma3", "gpt2", "bloom", "lfm2", "qwen3_next", "mixtral", "deepseek_v3"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_are_those_of_a_forward_pass(architecture: str) -> None:
    reference, model = make_model(architecture), make_model(architecture)
    use_grouped_attention(model)
    requests = mixed_requests(14)
    ended = run_all(make_decoder(model, max_num_seqs=6), requests)
    assert len(ended) == 14
    check_logprobs(reference, requests, ended)


def test_logprobs_of_a_model_that_caps_its_attention_scores_are_those_of_the_capped_ones(tmp_path: Path) -> None:
    make_model("gemma2").save_pretrained(tmp_path)
    eager: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float64}
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **eager).eval()
    requests = mixed_requests(14)
    ended = run_all(make_decoder(load_model(tmp_path, "float32", "cpu"), max_num_seqs=6), requests)
    check_logprobs(reference, requests, ended)


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gemma3"])
def test_grouped_attention_is_in_use_where_a_model_takes_attention_functions(architecture: str) -> None:
    model = make_model(architecture)
    use_grouped_attention(model)
    assert model.config._attn_implementation == NAME


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3_next"])
def test_a_samples_tokens_do_not_depend_on_the_batch_the_order_or_the_slots(architecture: str) -> None:
    model = make_model(architecture)
    requests = mixed_requests(12)
    together = run_all(make_decoder(model, max_num_seqs=12), requests)
    in_turns = run_all(make_decoder(model, max_num_seqs=5), list(reversed(requests)))
    for request in requests:
        key = request.request.prompt.key
        alone = run_all(make_decoder(model, max_num_seqs=1), [request])
        assert alone[key].token_ids.tolist() == together[key].token_ids.tolist() == in_turns[key].token_ids.tolist()


def test_a_samples_tokens_do_not_depend_on_aborts_around_it(model: Any) -> None:
    requests = mixed_requests(16)
    undisturbed = run_all(make_decoder(model, max_num_seqs=16, eos=()), requests)
    decoder = make_decoder(model, max_num_seqs=8, eos=())
    for request in requests:
        decoder.add(request)
    ended = {}
    victims = [request.request for request in requests[1::3]]
    while not decoder.is_idle:
        generations = decoder.step() + (decoder.abort([victims.pop()]) if victims else [])
        ended.update({generation.request.prompt.key: generation for generation in generations})
    assert len(ended) == 16
    for key, generation in ended.items():
        expected = undisturbed[key].token_ids
        if generation.finish_reason is FinishReason.ABORTED:
            expected = expected[: len(generation.token_ids)]
        assert generation.token_ids.tolist() == expected.tolist()


def test_samples_of_one_prompt_differ_by_seed_alone(model: Any) -> None:
    requests = [make_request(f"p{sample}", seed=seed) for sample, seed in enumerate([1, 2, 2, 3])]
    ended = run_all(make_decoder(model, max_num_seqs=4, eos=()), requests)
    tokens = [ended[f"p{sample}"].token_ids.tolist() for sample in range(4)]
    assert tokens[1] == tokens[2]
    assert tokens[0] != tokens[1] != tokens[3] != tokens[0]


def test_tokens_come_as_often_as_the_model_says(model: Any) -> None:
    requests = [make_request(f"p{seed}", seed=seed, max_response_tokens=1) for seed in range(4000)]
    ended = run_all(make_decoder(model, max_num_seqs=500), requests)
    with torch.no_grad():
        probabilities = model(input_ids=torch.tensor([[3, 4, 5]])).logits[0, -1].softmax(-1).numpy()
    assert (probabilities > 0.01).sum() > 3
    check_drawn_from([generation.token_ids[0] for generation in ended.values()], probabilities)


def test_a_greedy_request_and_one_of_few_tokens_follow_the_forward_pass_beside_any_others(model: Any) -> None:
    greedy = make_request("greedy", seed=5, temperature=0.0, max_response_tokens=20)
    few = replace(make_request("few", seed=6, max_response_tokens=20), top_k=3, top_p=0.8)
    generations = run_all(make_decoder(model, max_num_seqs=5), [greedy, *mixed_requests(12), few])
    for request in (greedy, few):
        generation = generations[request.request.prompt.key]
        known = request.prompt_token_ids.tolist()
        for token in generation.token_ids.tolist():
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([known])).logits[0, -1]
            likeliest = logits.argsort(descending=True)[:3]
            probabilities = logits[likeliest].softmax(-1)
            num_legal = 1 if request is greedy else int((probabilities.cumsum(0) - probabilities < 0.8).sum())
            assert token in likeliest[:num_legal].tolist()
            known.append(token)


def test_a_greedy_request_has_the_logprobs_of_all_tokens_however_few_it_may_draw_from(model: Any) -> None:
    """vLLM gives them so."""
    free = make_request("free", temperature=0.0)
    few = replace(make_request("few", temperature=0.0), top_k=3, top_p=0.5)
    generations = run_all(make_decoder(model), [free, few])
    assert generations["few"].token_ids.tolist() == generations["free"].token_ids.tolist()
    np.testing.assert_allclose(generations["few"].logprobs, generations["free"].logprobs, atol=1e-5)


def test_a_response_ends_with_the_first_end_token_of_several(model: Any) -> None:
    endless = run_all(make_decoder(model, eos=()), mixed_requests(12))
    ended = run_all(make_decoder(model, eos=(EOS, 7, 9)), mixed_requests(12))
    reasons = set()
    for key, generation in ended.items():
        free = endless[key].token_ids.tolist()
        cut = next((at for at, token in enumerate(free) if token in {EOS, 7, 9}), None)
        assert generation.token_ids.tolist() == (free if cut is None else free[: cut + 1])
        assert generation.finish_reason is (FinishReason.LENGTH if cut is None else FinishReason.STOP)
        reasons.add(generation.finish_reason)
    assert reasons == {FinishReason.LENGTH, FinishReason.STOP}


def test_a_response_without_an_end_has_exactly_the_length_asked_for(model: Any) -> None:
    requests = [make_request(f"p{length}", max_response_tokens=length) for length in (1, 2, 33, 100)]
    ended = run_all(make_decoder(model, eos=()), requests)
    assert {key: len(generation.token_ids) for key, generation in ended.items()} == {
        "p1": 1,
        "p2": 2,
        "p33": 33,
        "p100": 100,
    }
    assert all(generation.finish_reason is FinishReason.LENGTH for generation in ended.values())


def test_an_abort_keeps_the_tokens_of_running_requests_and_waiting_ones_have_none(model: Any) -> None:
    decoder = make_decoder(model, max_num_seqs=2, eos=())
    requests = [make_request(f"p{index}", max_response_tokens=20) for index in range(4)]
    for request in requests:
        decoder.add(request)
    for _ in range(5):
        assert decoder.step() == []
    generations = decoder.abort([requests[0].request, requests[3].request, RequestId(9, PromptId(0, "unknown"), 0)])
    aborted = {generation.request.prompt.key: generation for generation in generations}
    assert {key: len(generation.token_ids) for key, generation in aborted.items()} == {"p0": 6, "p3": 0}
    assert all(generation.finish_reason is FinishReason.ABORTED for generation in generations)
    assert decoder.abort([requests[0].request]) == []
    check_logprobs(model, requests[:1], aborted)
    assert run_all(decoder, []).keys() == {"p1", "p2"}


def test_waiting_requests_start_first_come_first_served(model: Any) -> None:
    decoder = make_decoder(model, max_num_seqs=2, eos=())
    for index in range(7):
        decoder.add(make_request(f"p{index}", list(range(2, 9 - index)), max_response_tokens=3))
    order = []
    while not decoder.is_idle:
        assert decoder.num_running <= 2
        order += [generation.request.prompt.key for generation in decoder.step()]
    assert [set(order[at : at + 2]) for at in (0, 2, 4, 6)] == [{"p0", "p1"}, {"p2", "p3"}, {"p4", "p5"}, {"p6"}]


def test_waiting_requests_of_an_evaluation_start_behind_those_of_training(model: Any) -> None:
    requests = [
        replace(make_request(f"p{index}", max_response_tokens=2), priority=priority)
        for index, priority in enumerate((1, 1, 0, 0))
    ]
    ended = run_all(make_decoder(model, max_num_seqs=1, eos=()), requests)
    assert list(ended) == ["p2", "p3", "p0", "p1"]


def test_requests_may_join_at_any_time_with_longer_prompts_than_all_before(model: Any) -> None:
    numbers = np.random.default_rng(0)
    requests = [
        make_request(f"p{length}", numbers.integers(2, VOCABULARY, length), seed=length, max_response_tokens=25)
        for length in (1, 2, 30, 3, 90, 5)
    ]
    decoder = make_decoder(model, max_num_seqs=8, eos=())
    ended = {}
    for request in requests:
        decoder.add(request)
        for _ in range(4):
            ended.update({generation.request.prompt.key: generation for generation in decoder.step()})
    check_logprobs(model, requests, ended | run_all(decoder, []))


def test_a_request_that_just_fits_is_served(model: Any) -> None:
    ended = run_all(
        make_decoder(model, max_tokens=128, eos=()), [make_request(prompt=[3] * 100, max_response_tokens=28)]
    )
    assert len(ended["p"].token_ids) == 28


def test_an_id_in_flight_is_refused(model: Any) -> None:
    decoder = make_decoder(model, max_num_seqs=1)
    decoder.add(make_request("a"))
    with pytest.raises(ImpossibleEvent, match="in flight"):
        decoder.add(make_request("a"))
    decoder.step()
    with pytest.raises(ImpossibleEvent, match="in flight"):
        decoder.add(make_request("a"))


def test_a_batch_that_waits_for_its_longest_response_shows_its_bubble(model: Any) -> None:
    decoder = make_decoder(model, max_num_seqs=8, eos=())
    lengths = [3, 5, 11]
    run_all(decoder, [make_request(f"p{length}", max_response_tokens=length) for length in lengths])
    # the first token of each comes from the prompts' forward pass
    assert decoder.num_decode_steps == 10
    assert decoder.busy_slot_steps == 2 + 4 + 10
    assert decoder.busy_slot_steps + decoder.idle_slot_steps == 3 * 10
    assert decoder.num_generated_tokens == sum(lengths)
    assert decoder.capacity == 0


def test_slots_that_nobody_asked_for_are_not_idle_and_waiting_requests_leave_none_idle(model: Any) -> None:
    decoder = make_decoder(model, max_num_seqs=4, eos=())
    run_all(decoder, [make_request(f"p{index}", max_response_tokens=6) for index in range(8)])
    assert decoder.idle_slot_steps == 0
    assert decoder.busy_slot_steps == 4 * 5 * 2
    run_all(decoder, [make_request("alone", max_response_tokens=6)])
    assert decoder.idle_slot_steps == 0


def test_what_goes_on_with_other_weights_has_its_slots_and_those_that_left_are_not_idle(model: Any) -> None:
    decoder = make_decoder(model, max_num_seqs=8, eos=())
    for num_tokens in (3, 5, 11):
        decoder.add(make_request(f"p{num_tokens}", max_response_tokens=num_tokens))
    while decoder.num_in_flight > 1:
        decoder.step()
    num_idle = decoder.idle_slot_steps
    decoder.end_version(1)
    run_all(decoder, [])
    assert decoder.idle_slot_steps == num_idle > 0


def test_queue_and_generation_times_follow_the_clock(model: Any) -> None:
    decoder = make_decoder(model, max_num_seqs=1, eos=())  # its clock counts how often it is read
    ended = run_all(
        decoder, [make_request("first", max_response_tokens=2), make_request("second", max_response_tokens=2)]
    )
    # add 1, add 2, start 3, end 4, start 5, end 6
    assert (ended["first"].queue_time_s, ended["first"].generation_time_s) == (2, 1)
    assert (ended["second"].queue_time_s, ended["second"].generation_time_s) == (3, 1)


def test_prompts_beyond_one_forward_pass_are_computed_in_several(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = mixed_requests(12)
    expected = run_all(make_decoder(model, max_num_seqs=12), requests)
    monkeypatch.setattr("rollpacker.engines.torch.sequences._MAX_PREFILL_TOKENS", 20)
    ended = run_all(make_decoder(model, max_num_seqs=12), requests)
    assert {key: generation.token_ids.tolist() for key, generation in ended.items()} == {
        key: generation.token_ids.tolist() for key, generation in expected.items()
    }


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(["add", "step", "step", "abort"]), st.integers(0, 50)), max_size=60))
def test_every_request_comes_out_once_and_the_counts_add_up(script: list[tuple[str, int]]) -> None:
    decoder = make_decoder(_SHARED_MODEL, max_num_seqs=3, eos=(EOS,))
    asked: list[RequestId] = []
    ended: list[RequestId] = []
    num_tokens = expected_slot_steps = 0

    def step() -> None:
        nonlocal num_tokens, expected_slot_steps
        steps_before, slots_before = decoder.num_decode_steps, decoder.busy_slot_steps + decoder.idle_slot_steps
        capacity = decoder.capacity
        ended.extend(generation.request for generation in decoder.step())
        if decoder.num_decode_steps > steps_before:
            assert decoder.busy_slot_steps + decoder.idle_slot_steps - slots_before == capacity

    for action, number in script:
        match action:
            case "add":
                prompt = [2 + (number * at) % (VOCABULARY - 2) for at in range(1 + number % 7)]
                request = make_request(f"p{len(asked)}", prompt, seed=number, max_response_tokens=1 + number % 9)
                decoder.add(request)
                asked.append(request.request)
            case "step":
                step()
            case "abort":
                ended += [generation.request for generation in decoder.abort(asked[number % 5 :: 5])]
        assert decoder.num_running + decoder.num_waiting + len(ended) == len(asked)
        assert decoder.num_running <= 3
    while not decoder.is_idle:
        step()
    assert sorted(ended) == sorted(asked)
    assert decoder.num_cached_tokens == 0


_SHARED_MODEL = make_model()


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3_next"])
def test_a_sample_that_goes_on_elsewhere_ends_as_if_it_had_stayed(architecture: str) -> None:
    """Each is aborted in the middle and goes on in another decoder from the tokens that it had."""
    model = make_model(architecture)
    requests = mixed_requests(9)
    stayed = run_all(make_decoder(model, max_num_seqs=9, eos=()), requests)
    left, joined = make_decoder(model, max_num_seqs=6, eos=()), make_decoder(model, max_num_seqs=9, eos=())
    for request in requests:
        left.add(request)
    left.step()
    left.step()
    progress = {each.request.prompt.key: each.num_generated_tokens for each in left.progress()}
    begun = {generation.request: generation for generation in left.abort_all()}
    assert len(begun) == 9
    for request in requests:
        generation = begun[request.request]
        assert progress[request.request.prompt.key] == len(generation.token_ids)
        joined.add(replace(request, begun=begun_of(generation)))
    assert {each.request.prompt.key: each.num_generated_tokens for each in joined.progress()} == progress
    waited = joined.abort([requests[0].request])  # before its first step here: it loses nothing
    assert waited[0].token_ids.tolist() == begun[requests[0].request].token_ids.tolist()
    ended = run_all(joined, [])
    assert len(ended) == 8
    for key, generation in ended.items():
        assert generation.token_ids.tolist() == stayed[key].token_ids.tolist()
        np.testing.assert_allclose(generation.logprobs, stayed[key].logprobs, atol=1e-4)
    assert left.num_generated_tokens == sum(progress.values())
    assert joined.num_generated_tokens == sum(len(ended[key].token_ids) - progress[key] for key in ended)
