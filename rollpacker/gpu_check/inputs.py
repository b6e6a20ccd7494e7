"""What the rows work with: models made on the spot, configurations, requests, and batches of what engines answered.

Models have random weights, spread so that their distributions are far from uniform and a mistake shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollpacker.config.schema import RunConfig
from rollpacker.core.ids import Domain, PromptId, RequestId, VersionSpan
from rollpacker.data.shapes import transformer_of
from rollpacker.gpu_check.outcomes import NotPossible
from rollpacker.metrics.files import publish_folder
from rollpacker.protocols.rollout import GenerationRequest, Response, RolloutGroup
from rollpacker.protocols.trainer import BatchShape
from rollpacker.runtime.placing.model_fit import rank_memory

TINY = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "vocab_size": 512}
"""0.4 M parameters: for comparisons in float32, which take no time."""

SMALL = {"num_hidden_layers": 16, "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32768}
"""290 M parameters: large enough that a GPU has work to do."""

HEAD_DIM = 32
SMALL_HEAD_DIM = 64
"""With it `SMALL` has eight key-value heads, which eight GPUs can divide."""

SPREAD = 0.06
"""Standard deviation of the weights; the usual 0.02 gives nearly uniform distributions."""

ROOM_SHARE = 0.9
"""Of a GPU's memory; the rest is for CUDA."""

MAX_TOKENS = 1024
"""Prompt and response together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where a row works, and on what."""

    folder: Path
    """For what rows share and write."""
    model: Path | None
    """The user's; None: `small`."""
    num_gpus: int
    """Real ones, or in a test those that are pretended."""
    has_gpus: bool
    """False in a test, where everything runs on the CPU: then memory and overlap show nothing."""

    def tiny(self) -> Path:
        return self._made("tiny", TINY, HEAD_DIM)

    def large(self) -> Path:
        """The user's model, else a random one that is worth a GPU."""
        if self.model is not None:
            return self.model
        return self._made("small-16-heads", SMALL, SMALL_HEAD_DIM) if self.has_gpus else self.tiny()

    def _made(self, name: str, sizes: dict[str, int], head_dim: int) -> Path:
        folder = self.folder / "models" / name
        if not folder.is_dir():
            with publish_folder(folder) as unfinished:
                _write_model(unfinished, sizes, head_dim)
        return folder


def _write_model(folder: Path, sizes: dict[str, int], head_dim: int) -> None:
    import torch
    import transformers

    num_heads = sizes["hidden_size"] // head_dim
    config = transformers.Qwen2Config(
        **sizes,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads // 2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        initializer_range=SPREAD,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    transformers.Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def config_of(model: Path, folder: Path, *, dtype: str = "bfloat16", **sections: dict[str, Any]) -> RunConfig:
    """A configuration of engine and trainer; of each section what differs from its defaults."""
    defaults: dict[str, dict[str, Any]] = {
        "run": {"dir": folder / "run", "num_steps": 10},
        "model": {"path": model, "dtype": dtype},
        "data": {"path": folder / "prompts.jsonl", "max_prompt_tokens": MAX_TOKENS // 2},
        "rollout": {"max_response_tokens": MAX_TOKENS // 2},
        "system": {"name": "gpu-check", "batching": "plain"},
        "engine": {"num_engines": 1, "max_num_seqs": 64},
        "trainer": {"learning_rate": 1e-4, "max_tokens_per_microbatch": 4096},
        "backend": {"deadlines": {"train_s": 120}},
    }
    return RunConfig.model_validate(
        {name: defaults.get(name, {}) | sections.get(name, {}) for name in defaults | sections}
    )


def engine_section(engine: str, *, memory_share: float = 0.4) -> dict[str, Any]:
    """Of one engine on a GPU that others use, too."""
    if engine == "torch":
        return {"name": "torch", "num_engines": 1, "max_num_seqs": 80}
    return {"name": "vllm", "num_engines": 1, "max_num_seqs": 80, "vllm": {"memory_share": memory_share}}


def require_room(bench: Bench, config: RunConfig) -> None:
    """Raise `NotPossible` where a GPU has no room for the whole trainer and an engine's weights."""
    if not bench.has_gpus:
        return
    import torch

    model = transformer_of(config.model)
    needed = rank_memory(config, model).total + model.num_weight_bytes
    total = torch.cuda.get_device_properties(0).total_memory
    if needed > ROOM_SHARE * total:
        raise NotPossible(
            f"trainer and engine take about {needed / 1e9:.0f} GB of this model, the GPU has {total / 1e9:.0f} GB"
        )


def make_requests(
    config: RunConfig, limits: Sequence[int], *, num_prompt_tokens: int = 32, group_size: int = 1, seed: int = 0
) -> list[GenerationRequest]:
    """A request per limit; `group_size` neighbours share a prompt of random tokens."""
    numbers = np.random.default_rng(seed)
    num_words = transformer_of(config.model).shape.vocab_size
    prompts = [
        numbers.integers(1, num_words, num_prompt_tokens).astype(np.int32) for _ in range(-(-len(limits) // group_size))
    ]
    return [
        GenerationRequest(
            request=RequestId(seed, PromptId(0, f"p{index // group_size}"), index % group_size),
            prompt_token_ids=prompts[index // group_size],
            seed=1000 * seed + index,
            max_response_tokens=limit,
            temperature=1.0,
        )
        for index, limit in enumerate(limits)
    ]


def groups_of(requests: Sequence[GenerationRequest], responses: Sequence[Response]) -> list[RolloutGroup]:
    """Groups of the responses to `make_requests`, every second of which has a reward of 1."""
    by_id = {response.request: response for response in responses}
    prompts: dict[PromptId, list[GenerationRequest]] = {}
    for request in requests:
        prompts.setdefault(request.request.prompt, []).append(request)
    return [
        RolloutGroup(
            prompt=prompt,
            domain=Domain("math"),
            prompt_token_ids=asked[0].prompt_token_ids,
            responses=tuple(by_id[request.request] for request in asked),
            rewards=tuple(float(index % 2) for index in range(len(asked))),
        )
        for prompt, asked in prompts.items()
    ]


def relabelled(groups: Sequence[RolloutGroup], policy_version: int) -> list[RolloutGroup]:
    """The same tokens, said to be of another policy version: to take another step on them."""
    from dataclasses import replace

    def of_version(response: Response) -> Response:
        return replace(response, spans=(VersionSpan(policy_version=policy_version, num_tokens=response.num_tokens),))

    return [replace(group, responses=tuple(map(of_version, group.responses))) for group in groups]


def shape_of(groups: Sequence[RolloutGroup], policy_version: int) -> BatchShape:
    """What a trainer must know of a batch before its first group."""
    return BatchShape(
        step=policy_version,
        policy_version=policy_version,
        oldest_policy_version=policy_version,
        num_groups=len(groups),
        num_responses=sum(len(group.responses) for group in groups),
        max_response_tokens=max(
            MAX_TOKENS // 2, *(response.num_tokens for group in groups for response in group.responses)
        ),
    )
