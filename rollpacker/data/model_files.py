"""Validates a model directory before anything starts: configuration, weights, tokenizer, and that they fit together.

It reads what the files say of themselves, and no weight of a large model, so it is fast enough for `rollpacker check`.
Models of the usual architectures are validated at once; of others, and of configurations with anything unusual,
transformers is asked, which takes seconds (`rollpacker.data.skeleton`); about a tokenizer alone it takes fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from rollpacker.core.errors import ModelError
from rollpacker.data.architectures import EMBEDDING, OUTPUT, known_tensors
from rollpacker.data.json_files import decoder_of, read_object
from rollpacker.data.skeleton import ask_transformers, refuse_difference
from rollpacker.data.tokenizer_files import check_tokenizer_files, special_tokens
from rollpacker.data.weight_files import TRAINABLE, StoredTensor, check_numbers, read_tensors
from rollpacker.paths import nearest_beside, special_kind

_ALLOWED = "Allowed: a local directory in Hugging Face format: config.json, weights (*.safetensors) and a tokenizer"

_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
)
"""Some architectures give one for each layer."""

_RESTORE = "Correct the file, or take it from where the model came from"

_COMPUTED = "rotary_emb.inv_freq"
"""How the name of a tensor ends that old versions of transformers saved and all compute."""


def check_model_files(path: Path, *, is_trained: bool = True, can_ask: bool = True) -> None:
    """Validate a model directory.

    Args:
        path: The directory.
        is_trained: False for a model that is only read, which may be quantized.
        can_ask: False where the run will have another version of transformers than this process.

    Raises:
        ModelError: It is missing, something in it is missing or broken, or its parts do not fit together.
    """
    check_directory(path)
    _refuse_special_files(path)
    config = _read_configuration(path / "config.json")
    tensors = read_tensors(path)
    num_words = (config if "vocab_size" in config else decoder_of(config)).get("vocab_size")
    check_tokenizer_files(path, num_words if isinstance(num_words, int) else None)
    for name in ("config.json", "generation_config.json"):
        if (path / name).is_file():
            _check_token_ids(path / name, num_words)
    is_quantized = bool(config.get("quantization_config"))
    if is_trained:
        if is_quantized:
            raise ModelError(
                f"The model in {path} is quantized (quantization_config in config.json)",
                f"Allowed for training: weights in {', '.join(TRAINABLE)}",
                "Choose the version of the model that is not quantized",
            )
        _check_types(path, tensors or {})
    known = known_tensors(config)
    is_known = bool(known and tensors and _is_named_alike(tensors))
    if known and tensors and is_known:
        _compare(path, known, tensors, is_tied=config.get("tie_word_embeddings", False))
    has_plain_tokenizer = (path / "tokenizer.json").is_file() and "eos_token" in special_tokens(path)
    if can_ask and not (is_known and has_plain_tokenizer):
        ask_transformers(path, is_trained=is_trained, has_model=not is_known, has_weights=not is_quantized)
    check_numbers(tensors or {})


def check_directory(path: Path) -> None:
    """Raise `ModelError` where there is no directory."""
    if not path.is_dir():
        raise ModelError(f"The model directory {path} {_what_instead(path)}", _ALLOWED, _where_to_get(path))


def _what_instead(path: Path) -> str:
    return "is a file" if path.exists() else "does not exist"


def _where_to_get(path: Path) -> str:
    if path.is_file() and (path.parent / "config.json").is_file():
        return f"Name the directory: {path.parent}"
    if meant := nearest_beside(path, Path.is_dir):
        return f"Did you mean {meant}?"
    return "Check the path; a model of the Hugging Face Hub is named ORG/NAME: `hf download ORG/NAME`"


def _refuse_special_files(path: Path) -> None:
    for file in sorted(path.iterdir()):
        kind = special_kind(file) or ("a folder" if file.is_dir() and file.suffix == ".json" else "")
        if not file.exists():
            kind = "a link to nothing"
        if kind:
            raise ModelError(f"{file} is {kind}", "Allowed: files that can be read", "Save the model again")


def _read_configuration(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ModelError(
            f"The model directory {file.parent} has no config.json", _ALLOWED, "Check that the path is the model's"
        )
    config = read_object(file)
    if not isinstance(config.get("model_type"), str):
        raise ModelError(
            f"{file} gives {config.get('model_type')!r} as its `model_type`",
            "Allowed: the configuration of a transformers model",
            "Save the model again with `model.save_pretrained(DIR)`",
        )
    for key in _SIZES:
        if not isinstance(config.get(key), (NoneType, list)) and (type(config[key]) is not int or config[key] < 1):
            raise ModelError(f"{file} gives {config[key]!r} as {key}", "Allowed: an integer, at least 1", _RESTORE)
    kinds, num_layers = config.get("layer_types"), config.get("num_hidden_layers")
    if kinds is not None and (not isinstance(kinds, list) or (num_layers is not None and len(kinds) != num_layers)):
        raise ModelError(
            f"{file} gives {str(kinds)[:60]} as layer_types",
            f"Allowed: a list with the kind of each of the {num_layers} layers (num_hidden_layers)",
            _RESTORE,
        )
    return config


def _check_token_ids(file: Path, num_words: Any) -> None:
    """Ends and padding are tokens of the model; -1 is how some models say that they have no padding."""
    settings = read_object(file)
    for key, least in (("eos_token_id", 0), ("pad_token_id", -1)):
        value = settings.get(key)
        tokens = value if isinstance(value, list) else [] if value is None else [value]
        for token in tokens:
            if type(token) is not int or not least <= token < (num_words if isinstance(num_words, int) else token + 1):
                raise ModelError(
                    f"{file} gives {token!r} as {key}",
                    f"Allowed: tokens of the model, 0 to {num_words - 1}"
                    if isinstance(num_words, int)
                    else "Allowed: a number",
                    _RESTORE,
                )


def _check_types(path: Path, tensors: Mapping[str, StoredTensor]) -> None:
    for name, tensor in tensors.items():
        if name.endswith("weight") and tensor.dtype not in TRAINABLE:
            raise ModelError(
                f"{name} in {tensor.file} is of the type {tensor.dtype}",
                f"Allowed for training: {', '.join(TRAINABLE)}",
                f"Convert the model in {path} with `model.to(torch.bfloat16).save_pretrained(DIR)`",
            )


def _is_named_alike(tensors: Mapping[str, StoredTensor]) -> bool:
    """Transformers also loads files of the model without its output layer, whose names have no prefix."""
    return all(name == OUTPUT or name.startswith("model.") for name in tensors)


def _compare(
    path: Path, known: Mapping[str, tuple[int, ...]], tensors: Mapping[str, StoredTensor], *, is_tied: bool
) -> None:
    needed = known.keys() - ({OUTPUT} if is_tied else set())
    missing = sorted(needed - tensors.keys())
    if missing == [EMBEDDING] and is_tied and OUTPUT in tensors:
        missing = []  # either of two that are one
    refuse_difference(
        path,
        missing=missing,
        unread=sorted(name for name in tensors.keys() - known.keys() if not name.endswith(_COMPUTED)),
        misshapen=sorted(
            (name, tensor.shape, known[name])
            for name, tensor in tensors.items()
            if name in known and tensor.shape != known[name]
        ),
    )
