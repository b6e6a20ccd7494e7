"""Reads the JSON files of a model directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollpacker.core.errors import ModelError
from rollpacker.paths import read_text, reason_of


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object; raises `ModelError` for anything else."""
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read: {reason_of(error)}", "Allowed: a JSON object", _REMEDY) from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds {str(content)[:50]!r}", "Allowed: a JSON object", _REMEDY)
    return content


def decoder_of(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a `config.json` says of the decoder, which that of a model with images has in a section."""
    section = description.get("text_config")
    return section if isinstance(section, dict) else description


_REMEDY = "Download the file again, or save model and tokenizer again with `save_pretrained(DIR)`"
