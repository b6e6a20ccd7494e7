"""Which models the trainers train: read from `config.json` alone, without torch, before anything starts.

Invariant: a model whose computation would differ from the Hugging Face one in anything is refused. Megatron-core knows
Qwen2 and Qwen2.5, Qwen3, Llama 2 to 3.3, with their rotary scaling; dense, full attention. torch and FSDP2 train what
transformers has, but for a Mixture of Experts: its experts lie fused in memory and not in files, so that the names of
its weights are not those that engines load; and but for `longrope` beyond the length at which its frequencies change.
(Those of `dynamic` change beyond the model's positions, which no run passes, but config.json has to state them.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import ModelError
from rollpacker.data.json_files import decoder_of, read_object
from rollpacker.data.shapes import num_experts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rollpacker.config.schema import RunConfig

FAMILIES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama"}
"""That Megatron-core knows, by their `model_type`."""
_ALLOWED = "trainer=megatron knows dense Qwen2, Qwen2.5, Qwen3 and Llama models with full attention"
_SHORT_UP_TO = "original_max_position_embeddings"
"""What a longrope's limit is called, in tokens: beside the rotary embedding (Phi-3, Phi-4-mini) or in it."""
_POSITIONS = "max_position_embeddings"
_LONGROPES_OF_PHI = {"longrope", "su", "yarn"}
"""transformers takes all three for longrope, the last two of older files."""
_REMEDY = "Use trainer=fsdp, which trains any dense Hugging Face causal language model"


def check_trainable(config: RunConfig) -> None:
    """Raises `ModelError` for a model that the configured trainer does not train; a run of no steps has none."""
    if not config.trains:
        return
    path = config.model.directory
    description = read_object(path / "config.json")
    refuse_experts(path, description)
    _refuse_mixed_lengths(config, description)
    if config.trainer.name == "megatron":
        refuse_unknown(path, description)


def refuse_experts(model_path: Path, description: Mapping[str, Any]) -> None:
    """Raises `ModelError` for a Mixture of Experts."""
    if num_experts := num_experts_of(description):
        raise ModelError(
            f"The model in {model_path} is a Mixture of Experts, {num_experts} in a layer",
            "Trainers train dense models; `rollpacker plan` and modelled runs take experts, too",
            "Choose a dense model",
        )


def refuse_unknown(model_path: Path, description: Mapping[str, Any]) -> None:
    """Raises `ModelError` when Megatron-core would compute something else than transformers.

    Args:
        model_path: For the message.
        description: What `config.json` holds, or transformers made of it.
    """
    kind = description.get("model_type")
    problem = f"is of model_type {kind}" if kind not in FAMILIES else next(_deviations(description), None)
    if problem is not None:
        raise ModelError(f"The model in {model_path} {problem}", _ALLOWED, _REMEDY)


def _refuse_mixed_lengths(config: RunConfig, description: Mapping[str, Any]) -> None:
    """Raises `ModelError` where a token's result would depend on how long other samples of its micro-batch are.

    transformers takes the short factors of longrope where no row is longer than the original limit, else the long ones
    for all rows. Engines take either for the whole run, by the longest sequence that they may be asked for, held-out
    ones among them; so these count, too.
    """
    sizes = decoder_of(description)
    longropes = _LONGROPES_OF_PHI if sizes.get("model_type") in {"phi3", "phi4_multimodal"} else {"longrope"}
    prompt, response = config.data.max_prompt_tokens, config.longest_response_tokens
    for kind, rope in _ropes(sizes):
        if kind == "dynamic" and type(sizes.get(_POSITIONS)) is not int:
            raise ModelError(
                f"The model in {config.model.directory} scales its rotary embedding by `dynamic`, and its config.json "
                f"does not say {_POSITIONS}",
                "Beyond that many tokens it has other frequencies for all sequences of a micro-batch",
                f"Add {_POSITIONS} to config.json as the model was trained, or choose another model",
            )
        stated = (sizes.get(_SHORT_UP_TO), rope.get(_SHORT_UP_TO), sizes.get(_POSITIONS))
        limit = min((number for number in stated if type(number) is int), default=0)
        if kind in longropes and prompt + response > limit:
            section = "rollout" if response == config.rollout.max_response_tokens else "evaluation"
            raise ModelError(
                f"The model in {config.model.directory} scales its rotary embedding by longrope, which has other "
                f"frequencies for all sequences of a micro-batch once one is longer than {limit} tokens",
                f"data.max_prompt_tokens={prompt} and {section}.max_response_tokens={response} add up to "
                f"{prompt + response} tokens; at most {limit} are trained",
                "Lower one of them, or choose another model",
            )


def _ropes(description: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Kind and parameters of a model's rotary embedding, or of that of each type of layer."""
    rope = description.get("rope_parameters") or description.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    ropes: list[Mapping[str, Any]] = [each for each in rope.values() if isinstance(each, dict)] or [rope]
    return [(each.get("rope_type", each.get("type", "default")), each) for each in ropes]


def _deviations(description: Mapping[str, Any]) -> Iterator[str]:
    """What of a model of a known family Megatron-core would not compute as transformers does."""
    ropes = _ropes(description)
    scaled = next((kind for kind, _ in ropes if kind not in {"default", "llama3"}), None)
    partly = {rope.get("partial_rotary_factor", description.get("partial_rotary_factor")) for _, rope in ropes}
    activation = description.get("hidden_act", "silu")
    for is_so, problem in (
        (scaled is not None, f"scales its rotary embedding by {scaled}"),
        (not partly <= {None, 1}, "rotates a part of each head only"),
        (description.get("use_sliding_window"), "attends within a sliding window"),
        (activation != "silu", f"activates with {activation}"),
        (description["model_type"] != "qwen2" and description.get("attention_bias"), "has biases in attention"),
        (description.get("mlp_bias"), "has biases in its feed-forward layers"),
        (description.get("quantization_config") is not None, "is quantized"),
    ):
        if is_so:
            yield problem
