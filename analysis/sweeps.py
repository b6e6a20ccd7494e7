"""Which runs an experiment has: the arguments of `rollpacker train`, and the points that come of it.

Invariant: points of different experiments share a folder only if they are the same run, so no run is made twice. The
folder names setup, study, model, engines, batch, workload, system and seed; an experiment that varies anything else
names the variant in `run.study` (see `rollpacker.analysis.exhibit`).
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollpacker.analysis.runs import PAPER_SETUP
from rollpacker.config.multirun import compose_sweep
from rollpacker.config.schema import RunConfig
from rollpacker.config.words import replaced
from rollpacker.core.errors import WorldError
from rollpacker.demo.inputs import Inputs, are_made, provide_inputs
from rollpacker.demo.three_commands import words_of as input_words
from rollpacker.launch.points import Point

_MODELLED_PLACE = (
    "${run.setup}/${run.study}/${model.name}/${engine.num_engines}x${engine.tensor_parallel}/"
    "${rollout.num_prompts}x${rollout.num_responses}/${workload.name}/${system.name}/seed-${run.seed}"
)
"""Of a point, below the folder of all runs; a run without a study has one level less."""

_REAL_PLACE = "${run.setup}/${run.study}/${system.name}/seed-${run.seed}"

_LAST_LINES = 12
"""Of a failed multirun, that the error repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Where and how the runs of experiments are made."""

    folder: Path
    """Of all runs."""
    backend: str = "sim"
    """`sim` or `ray`."""
    setup: str = PAPER_SETUP
    num_seeds: int = 2


def words_of(experiment: str, asked: Asked) -> list[str]:
    """The arguments of `rollpacker train` that run an experiment; given again, they resume it."""
    place = _MODELLED_PLACE if asked.backend == "sim" else _REAL_PLACE
    return [
        "-m",
        f"experiment={experiment}",
        *([] if asked.setup == PAPER_SETUP else [f"setup={asked.setup}"]),
        f"backend={asked.backend}",
        f"run.seed={','.join(map(str, range(asked.num_seeds)))}",
        "run.checkpoint_every_steps=0",
        "run.resume=auto",
        "run.progress=none",
        f"run.dir={asked.folder}/{place}",
    ]


def points_of(experiment: str, asked: Asked) -> tuple[RunConfig, ...]:
    """Compose every run of an experiment, validated by the schema."""
    return compose_sweep(words_of(experiment, asked)[1:]).configs


def train_here(experiment: str, asked: Asked, inputs: Inputs, on_line: Callable[[str], None]) -> None:
    """Train every run of an experiment on this machine, one after the other; those that are finished are left alone.

    Args:
        experiment: Of conf/experiment.
        asked: With the backend `ray`.
        inputs: Model and prompts.
        on_line: Told the command, and each line of its output.

    Raises:
        WorldError: It failed; with its last lines.
    """
    own = input_words(inputs)[1:]  # without its experiment
    here = ["hydra/launcher=slurm", "hydra.launcher.executor=local", "hydra.launcher.array_parallelism=1"]
    words = replaced(["train", *words_of(experiment, asked)], [*own, *here])
    on_line(f"rollpacker {shlex.join(words)}")
    _run_to_its_end([sys.executable, "-P", "-m", "rollpacker.cli", *words], on_line)


def make_tiny_inputs(inputs: Inputs, on_line: Callable[[str], None]) -> None:
    """Make a model and prompts for two cores, unless they are there: a minute or two."""
    if not are_made(inputs):
        on_line(f"making a tiny model and its prompts in {inputs.folder}: a minute or two")
        provide_inputs(inputs)


def unfinished(points: Iterable[RunConfig]) -> list[RunConfig]:
    """Those that are still to be run, each folder once."""
    by_folder = {config.run.dir: config for config in points}
    return [config for config in by_folder.values() if not Point(number=0, name="", config=config).has_finished]


def _run_to_its_end(command: Sequence[str], on_line: Callable[[str], None]) -> None:
    process = subprocess.Popen(  # noqa: S603  (our own command, without a shell)
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,  # a Ctrl-C of the terminal beside our signal would be the second, which ends a run at once
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line.rstrip())
            on_line(lines[-1])
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if status:
        raise WorldError(
            "A multirun failed:\n" + "\n".join(lines[-_LAST_LINES:]),
            "Its points are runs of this machine.",
            f"Try it by hand: {shlex.join(command)}",
        )
