"""A model directory and a prompt file that a run would accept, made without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

NUM_PARAMETERS = 128 * 64 + 64


def write_model(folder: Path, *, max_positions: int = 2048) -> Path:
    folder.mkdir()
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "embedding": {"dtype": "F32", "shape": [128, 64], "data_offsets": [0, 32768]},
            "norm": {"dtype": "F32", "shape": [64], "data_offsets": [32768, 33024]},
        }
    ).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(33024))
    (folder / "config.json").write_text(
        json.dumps(
            {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": max_positions}
        )
    )
    (folder / "tokenizer.json").write_text("{}")
    return folder


def write_prompts(file: Path, domains: Sequence[str] = ("math",) * 40) -> Path:
    lines = [
        json.dumps({"id": f"p{index}", "domain": domain, "prompt": f"{index} + 1 =", "ground_truth": str(index + 1)})
        for index, domain in enumerate(domains)
    ]
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder with its content: two equal trees mean that nothing was created or changed."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
