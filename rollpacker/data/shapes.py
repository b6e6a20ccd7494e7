"""What a transformer weighs and computes, from its published sizes, or those in a model directory.

Invariant: every size follows from a `ShapeSection` and the weights' bytes; nothing is stored twice. Norms, biases and
rotary tables are left out: together they are below 0.1 % of the parameters. Of latent attention (DeepSeek-V2, section
2.1) the KV cache is exact; its projections and its attention work count as those of full heads of `head_dim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollpacker.config.sections.model import ModelSection, ShapeSection
from rollpacker.core.errors import ConfigError, ModelError
from rollpacker.data.json_files import decoder_of, read_object
from rollpacker.data.model_files import check_directory
from rollpacker.data.weight_files import read_tensors

_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder with gated MLPs, or experts, and grouped-query or latent attention."""

    shape: ShapeSection
    bytes_per_number: int
    """Of weights, activations and KV cache."""
    caps_scores: bool = False
    """Its attention does, which fused kernels cannot."""

    @property
    def num_parameters(self) -> int:
        """All that are held, those of experts that a token is not sent to among them."""
        return self.num_layer_parameters + self.num_embedding_parameters

    @property
    def num_embedding_parameters(self) -> int:
        """Those of embedding and output layer, tied ones once."""
        shape = self.shape
        return shape.vocab_size * shape.hidden_size * (1 if shape.has_tied_embeddings else 2)

    @property
    def num_multiplied_parameters(self) -> int:
        """Those that every token is multiplied with: neither the embedding that is looked up, nor idle experts."""
        return self._layer_parameters(self.shape.num_active_experts) + self.shape.vocab_size * self.shape.hidden_size

    @property
    def num_layer_parameters(self) -> int:
        """Those of all decoder layers."""
        return self._layer_parameters(self.shape.num_experts)

    def _layer_parameters(self, num_experts: int) -> int:
        """Of all decoder layers, with so many experts of each layer that has any."""
        shape = self.shape
        attention = shape.hidden_size * shape.head_dim * 2 * (shape.num_heads + shape.num_kv_heads)
        num_sparse = shape.num_layers - shape.num_dense_layers if shape.num_experts else 0
        dense = 3 * shape.hidden_size * shape.intermediate_size
        router = shape.hidden_size * shape.num_experts
        sparse = 3 * shape.hidden_size * (num_experts * shape.expert_size + shape.shared_expert_size) + router
        return shape.num_layers * attention + (shape.num_layers - num_sparse) * dense + num_sparse * sparse

    @property
    def num_weight_bytes(self) -> int:
        return self.num_parameters * self.bytes_per_number

    @property
    def kv_bytes_per_token(self) -> int:
        """Of all heads, each held once."""
        shape = self.shape
        return shape.num_layers * (shape.latent_size or 2 * shape.num_kv_heads * shape.head_dim) * self.bytes_per_number

    def engine_kv_bytes_per_token(self, tensor_parallel: int) -> int:
        """Over so many GPUs of an engine: a head, and a latent, is replicated, not split."""
        num_split = 1 if self.shape.latent_size else self.shape.num_kv_heads
        return self.kv_bytes_per_token * max(1, tensor_parallel // num_split)

    def num_bytes_read(self, num_tokens: int) -> float:
        """Weights that a forward pass over so many tokens reads: of the experts those that any token is sent to.

        Tokens are taken to be sent to experts evenly and independently, so that each misses one with 1 - k / E.
        """
        shape = self.shape
        if not shape.num_experts:
            return self.num_weight_bytes
        share_idle = (1 - shape.num_active_experts / shape.num_experts) ** num_tokens
        num_expert_parameters = self.num_layer_parameters - self._layer_parameters(0)
        return self.num_weight_bytes - share_idle * num_expert_parameters * self.bytes_per_number

    def forward_flops(self, num_tokens: int) -> float:
        """Matrix work of a forward pass, 2 per parameter and token; attention over the context comes on top."""
        return 2.0 * self.num_multiplied_parameters * num_tokens

    def attention_flops(self, begin: int, end: int) -> float:
        """Work of the tokens at positions `begin` to `end` on all before them: scores and values, 2 FLOPs each."""
        shape = self.shape
        return 2.0 * shape.num_layers * shape.num_heads * shape.head_dim * (end * end - begin * begin)


def transformer_of(model: ModelSection) -> Transformer:
    """The transformer of a configuration; raises `ModelError` for a model directory that does not give its sizes."""
    number = _BYTES[model.dtype]
    if model.shape is not None:
        return Transformer(shape=model.shape, bytes_per_number=number)
    check_directory(model.directory)
    description = read_object(model.directory / "config.json")
    return Transformer(
        shape=_shape_of(model.directory, description), bytes_per_number=number, caps_scores=caps_scores(description)
    )


def check_shape(model: ModelSection) -> None:
    """Refuse a shape that is not that of the model's directory, as far as `config.json` is here and tells.

    Whether the embeddings are tied is not compared: `config.json` may leave it out.

    Raises:
        ConfigError: A size differs.
    """
    if model.shape is None or model.path is None:
        return
    try:
        found = transformer_of(model.model_copy(update={"shape": None})).shape
    except ModelError:  # the check of the directory tells of it; a modelled run needs none
        return
    given = model.shape.model_dump(exclude={"has_tied_embeddings"})
    if differing := {name: size for name, size in given.items() if size != getattr(found, name)}:
        raise ConfigError(
            f"model.path={model.path} has another shape than "
            + (f"model.name={model.name}: " if model.name else "model.shape: ")
            + ", ".join(f"{name} {getattr(found, name):,} instead of {size:,}" for name, size in differing.items())
            + ".",
            "A shape beside a path is that of the same model.",
            "Choose model=huggingface, which reads the shape from the directory, or correct model.path.",
        )


def caps_scores(description: Mapping[str, Any]) -> bool:
    """Whether the model that a `config.json` describes caps its attention scores, as Gemma 2."""
    return decoder_of(description).get("attn_logit_softcapping") is not None


def _shape_of(folder: Path, description: Mapping[str, Any]) -> ShapeSection:
    sizes = decoder_of(description)
    try:
        num_heads = sizes["num_attention_heads"]
        return ShapeSection(
            num_layers=sizes["num_hidden_layers"],
            hidden_size=sizes["hidden_size"],
            num_heads=num_heads,
            num_kv_heads=sizes.get("num_key_value_heads") or num_heads,
            head_dim=sizes.get("head_dim") or sizes["hidden_size"] // num_heads,
            intermediate_size=sizes["intermediate_size"],
            vocab_size=sizes["vocab_size"],
            has_tied_embeddings=_has_tied_embeddings(folder, {**description, **sizes}),
            latent_size=sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"] if sizes.get("kv_lora_rank") else 0,
            **_experts(sizes),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{folder}/config.json does not give the sizes of a transformer: {error!r}.",
            "Read are num_hidden_layers, hidden_size, num_attention_heads, intermediate_size and vocab_size.",
            "Choose a model option with a shape, such as model=qwen2.5-7b, or correct the file.",
        ) from error


def _has_tied_embeddings(folder: Path, sizes: Mapping[str, Any]) -> bool:
    """As config.json says; where it leaves that to transformers' default of the type, as the weights say.

    Without weights that can be looked into it is False, which asks for too much memory rather than too little.
    """
    if (given := sizes.get("tie_word_embeddings")) is not None:
        return bool(given)
    try:
        tensors = read_tensors(folder) or {}
    except ModelError:  # of which the check of the directory tells
        return False
    table = (sizes["vocab_size"], sizes["hidden_size"])
    return sum(tensor.shape == table for tensor in tensors.values()) == 1


def num_experts_of(description: Mapping[str, Any]) -> int:
    """Experts in a layer of the model that a `config.json` describes, or the most that it lists; 0 for a dense one."""
    numbers = (_numbers(decoder_of(description).get(name)) for name in _NUM_EXPERTS)
    return max(next((given for given in numbers if given), [0]))


def _numbers(given: Any) -> list[int]:
    """A number, or those of a list for each layer or modality; empty for anything else."""
    numbers = given if isinstance(given, list) else [given]
    return numbers if all(type(number) is int for number in numbers) else []


def _experts(sizes: Mapping[str, Any]) -> dict[str, int]:
    """The keys of `ShapeSection` on experts; none for a dense model."""
    key = next((name for name in _NUM_EXPERTS if _numbers(sizes.get(name))), "")
    if not num_experts_of(sizes):
        return {}
    sizes = {name: size for name, size in sizes.items() if size is not None}
    if key == "moe_num_experts":
        sizes = {_NAMES_OF_ERNIE.get(name, name): size for name, size in sizes.items()} | sizes
    size, num_layers = sizes.get("moe_intermediate_size") or sizes["intermediate_size"], sizes["num_hidden_layers"]
    first, step, dense = (
        sizes.get(name) for name in ("first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers")
    )
    is_dense = [
        layer < (first or 0) or (layer + 1) % (step or 1) > 0 or layer in (dense or ()) for layer in range(num_layers)
    ]
    return {
        "num_experts": sizes[key],
        "num_active_experts": sizes["num_experts_per_tok"],
        "expert_size": size,
        "shared_expert_size": sizes.get("shared_expert_intermediate_size")
        or (sizes.get("n_shared_experts") or 0) * size,
        "num_dense_layers": sum(is_dense),
    }


_NUM_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
"""By the names of Qwen, DeepSeek, Mixtral and ERNIE, which is Aria's, too."""
_NAMES_OF_ERNIE = {
    "moe_k": "num_experts_per_tok",
    "moe_topk": "num_experts_per_tok",
    "moe_num_shared_experts": "n_shared_experts",
    "moe_layer_start_index": "first_k_dense_replace",
    "moe_layer_interval": "decoder_sparse_step",
}
"""Its names of sizes, and Aria's, with those of the others. Only beside `moe_num_experts`: Hunyuan has `moe_topk`, too,
and names of its own for the rest."""
