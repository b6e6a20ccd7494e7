"""Which models the torch engine serves, and of which it verifies draft tokens.

Refused at its start are those whose logits over a cache and padded rows are not those of a pass over the sequence.

Shapes: B rows, T tokens, V words.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from rollpacker.core.errors import ModelError
from rollpacker.engines.torch.cache import prefill_cache

if TYPE_CHECKING:
    from transformers import Cache

_PASS_TAKES = frozenset({"past_key_values", "position_ids"})
_PLACED_BY_MASK = frozenset({"bloom", "mpt"})
"""Model types that need no positions: ALiBi goes by the distance of two tokens, which the mask shows."""


@torch.inference_mode()
def require_servable(model: Any) -> None:
    """Refuse a model that keeps state outside of its cache, counts positions in its own way, or sees later tokens.

    It computes two tokens, for some models take a cache and do not use it, and no key of a configuration says for all
    of them whether they are causal.

    Raises:
        ModelError: So it is, or `RowCache` cannot hold its state.
    """
    config = model.config.get_text_config(decoder=True)
    cache = prefill_cache(config)
    missing = _PASS_TAKES - inspect.signature(model.forward).parameters.keys()
    if config.model_type in _PLACED_BY_MASK:
        missing -= {"position_ids"}
    if missing:  # others swallow it unread
        what = f"takes no {min(missing)}"
    elif any(hasattr(module, "create_position_ids_from_input_ids") for module in model.modules()):  # as RoBERTa's
        what = "counts positions from the one behind its padding token's id"
    else:
        tokens_BT = torch.tensor([[0, 0], [0, 1]], device=model.device)
        what = "does not keep its state in past_key_values"
        try:
            logits_BTV = model(input_ids=tokens_BT, past_key_values=cache, use_cache=True).logits
            if _sees_later_tokens(logits_BTV, model.dtype):
                what = "lets a token see later ones, as an encoder does"
            elif _is_filled(cache):
                return
        except ValueError as error:  # as MiniMax refuses a cache that is not its own
            what = f"says: {str(error).rstrip('.')}"
    raise ModelError(
        f"The torch engine cannot serve a {config.model_type} model: {type(model).__name__} {what}.",
        "It extends past_key_values by tokens whose position_ids count from 0, and which see none that come later.",
        "Use another model, or an engine that knows this one, such as engine=vllm.",
    )


def require_verifiable(model: Any) -> None:
    """Refuse drafts of a model whose rows cannot have ends of their own.

    A running state has no column to go back to, models count a sliding window in columns, and one that takes no
    positions, or no attention function, computes them from a mask of its own. Eager attention, which caps scores, adds
    a mask to them, and that of `RowCache.open_columns` is true or false.

    Raises:
        ModelError: A layer is no full attention, or the model takes no positions or attention functions, or is eager.
    """
    config = model.config.get_text_config(decoder=True)
    layers = {type(layer).__name__ for layer in DynamicCache(config=config).layers if type(layer) is not DynamicLayer}
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    what = ""
    if layers:
        what = f"keeps a {min(layers)}"
    # transformers names both only in private attributes
    elif not takes_positions or not model._supports_attention_backend:  # noqa: SLF001
        what = "takes no positions and masks from outside"
    elif config._attn_implementation == "eager":  # noqa: SLF001
        what = "caps its attention scores, or has eager attention only"
    if what:
        raise ModelError(
            f"The torch engine cannot verify draft tokens of a {config.model_type} model: it {what}.",
            "All layers have to be full attention, with scores that are not capped.",
            "Set system.speculative_decoding=false, or use engine=vllm.",
        )


def _sees_later_tokens(logits_BTV: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether rows that differ in their last token alone differ before it, by more than a model's rounding errors.

    Those are exactly 0 in all but mixtures of experts, which cut a pass into other parts when a token differs.
    """
    before, last = (logits_BTV[0] - logits_BTV[1]).abs().amax(dim=-1).tolist()
    return bool(before > torch.finfo(dtype).eps ** 0.5 * last)


def _is_filled(cache: Cache) -> bool:
    """Whether a pass has used every attention layer, or a linear one if all are; some of these keep no state."""
    kept = [layer for layer in cache.layers if not isinstance(layer, LinearAttentionLayer)]
    if kept:
        return all(layer.is_initialized for layer in kept)
    return any(any(layer.has_previous_state.values()) for layer in cache.layers)
