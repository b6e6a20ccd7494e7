"""Makes the demo's model and prompt file once, and again when its sources have changed.

Invariant: a folder with a `recipe.json` is complete, and that file records what it was made of. It is written last.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rollpacker.demo import mixed, task
from rollpacker.demo.task import Language
from rollpacker.metrics.files import write_atomically

NUM_PROMPTS = 4096
"""More than a run of the demo draws, so that no prompt is seen twice."""

PROMPT_SEED = 2
"""Not the warm-up's, so that few walks are equal: there are 19,900 different ones, and short ones are common."""

NUM_UNSEEN = 600
"""Held-out prompts: one response to each has a standard error of 0.01 at a score of 0.93."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Paths of the input of the main job."""

    folder: Path
    is_mixed: bool = False
    """Whether programs and climbs are among the prompts, and a judge beside the model (see `mixed`)."""

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def prompts(self) -> Path:
        return self.folder / "prompts.jsonl"

    @property
    def unseen(self) -> Path:
        """Held-out prompts."""
        return self.folder / "unseen.jsonl"

    @property
    def judge(self) -> Path:
        return self.folder / "judge"

    @property
    def template(self) -> Path:
        """What the judge reads."""
        return self.folder / "judge.jinja"

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.json"


def are_made(inputs: Inputs) -> bool:
    """Whether the folder holds what would be made now."""
    return inputs.recipe.is_file() and inputs.recipe.read_bytes() == _recipe()


def provide_inputs(inputs: Inputs) -> None:
    """Make a model and prompts, unless they are there: a minute or two on one core."""
    if are_made(inputs):
        return
    import torch

    from rollpacker.demo.warm_start import make_model

    torch.set_num_threads(1)
    make_inputs(inputs, make_model)


def make_inputs(inputs: Inputs, make_model: Callable[[Path, Language], None]) -> None:
    """Replace the folder by fresh prompt files and what `make_model` writes into a folder: a model of a language."""
    if inputs.folder.exists():
        shutil.rmtree(inputs.folder)
    tasks = mixed if inputs.is_mixed else task
    prompts = tasks.prompt_file(NUM_PROMPTS, random.Random(PROMPT_SEED))
    write_atomically(inputs.prompts, prompts.encode())
    unseen = tasks.unseen_file(NUM_UNSEEN, random.Random(PROMPT_SEED + 1), prompts)
    write_atomically(inputs.unseen, unseen.encode())
    make_model(inputs.model, mixed.POLICY if inputs.is_mixed else task.WALKS)
    if inputs.is_mixed:
        make_model(inputs.judge, mixed.JUDGE)
        write_atomically(inputs.template, mixed.TEMPLATE.encode())
    write_atomically(inputs.recipe, _recipe())


def _recipe() -> bytes:
    """Hash the code that makes the files, and name the libraries whose arithmetic enters them."""
    sources = hashlib.sha256()
    for name in ("inputs.py", "mixed.py", "task.py", "warm_start.py"):
        sources.update((Path(__file__).parent / name).read_bytes())
    recipe = {"sources": sources.hexdigest(), **{name: version(name) for name in ("torch", "transformers")}}
    return (json.dumps(recipe, indent=1) + "\n").encode()
