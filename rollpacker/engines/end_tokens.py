"""The tokens that end a response, from a model's directory; the same for all engines."""

from __future__ import annotations

from pathlib import Path

import transformers

from rollpacker.core.errors import ModelError
from rollpacker.data.tokenization import load_tokenizer
from rollpacker.data.tokenizer_files import has_tokenizer


def end_tokens(model_path: Path) -> tuple[int, ...]:
    """Every token that the model's generation config, its config or its tokenizer calls the end, ascending.

    Chat models end a turn by another token than a text; their directories name both, in different files.

    Raises:
        ModelError: None of them names one, so that every response would run into the length limit.
    """
    config = transformers.AutoConfig.from_pretrained(model_path, local_files_only=True)
    named = [getattr(part, "eos_token_id", None) for part in (config, config.get_text_config(decoder=True))]
    if (model_path / "generation_config.json").is_file():
        generation_config = transformers.GenerationConfig.from_pretrained(model_path, local_files_only=True)
        named.append(generation_config.eos_token_id)
    if has_tokenizer(model_path):
        named.append(load_tokenizer(model_path).eos_token_id)
    tokens: set[int] = set()
    for name in named:
        tokens.update([] if name is None else [name] if isinstance(name, int) else name)
    if not tokens:
        raise ModelError(
            f"{model_path} names no end-of-sequence token.",
            "eos_token_id in generation_config.json or config.json, or eos_token in tokenizer_config.json.",
            "Add it to one of them.",
        )
    return tuple(sorted(tokens))
