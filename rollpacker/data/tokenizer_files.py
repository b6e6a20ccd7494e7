"""Looks whether the files of a tokenizer can be what they are called, without transformers.

Invariant: what is refused here, `AutoTokenizer` would refuse too, or would load as a tokenizer whose tokens the model
does not have. Forms other than tokenizer.json can only be checked by loading them with transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollpacker.core.errors import ModelError
from rollpacker.data.chat_templates import check_template, model_templates
from rollpacker.data.json_files import read_object

FORMS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("vocab.txt",), ("tekken.json",))
"""Files that are a vocabulary, each of these alone."""

_OBJECTS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "tekken.json")

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")

_SAVE = "Download the file again, or save the tokenizer again with `tokenizer.save_pretrained(DIR)`"


def has_tokenizer(path: Path) -> bool:
    """Say whether a directory has the files of a tokenizer, of any form."""
    return any(all((path / name).is_file() for name in form) for form in FORMS) or any(path.glob("*.tiktoken"))


def check_tokenizer_files(path: Path, num_words: int | None = None) -> None:
    """Check what a directory has of a tokenizer.

    Args:
        path: The model directory, which exists.
        num_words: Tokens that the model has, where that is known.

    Raises:
        ModelError: There is none, a file of it is broken, or it gives tokens that the model does not have.
    """
    if not has_tokenizer(path):
        forms = ", ".join(" with ".join(form) for form in FORMS)
        raise ModelError(
            f"The model directory {path} has no tokenizer",
            f"Allowed: one of {forms}",
            "Save it there with `tokenizer.save_pretrained(DIR)`",
        )
    for name in _OBJECTS:
        if (path / name).is_file():
            read_object(path / name)
    for name in ("tokenizer.model", "merges.txt", "vocab.txt"):
        if (path / name).is_file() and not (path / name).stat().st_size:
            raise ModelError(f"{path / name} is empty", "Allowed: a vocabulary", _SAVE)
    for source, template in model_templates(path):
        check_template(source, template)
    if (path / "tokenizer.json").is_file():
        _check_tokens(path, special_tokens(path), num_words)


def special_tokens(path: Path) -> Mapping[str, str]:
    """The texts of the tokens for the beginning, the end and so on, as far as files name them.

    Raises:
        ModelError: One of them is no text.
    """
    texts: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if not (file := path / name).is_file():
            continue
        settings = read_object(file)
        for key in _SPECIAL:
            value = settings.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                texts[key] = text
            elif text is not None:
                raise ModelError(
                    f"{file} gives {str(value)[:50]} as its {key}", "Allowed: the text of a token", "Correct the file"
                )
    return texts


def _check_tokens(path: Path, special: Mapping[str, str], num_words: int | None) -> None:
    from tokenizers import Tokenizer

    file = path / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library's errors have no class of their own
        raise ModelError(
            f"{file} cannot be read: {error}", "Allowed: what the tokenizers library has written", _SAVE
        ) from error
    if tokenizer.get_vocab_size(with_added_tokens=True) == 0:
        raise ModelError(f"{file} has no tokens", "Allowed: a vocabulary", _SAVE)
    if num_words is None:
        return
    tokens = tokenizer.get_vocab(with_added_tokens=False)
    # Added tokens may lie beyond: those of images in a model that reads none. Transformers adds the special ones.
    every = tokenizer.get_vocab(with_added_tokens=True)
    tokens |= {text: every.get(text, len(every)) for key, text in special.items() if key != "unk_token"}
    if beyond := sorted((token, text) for text, token in tokens.items() if token >= num_words):
        raise ModelError(
            f"The tokenizer in {path} has {len(beyond)} tokens that the model does not have, such as {beyond[0][1]!r}, "
            f"which is {beyond[0][0]}",
            f"The model has {num_words} tokens (vocab_size in config.json)",
            "Take the tokenizer that belongs to this model, or enlarge the model with model.resize_token_embeddings",
        )
