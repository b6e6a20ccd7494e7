"""Looks whether a directory can be a model, without loading anything: configuration, weights, tokenizer.

It is fast enough for `rollpacker check` and for the first moment of a run. It proves that files are there, not that
they are right; loading does that.
"""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING

from rollpacker.core.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER_NAMES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
_LFS_POINTER = b"version https://git-lfs"
"""How a file begins that `git clone` left in place of the real one."""

_ALLOWED = "Allowed: a local directory in Hugging Face format: config.json, weights (*.safetensors) and a tokenizer"


def check_model_files(path: Path) -> None:
    """Check a model directory.

    Raises:
        ModelError: It is missing, or something in it is.
    """
    _check_directory(path)
    _check_configuration(path / "config.json")
    weights = sorted(file for pattern in _WEIGHT_PATTERNS for file in path.glob(pattern))
    if not weights:
        raise ModelError(
            f"The model directory {path} has no weights", _ALLOWED, "Save them with `model.save_pretrained(DIR)`"
        )
    for index in path.glob("*.index.json"):
        _check_shards(index)
    check_tokenizer_files(path)
    for file in weights:
        _refuse_pointer(file)


def check_tokenizer_files(path: Path) -> None:
    """Check that a directory has a tokenizer, whatever else is in it.

    Raises:
        ModelError: It has none.
    """
    _check_directory(path)
    if not any((path / name).is_file() for name in _TOKENIZER_NAMES):
        raise ModelError(
            f"The model directory {path} has no tokenizer",
            f"Allowed: one of {', '.join(_TOKENIZER_NAMES)}",
            "Save it there with `tokenizer.save_pretrained(DIR)`",
        )


def _check_directory(path: Path) -> None:
    if not path.is_dir():
        raise ModelError(f"The model directory {path} {_what_instead(path)}", _ALLOWED, _where_to_get(path))


def _what_instead(path: Path) -> str:
    return "is a file" if path.exists() else "does not exist"


def _where_to_get(path: Path) -> str:
    if path.is_file():
        return f"Name the directory: {path.parent}"
    if path.parent.is_dir():
        names = [entry.name for entry in path.parent.iterdir() if entry.is_dir()]
        if nearest := difflib.get_close_matches(path.name, names, n=1):
            return f"Did you mean {path.parent / nearest[0]}?"
    return "Check the path; first download a model of the Hugging Face Hub: `hf download NAME --local-dir DIR`"


def _check_configuration(file: Path) -> None:
    try:
        configuration = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelError(
            f"The model directory {file.parent} has no config.json", _ALLOWED, "Check that the path is the model's"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", "Allowed: a JSON object", "Save the model again") from error
    if not isinstance(configuration, dict) or "model_type" not in configuration:
        raise ModelError(
            f"{file} does not name its `model_type`",
            "Allowed: the configuration of a transformers model",
            "Save the model again with `model.save_pretrained(DIR)`",
        )


def _check_shards(index: Path) -> None:
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(
            f"{index} cannot be read: {error!r}", "Allowed: an index with a `weight_map`", "Download the model again"
        ) from error
    if missing := sorted(name for name in shards if not (index.parent / name).is_file()):
        raise ModelError(
            f"{len(missing)} of {len(shards)} weight files in {index.parent} are missing, such as {missing[0]}",
            f"Allowed: every file that {index.name} names",
            "Download the rest of the model",
        )


def _refuse_pointer(file: Path) -> None:
    with file.open("rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ModelError(
                f"{file} is a git-lfs pointer, not weights", "Allowed: the real file", "Run `git lfs pull` there"
            )
