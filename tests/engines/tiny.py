"""Tiny random models of several architectures, and requests for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from rollpacker.core.ids import EngineId, PromptId, RequestId
from rollpacker.engines.torch.decoder import Decoder
from rollpacker.engines.torch.history import History
from rollpacker.engines.torch.sequences import Generation
from rollpacker.protocols.rollout import GenerationRequest, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rollpacker.core.commands import DraftRule

torch.set_num_threads(1)

VOCABULARY = 40
EOS = 1

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
_CAPPED: dict[str, Any] = {
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 1.0,
    "initializer_range": 0.1,
}
"""Attention scores are capped, far below what they are."""


CONFIGS: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: transformers.Qwen2Config(**_SIZES, tie_word_embeddings=True),
    "llama": lambda: transformers.LlamaConfig(**_SIZES, tie_word_embeddings=False),
    # sliding-window and full layers take turns; another scaling, norms and head size
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_SIZES, head_dim=16, sliding_window=7, layer_types=["sliding_attention", "full_attention"]
    ),
    "gemma2": lambda: transformers.Gemma2Config(**_SIZES, **_CAPPED, sliding_window=7),
    # the same in full attention only
    "vaultgemma": lambda: transformers.VaultGemmaConfig(**_SIZES, **_CAPPED, layer_types=["full_attention"] * 2),
    # learned positions, no rotary embedding, no grouped heads
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=512, bos_token_id=0, eos_token_id=EOS
    ),
    # ALiBi computed from the two-dimensional mask; takes no position ids
    "bloom": lambda: transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=EOS
    ),
    # convolution states beside attention
    "lfm2": lambda: transformers.Lfm2Config(**_SIZES, layer_types=["conv", "full_attention"]),
    # recurrent states beside attention
    "qwen3_next": lambda: transformers.Qwen3NextConfig(
        **_SIZES,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    # experts
    "mixtral": lambda: transformers.MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2),
    # latent attention: keys and values of different sizes
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **{**_SIZES, "num_key_value_heads": 4},
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=16,
        first_k_dense_replace=1,
    ),
    # a recurrent state and attention in one layer
    "falcon_h1": lambda: transformers.FalconH1Config(
        **_SIZES, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8
    ),
}


LONGROPE_LIMIT = 40
"""Tokens up to which the model of `longrope_config` would have its short factor."""
LONG_FACTOR = 4.0


def longrope_config(short_factor: float = 1.0) -> Any:
    """With `LONG_FACTOR` as its short factor, too, it has the same frequencies at any length."""
    factors = {"short_factor": [short_factor] * 4, "long_factor": [LONG_FACTOR] * 4}
    return transformers.Phi3Config(
        **_SIZES,
        original_max_position_embeddings=LONGROPE_LIMIT,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **factors},
    )


def make_model(architecture: str = "qwen2", seed: int = 0) -> Any:
    return make_model_of(CONFIGS[architecture](), seed)


def make_model_of(config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    is_capped = getattr(config, "attn_logit_softcapping", None) is not None  # which sdpa ignores
    attention = {"attn_implementation": "eager"} if is_capped else {}
    model = transformers.AutoModelForCausalLM.from_config(config, **attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)  # far from uniform, so that a mistake shows
    return model


def make_request(
    name: str = "p",
    prompt: Sequence[int] = (3, 4, 5),
    *,
    seed: int = 0,
    max_response_tokens: int = 12,
    temperature: float = 1.0,
) -> GenerationRequest:
    return GenerationRequest(
        request=RequestId(0, PromptId(0, name), 0),
        prompt_token_ids=np.asarray(prompt, dtype=np.int32),
        seed=seed,
        max_response_tokens=max_response_tokens,
        temperature=temperature,
    )


def mixed_requests(num: int, *, seed: int = 0, max_response_tokens: int = 40) -> list[GenerationRequest]:
    """Requests of many prompt lengths, response lengths and temperatures; some share a prompt."""
    numbers = np.random.default_rng(seed)
    prompts = [numbers.integers(2, VOCABULARY, numbers.integers(1, 24)) for _ in range(max(1, num // 2))]
    return [
        make_request(
            f"p{index}",
            prompts[index % len(prompts)],
            seed=int(numbers.integers(2**62)),
            max_response_tokens=int(numbers.integers(1, max_response_tokens + 1)),
            temperature=float(numbers.choice([0.7, 1.0, 1.3])),
        )
        for index in range(num)
    ]


class Ticks:
    """A clock that advances by one second per look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def make_decoder(
    model: Any,
    *,
    max_num_seqs: int = 8,
    eos: Sequence[int] = (EOS,),
    max_tokens: int = 128,
    rules: Sequence[DraftRule] = (),
    history: Any = None,
) -> Decoder:
    """Make a decoder; with rules it has a history, `None` being one of its own."""
    decoder = Decoder(
        model,
        max_num_seqs=max_num_seqs,
        max_tokens_per_seq=max_tokens,
        eos_token_ids=eos,
        clock=Ticks(),
        history=(history or History(max_num_seqs, max_tokens, 4096)) if rules else None,
    )
    decoder.draft_lengths.use(rules)
    return decoder


def run_all(decoder: Decoder, requests: Sequence[GenerationRequest]) -> dict[str, Generation]:
    """Generate to the end; by prompt name."""
    for request in requests:
        decoder.add(request)
    ended: dict[str, Generation] = {}
    while not decoder.is_idle:
        for generation in decoder.step():
            assert generation.request.prompt.key not in ended
            ended[generation.request.prompt.key] = generation
    return ended


def begun_of(generation: Generation) -> Response:
    """What another engine began, as a request for the rest says it."""
    return Response(
        request=generation.request,
        engine=EngineId("engine-9"),
        finish_reason=generation.finish_reason,
        token_ids=generation.token_ids,
        logprobs=generation.logprobs,
        spans=(),
        queue_time_s=0.0,
        generation_time_s=0.0,
    )


@torch.no_grad()
def reference_logprobs(model: Any, request: GenerationRequest, token_ids: Sequence[int]) -> torch.Tensor:
    """The log-probabilities of a response by one forward pass over prompt and response, without a cache."""
    prompt = request.prompt_token_ids.tolist()
    sequence = torch.tensor([[*prompt, *(int(token) for token in token_ids)]])
    logits = model(input_ids=sequence, use_cache=False).logits[0].float() / request.temperature
    chosen = logits.log_softmax(-1)[:-1].gather(1, sequence[0, 1:, None])[:, 0]
    return chosen[len(prompt) - 1 :]


def check_logprobs(
    model: Any, requests: Iterable[GenerationRequest], ended: Mapping[str, Generation | Response]
) -> None:
    """What came of the requests, by prompt name, has the log-probabilities of the model's own forward pass."""
    for request in requests:
        response = ended[request.request.prompt.key]
        expected = reference_logprobs(model, request, response.token_ids)
        torch.testing.assert_close(torch.from_numpy(response.logprobs), expected, rtol=0, atol=1e-4)


def check_drawn_from(tokens: Any, probabilities: Any) -> None:
    """Likely tokens are drawn as often as by chance, by a chi-squared test, and impossible ones never."""
    counts, expected = np.bincount(tokens, minlength=len(probabilities)), probabilities * len(tokens)
    assert not counts[expected == 0].any()
    is_likely = expected > 5
    chi_square = ((counts - expected)[is_likely] ** 2 / expected[is_likely]).sum()
    assert chi_square < is_likely.sum() + 6 * np.sqrt(2 * is_likely.sum())
