"""A random model whose responses take seconds on one core: long enough that requests can move between engines."""

from __future__ import annotations

from pathlib import Path

import torch

from rollpacker.demo.warm_start import make_tokenizer

MAX_TOKENS = 2048
"""Positions. A token ends a response with a probability of about 1 in 200."""


def make_slow_model(folder: Path) -> None:
    """Write the model, of 4 M parameters, and the demo's tokenizer into a folder."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = make_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
