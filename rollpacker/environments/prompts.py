"""The prompts to train on: of files, or those that the environment has, which are read as a prompt file is."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rollpacker.config.sections.data import PromptFile
from rollpacker.data.training_prompts import load_training_prompts
from rollpacker.environments.trial import prompt_rows

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.rollout import Prompt


def prompts_to_train(config: RunConfig) -> tuple[tuple[Prompt, ...], list[str]]:
    """Read the prompts to train on, in their order, and what a person should know of them.

    Raises:
        UserError: As `load_training_prompts`, or the environment has none.
    """
    if not config.takes_prompts_of_environment:
        return load_training_prompts(config.data)
    assert config.environment is not None
    with TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in prompt_rows(config)))
        given = PromptFile(path=file, domain=config.data.domain or config.environment.env)
        return load_training_prompts(config.data.model_copy(update={"path": (given,)}))
