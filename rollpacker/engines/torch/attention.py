"""Attention for decoding: several query heads read one key-value head where it lies.

transformers' `sdpa` attention repeats keys and values once per query head whenever there is a mask, that is, in every
decode step of a batch of mixed lengths. Here the query heads of a group become the rows of one attention problem
instead, which is the same arithmetic without the copies (4 layers of 128, 128 rows, 128 columns, one thread: 0.6 ms
against 3.3 ms per layer). Everything but a decode step, or one that verifies draft tokens, is passed on to transformers
unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

NAME = "rollpacker_grouped"
"""Under which transformers knows this attention."""


def use_grouped_attention(model: Any) -> None:
    """Let a model decode with this attention, if it would use `sdpa` and takes attention functions at all."""
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, decode_mask)
    # transformers names the ability only in a private attribute
    takes_functions = model._supports_attention_backend  # noqa: SLF001
    if takes_functions and model.config._attn_implementation == "sdpa":  # noqa: SLF001
        model.set_attn_implementation(NAME)


def grouped_attention(  # noqa: PLR0917  # transformers' signature
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend; an attention function as transformers defines it.

    Args:
        module: The attention layer.
        query: Shape [rows, heads, queries, head size].
        key: Shape [rows, key-value heads, columns, head size].
        value: Shape [rows, key-value heads, columns, value size].
        attention_mask: Boolean, broadcastable to [rows, heads, queries, columns]; None attends to all.
        dropout: 0 outside training.
        scaling: Of the scores; None is one over the root of the head size.
        kwargs: What some architectures add; only understood by transformers' own function.

    Returns:
        Shape [rows, queries, heads, value size], and no attention weights.
    """
    num_rows, num_heads, num_queries, head_size = query.shape
    num_kv_heads, num_columns = key.shape[1:3]
    # several queries behind a cache have a mask of their own each, as `RowCache.open_columns` makes it
    is_decoding = num_queries == 1 or (attention_mask is not None and num_queries < num_columns)
    is_same_for_heads = attention_mask is None or attention_mask.shape[1] == 1
    if not is_decoding or not is_same_for_heads or kwargs.get("position_bias") is not None:
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    num_sharers = num_heads // num_kv_heads
    grouped = query.reshape(num_rows, num_kv_heads, num_sharers * num_queries, head_size)
    if attention_mask is not None and num_queries > 1:
        attention_mask = attention_mask.repeat(1, 1, num_sharers, 1)
    output = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return output.reshape(num_rows, num_heads, num_queries, value.shape[-1]).transpose(1, 2), None


def decode_mask(
    *, q_length: int, mask_function: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any
) -> torch.Tensor | None:
    """Build a mask; a mask function as transformers defines it.

    One query that is last in its row may see all that the row holds, which is the two-dimensional mask itself.
    """
    if q_length == 1 and mask_function is causal_mask_function and attention_mask is not None:
        return attention_mask[:, None, None, :]
    mask: torch.Tensor | None = sdpa_mask(
        q_length=q_length, mask_function=mask_function, attention_mask=attention_mask, **kwargs
    )
    return mask
