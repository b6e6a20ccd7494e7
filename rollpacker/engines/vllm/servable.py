"""Which policies vLLM serves, by `config.json` alone; imports no vLLM.

A policy reaches a vLLM that runs by a reload layer by layer, under the names that transformers has in memory. Those of
experts are not vLLM's for every architecture, and on a CPU vLLM 0.32 goes on with the experts that it had before, which
neither the checksum nor the shapes show. A judge's experts are read from files, as vLLM itself does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import ModelError
from rollpacker.data.json_files import read_object
from rollpacker.data.shapes import num_experts_of

if TYPE_CHECKING:
    from pathlib import Path


def refuse_experts(model_path: Path) -> None:
    """Raises `ModelError` for a Mixture of Experts."""
    description = read_object(model_path / "config.json")
    if num_experts := num_experts_of(description):
        name = next(iter(description.get("architectures") or ()), description.get("model_type"))
        raise ModelError(
            f"The model in {model_path} is a Mixture of Experts, {num_experts} in a layer ({name})",
            "engine=vllm serves dense models: the experts of a running vLLM do not take a policy's weights",
            "Choose a dense model, or engine=torch",
        )
