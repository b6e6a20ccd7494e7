"""Writes the model of a checkpoint as a folder for others: weights in another type, a card, all else as it is.

One tensor at a time is in memory, and neither torch nor transformers is loaded: the process of a run has none of them.
The format is that of `weight_files`. The folder appears whole or not at all.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from rollpacker.core.errors import ModelError
from rollpacker.data.json_files import read_object
from rollpacker.data.weight_files import INDEX, TRAINABLE, StoredTensor, finite_numbers, read_tensors
from rollpacker.metrics.files import publish_folder, storage_errors

ExportDtype = Literal["bfloat16", "float32"]

CARD = "README.md"

_STORED: Mapping[ExportDtype, tuple[str, int]] = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}
"""What safetensors calls it, and the bytes of a number."""


def export_model(source: Path, folder: Path, *, dtype: ExportDtype, card: str) -> None:
    """Write a Hugging Face folder with the weights of another; what lies at its place is replaced.

    Args:
        source: A Hugging Face folder with safetensors files.
        folder: The new one.
        dtype: Of its weights; bfloat16 is rounded to nearest, ties to even, as torch does.
        card: Its README.md.

    Raises:
        ModelError: The source is not whole, or has weights that are no numbers.
        StorageFailed: The folder could not be written.
    """
    tensors = read_tensors(source)
    if tensors is None:
        raise ModelError(
            f"{source} has weights in torch's own format", "Allowed: safetensors files", "Save it with transformers"
        )
    files: dict[Path, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        files.setdefault(tensor.file, {})[name] = tensor
    written = {"config.json", INDEX, CARD, *(file.name for file in files)}
    with publish_folder(folder, durable=True) as new, storage_errors(folder):
        num_bytes = sum(_write_weights(new / file.name, own, dtype) for file, own in files.items())
        if (source / INDEX).is_file():
            index = read_object(source / INDEX)
            _write_json(new / INDEX, index | {"metadata": {**index.get("metadata", {}), "total_size": num_bytes}})
        _write_json(new / "config.json", _with_dtype(read_object(source / "config.json"), dtype) | {"dtype": dtype})
        (new / CARD).write_text(card)
        for file in source.iterdir():
            if file.name not in written and file.is_file():
                shutil.copyfile(file, new / file.name)


def _write_weights(path: Path, tensors: Mapping[str, StoredTensor], dtype: ExportDtype) -> int:
    """Write one file; gives the bytes of its tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    place = 0
    for name, tensor in tensors.items():
        stored, num_bytes = tensor.dtype, tensor.end - tensor.begin
        if stored in TRAINABLE:
            stored, size = _STORED[dtype]
            num_bytes = math.prod(tensor.shape) * size
        end = place + num_bytes
        header[name] = {"dtype": stored, "shape": tensor.shape, "data_offsets": (place, end)}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that tensors are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors.items():
            _write_tensor(file, name, tensor, dtype)
    return place


def _write_tensor(file: BinaryIO, name: str, tensor: StoredTensor, dtype: ExportDtype) -> None:
    import numpy as np

    if tensor.dtype not in TRAINABLE:
        np.fromfile(tensor.file, np.uint8, count=tensor.end - tensor.begin, offset=tensor.begin).tofile(file)
        return
    numbers = finite_numbers(name, tensor).astype(np.float32, copy=False)
    if dtype == "bfloat16":
        bits = numbers.view(np.uint32)
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded.view(np.uint16)[1::2].tofile(file)  # the upper halves
    else:
        numbers.tofile(file)


def _with_dtype(description: Mapping[str, Any], dtype: ExportDtype) -> dict[str, Any]:
    """Rename the type of the weights wherever a model's configuration, or that of a part of it, states one."""
    return {
        key: dtype
        if key in {"dtype", "torch_dtype"}
        else _with_dtype(value, dtype)
        if isinstance(value, dict)
        else value
        for key, value in description.items()
    }


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")
