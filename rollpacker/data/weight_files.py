"""Reads what weight files say of themselves: names, shapes, types and places of their tensors, and no tensor.

Invariant: the tensors that are given fill their files exactly, so a file that was cut, or that is of another model's
shards, is refused here. Read are a few kilobytes of a file, however large it is.

A safetensors file is 8 bytes of length, little-endian; that many bytes of JSON; then the numbers of all tensors, one
after another: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from rollpacker.core.errors import ModelError
from rollpacker.paths import read_bytes, reason_of

if TYPE_CHECKING:
    import numpy as np

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_TORCH_SINGLE, _TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"

TRAINABLE = ("F32", "BF16", "F16", "F64")

_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""NumPy has no bfloat16."""

MAX_LOOKED_AT_BYTES = 64 << 20
"""Of weights: read in about a tenth of a second."""

_LENGTH_BYTES = 8

_LFS_POINTER = b"version https://git-lfs"
"""How a file begins that `git clone` left in place of the real one."""

_OLD_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
"""How a file of torch before 1.6 begins: a pickle of its magic number."""

_AGAIN = "Download the file again, or save the model again with `model.save_pretrained(DIR)`"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file."""

    file: Path
    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    begin: int
    """Its first byte in the file."""
    end: int


def weight_files(model_path: Path) -> list[Path]:
    """The files that transformers loads from a directory, in its order of preference.

    Raises:
        ModelError: There are none; or the index cannot be read, or names files that are not there.
    """
    for single, index in ((SINGLE, INDEX), (_TORCH_SINGLE, _TORCH_INDEX)):
        if (model_path / single).is_file():
            return [model_path / single]
        if (model_path / index).is_file():
            return _shards(model_path / index)
    others = sorted(file.name for pattern in ("*.safetensors", "*.bin", "*.gguf") for file in model_path.glob(pattern))
    raise ModelError(
        f"The model directory {model_path} has no weights"
        + (f" that transformers would load: {', '.join(others[:3])} is there" if others else ""),
        f"Allowed: {SINGLE}, or several files with {INDEX}, or the same of {_TORCH_SINGLE}",
        "Save them with `model.save_pretrained(DIR)`",
    )


def read_tensors(model_path: Path) -> Mapping[str, StoredTensor] | None:
    """The tensors of a model directory by name; None where its files are of torch's own format, which has no header.

    Raises:
        ModelError: A file is missing, or is not what its header or its index says.
    """
    files = weight_files(model_path)
    for file in files:
        _refuse_pointer(file)
    if files[0].suffix != ".safetensors":
        for file in files:
            _check_archive(file)
        return None
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        tensors |= _read_header(file)
    if files[0].name != SINGLE:
        _check_index(model_path / INDEX, tensors)
    return tensors


def check_numbers(tensors: Mapping[str, StoredTensor]) -> None:
    """Look for what is no number in the weights of a small model; a large one's are looked at when they are loaded.

    Raises:
        ModelError: There is one.
    """
    if sum(tensor.end - tensor.begin for tensor in tensors.values()) > MAX_LOOKED_AT_BYTES:
        return
    for name, tensor in tensors.items():
        if tensor.dtype in TRAINABLE:
            finite_numbers(name, tensor)


def finite_numbers(name: str, tensor: StoredTensor) -> np.ndarray:
    """Read the numbers of a tensor of a type in `TRAINABLE`, flat, bfloat16 as float32; raises `ModelError` for NaN."""
    import numpy as np

    numbers = np.fromfile(tensor.file, dtype=_NUMPY[tensor.dtype], count=math.prod(tensor.shape), offset=tensor.begin)
    if tensor.dtype == "BF16":  # the upper half of a float32
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    if num_wrong := int((~np.isfinite(numbers)).sum()):
        raise not_finite(str(tensor.file), name, num_wrong)
    return numbers


def not_finite(source: str, name: str, num_wrong: int) -> ModelError:
    """Make the error of a tensor with values that no training survives."""
    return ModelError(
        f"{name} in {source} has {num_wrong:,} values that are NaN or infinite",
        "Allowed: finite numbers",
        "Take another checkpoint of the model: the training that wrote this one has diverged",
    )


def _shards(index: Path) -> list[Path]:
    names = sorted(set(_weight_map(index).values()))
    if missing := [name for name in names if not (index.parent / name).is_file()]:
        raise ModelError(
            f"{len(missing)} of {len(names)} weight files in {index.parent} are missing, such as {missing[0]}",
            f"Allowed: every file that {index.name} names",
            "Download the rest of the model",
        )
    return [index.parent / name for name in names]


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(read_bytes(index))["weight_map"]
        _require(
            weight_map and all(isinstance(file, str) for file in weight_map.values()),
            f"weight_map is {str(weight_map)[:50]}",
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{index} cannot be read: {reason_of(error)}",
            "Allowed: a JSON object whose `weight_map` gives the file of each tensor",
            _AGAIN,
        ) from error
    return dict(weight_map)


def _check_index(index: Path, tensors: Mapping[str, StoredTensor]) -> None:
    for name, file in _weight_map(index).items():
        if name not in tensors or tensors[name].file.name != file:
            found = f"it is in {tensors[name].file.name}" if name in tensors else "no file has it"
            raise ModelError(
                f"{index} says that {name} is in {file}, and {found}",
                "Allowed: the file of each tensor",
                _AGAIN,
            )


def _read_header(file: Path) -> dict[str, StoredTensor]:
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            data_begin = _LENGTH_BYTES + int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            _require(data_begin <= size, f"it has {size:,} bytes, and its header {data_begin:,}")
            header = json.loads(stream.read(data_begin - _LENGTH_BYTES))
        header.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(
                file=file,
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                begin=data_begin + entry["data_offsets"][0],
                end=data_begin + entry["data_offsets"][1],
            )
            for name, entry in header.items()
        }
        whole = max((tensor.end for tensor in tensors.values()), default=data_begin)
        if whole == size:
            with safe_open(file, framework="np"):
                pass  # the library compares shapes, types and places
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise ModelError(
            f"{file} is not a safetensors file: {reason_of(error)}",
            "It begins with a JSON header that gives the type, shape and place of every tensor; these lie one after "
            "another, without overlap and without gaps",
            _AGAIN,
        ) from error
    if whole != size:
        problem = (
            f"is cut off: it has {size:,} bytes" if whole > size else f"has {size - whole} bytes behind its last tensor"
        )
        raise ModelError(f"{file} {problem}", f"Its header says {whole:,} bytes in all", _AGAIN)
    return tensors


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


def _refuse_pointer(file: Path) -> None:
    with file.open("rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ModelError(
                f"{file} is a git-lfs pointer, not weights", "Allowed: the real file", "Run `git lfs pull` there"
            )


def _check_archive(file: Path) -> None:
    """Torch writes a zip archive, whose directory stands at its end; before 1.6 it wrote a pickle."""
    try:
        with file.open("rb") as stream:
            if stream.read(len(_OLD_TORCH)) == _OLD_TORCH:
                return
        with zipfile.ZipFile(file):
            pass
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{file} is cut off or no weight file of torch: {error}",
            "Allowed: a file that `torch.save` wrote, better *.safetensors",
            _AGAIN,
        ) from error
