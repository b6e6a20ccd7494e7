"""The run as a whole, and where its metrics go beside its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rollpacker.config.sections.base import NOT_IN_FINGERPRINT, REAL_RUN, Count, Flag, Kind, OnlyWith, Section, Seed
from rollpacker.config.sections.reward_checks import NAMED_IN_PYTHON

LABEL = r"^[\w.=-]*$"
"""A name that may be part of a path."""
_LABEL = Kind("a text of letters, digits, _, ., = and -")


class RunSection(Section):
    """The run as a whole."""

    dir: Annotated[Path, NOT_IN_FINGERPRINT]
    """Everything that the run writes lies below it. A new folder is the user's own (mode 700); one that exists keeps
    its mode, so that a group may share it."""
    seed: Seed = 0
    """Of the prompt order, and of every sample's own generator."""
    num_steps: Count = Field(100, ge=0)
    """Training steps; the learning-rate schedule spans them. 0 trains nothing and starts no trainer: the model is
    evaluated on evaluation.path, as `rollpacker evaluate` does."""
    num_epochs: Count | None = Field(None, ge=1)
    """Ends the run when every prompt was trained this often, or at `num_steps`, whichever is first; null repeats the
    data until `num_steps`."""
    resume: Annotated[Literal["never", "auto"] | None, NOT_IN_FINGERPRINT] = None
    """`auto` continues from the newest whole checkpoint in `run.dir`, or starts when there is none; `never` refuses a
    `run.dir` whose run has trained. null is `auto` in a step of a Slurm job, and `never` elsewhere. A job that Slurm
    has requeued continues whatever this says."""
    checkpoint_every_steps: Annotated[Count, NOT_IN_FINGERPRINT] = 10
    """0 writes a checkpoint only at the end."""
    keep_checkpoints: Annotated[Count, NOT_IN_FINGERPRINT] = Field(2, ge=1)
    """Older ones are removed."""
    keep_best: Annotated[Flag, NOT_IN_FINGERPRINT] = False
    """Saves a checkpoint whenever a held-out score is the best so far, and keeps it: `checkpoints/best` leads to it.
    There is none while nothing was better than the model that training began with. The best of many noisy scores looks
    better than it is: evaluate it again with another evaluation.seed."""
    best_by: Annotated[str | None, NOT_IN_FINGERPRINT, OnlyWith("run.keep_best")] = None
    """The held-out set whose mean reward counts; null takes the mean over all sets."""
    samples_per_step: Annotated[Count, NOT_IN_FINGERPRINT, REAL_RUN] = 2
    """Prompts of each step's batch whose responses are kept as text, raced ones too: `rollpacker show`."""
    progress: Annotated[Literal["auto", "live", "plain", "none"], NOT_IN_FINGERPRINT] = "auto"
    """`live` redraws one screen, `plain` prints a line per step, `auto` picks by whether a terminal is there."""
    callbacks: Annotated[
        tuple[Annotated[str, Field(pattern=f"^{NAMED_IN_PYTHON}$")], ...],
        NOT_IN_FINGERPRINT,
        Kind("a list of FILE.py:CLASS or PACKAGE.MODULE:CLASS"),
    ] = ()
    """Classes of your own that are told what happened, such as [notify.py:Notify]. Each may have the methods
    on_step(row), on_evaluation(rows), on_checkpoint(path) and on_end(error), with rows of the tables as dicts and the
    error as text, None when the run is complete; its constructor may have a parameter `run_dir`. It lives in a process
    of its own, so that it changes nothing and delays nothing. What it prints is in logs/. Its first failure is shown;
    it goes on being called, unless a call takes longer than 60 s."""
    setup: Annotated[str, _LABEL, NOT_IN_FINGERPRINT] = Field("", pattern=LABEL)
    """Which size of run this is: `setup=...` sets its own name. Figures draw runs of one setup at a time."""
    study: Annotated[str, _LABEL, NOT_IN_FINGERPRINT] = Field("", pattern=LABEL)
    """What the run varies beyond model, workload, system and seed, as an experiment names it. A figure draws runs of a
    study only when it is about that study."""


WandbTag = Annotated[str, Field(min_length=1, max_length=64)]


class TrackerSection(Section):
    """Where metrics go beside Parquet. Keys come from the environment, never from here."""

    tensorboard: Flag = False
    """Writes event files below `run.dir`."""
    wandb: Flag = False
    """Logs to Weights & Biases."""
    wandb_project: Annotated[str, OnlyWith("tracker.wandb")] = "rollpacker"
    """Where Weights & Biases files the run."""
    wandb_mode: Annotated[Literal["offline", "online"], OnlyWith("tracker.wandb")] = "offline"
    """`offline` writes files that `wandb sync` uploads later."""
    wandb_name: Annotated[str | None, OnlyWith("tracker.wandb")] = None
    """Of the run; null takes the last two parts of `run.dir`."""
    wandb_group: Annotated[str | None, OnlyWith("tracker.wandb")] = None
    """Runs of a group are compared; null takes `run.study`, or else the folder that `run.dir` lies in."""
    wandb_entity: Annotated[str | None, OnlyWith("tracker.wandb")] = None
    """The user or team; null takes the key's own."""
    wandb_tags: Annotated[tuple[WandbTag, ...] | None, OnlyWith("tracker.wandb")] = None
    """null takes the names of system and model."""
    wandb_notes: Annotated[str | None, OnlyWith("tracker.wandb")] = None
    """A text about the run."""
    jsonl: Flag = False
    """Writes the same numbers to `run.dir/tracker.jsonl`, a line per step and per evaluation; of two lines of a step
    that a resumed run made again the later one counts, and a line takes back those of later steps before it."""
    plugin: Annotated[str | None, Kind("PACKAGE.MODULE:CLASS or FILE.py:CLASS")] = Field(
        None, pattern=r"^.+:[A-Za-z_]\w*$"
    )
    """A tracker of your own, `PACKAGE.MODULE:CLASS` or `FILE.py:CLASS`. The class is called with run_dir, run_id and
    config by name, and has the methods log_step(row, domains, samples), log_evaluation(rows, samples) and close() of
    `rollpacker.runtime.run.trackers.Tracker`. One that fails is told nothing more, and the run goes on."""
