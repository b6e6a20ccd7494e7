"""Configurations of modelled runs, composed once a process: Hydra takes longer than such a run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from rollpacker.config.compose import compose
from rollpacker.config.schema import RunConfig
from rollpacker.config.words import replaced

_SMALL = (
    *("backend=sim", "model=qwen2.5-7b", "run.progress=none", "run.checkpoint_every_steps=0"),
    *("rollout.num_prompts=16", "rollout.num_responses=4", "rollout.max_response_tokens=4096"),
)

composed = functools.cache(lambda *words: compose(words))
"""What `compose` gives for the same words."""


def config_of(run_dir: Path, words: Sequence[str], **run: object) -> RunConfig:
    """The configuration of some words, with another `run.dir` and other values of its section `run`; validated."""
    tree = composed(*words, "run.dir=another").model_dump()
    return RunConfig.model_validate(tree | {"run": tree["run"] | {"dir": run_dir} | run})


def small(*words: str) -> list[str]:
    """The words of a run that is modelled within a second, with these in place of the same keys."""
    return replaced(_SMALL, words)
