"""Makes the demo's model and prompt file once, and again whenever what they are made of has changed.

Invariant: a folder with a `recipe.json` is complete, and that file says what it was made of. It is written last.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.demo import task
from rollpacker.metrics.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_PROMPTS = 4096
"""More than a run of the demo draws, so that no prompt is seen twice."""

PROMPT_SEED = 2
"""Other walks than those of the warm-up, but for chance: there are 19,900 different ones, and short ones are common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Where the input of the main job lies."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def prompts(self) -> Path:
        return self.folder / "prompts.jsonl"

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.json"


def are_made(inputs: Inputs) -> bool:
    """Whether the folder holds what would be made now."""
    return inputs.recipe.is_file() and inputs.recipe.read_bytes() == _recipe()


def make_inputs(inputs: Inputs, make_model: Callable[[Path], None]) -> None:
    """Replace the folder by a fresh prompt file and what `make_model` writes."""
    if inputs.folder.exists():
        shutil.rmtree(inputs.folder)
    write_atomically(inputs.prompts, task.prompt_file(NUM_PROMPTS, random.Random(PROMPT_SEED)).encode())
    make_model(inputs.model)
    write_atomically(inputs.recipe, _recipe())


def _recipe() -> bytes:
    """Hash the code that makes the files, and name the libraries whose arithmetic enters them."""
    sources = hashlib.sha256()
    for name in ("inputs.py", "task.py", "warm_start.py"):
        sources.update((Path(__file__).parent / name).read_bytes())
    recipe = {"sources": sources.hexdigest(), **{name: version(name) for name in ("torch", "transformers")}}
    return (json.dumps(recipe, indent=1) + "\n").encode()
