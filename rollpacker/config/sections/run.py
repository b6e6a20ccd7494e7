"""The run as a whole, and where its metrics go beside its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rollpacker.config.sections.base import Section

LABEL = r"^[\w.=-]*$"
"""A name that may be part of a path."""


class RunSection(Section):
    """The run as a whole."""

    dir: Path
    """Everything that the run writes lies below it."""
    seed: int = Field(0, ge=0)
    """Of the prompt order, and of every sample's own generator."""
    num_steps: int = Field(100, ge=1)
    """Training steps; the learning-rate schedule spans them."""
    num_epochs: int | None = Field(None, ge=1)
    """Ends the run when every prompt was trained this often; null repeats the data until `num_steps`."""
    resume: Literal["never", "auto"] = "never"
    """`auto` continues from the newest checkpoint in `run.dir`, or starts when there is none."""
    checkpoint_every_steps: int = Field(10, ge=0)
    """0 writes a checkpoint only at the end."""
    keep_checkpoints: int = Field(2, ge=1)
    """Older ones are removed."""
    progress: Literal["auto", "live", "plain", "none"] = "auto"
    """`live` redraws one screen, `plain` prints a line per step, `auto` picks by whether a terminal is there."""
    setup: str = Field("", pattern=LABEL)
    """Which size of run this is: `setup=...` sets its own name. Figures draw runs of one setup at a time."""
    study: str = Field("", pattern=LABEL)
    """What the run varies beyond model, workload, system and seed, as an experiment names it. A figure draws runs of a
    study only when it is about that study."""


class TrackerSection(Section):
    """Where metrics go beside Parquet. Keys come from the environment, never from here."""

    tensorboard: bool = False
    """Writes event files below `run.dir`."""
    wandb: bool = False
    """Logs to Weights & Biases."""
    wandb_project: str = "rollpacker"
    """Where Weights & Biases files the run."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline` writes files that `wandb sync` uploads later."""
