"""Brings the runs that exhibits need: a modelled multirun for each experiment, points that are finished left alone.

Invariant: points of different experiments share a folder only if they are the same run, so no run is made twice. The
folder names setup, study, model, engines, batch, workload, system and seed; an experiment that varies anything else
names the variant in `run.study` (see `analysis.exhibit`). Everything is done by `rollpacker train -m`; what a person
would type is printed first.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rollpacker.core.errors import WorldError

_PLACE = (
    "${run.setup}/${run.study}/${model.name}/${engine.num_engines}x${engine.tensor_parallel}/"
    "${rollout.num_prompts}x${rollout.num_responses}/${workload.name}/${system.name}/seed-${run.seed}"
)
"""Of a point, below the folder of all runs; a run without a study has one level less."""

_LAST_LINES = 12
"""Of a failed multirun, that the error repeats."""


def words_of(experiment: str, folder: Path, *, num_seeds: int, num_jobs: int) -> list[str]:
    """What `rollpacker train` is told to model an experiment."""
    return [
        "-m",
        f"experiment={experiment}",
        "backend=sim",
        f"run.seed={','.join(map(str, range(num_seeds)))}",
        "run.checkpoint_every_steps=0",
        "run.progress=none",
        "hydra/launcher=slurm",
        "hydra.launcher.executor=local",
        f"hydra.launcher.array_parallelism={num_jobs}",
        f"run.dir={folder}/{_PLACE}",
    ]


def model_experiment(words: Sequence[str], on_line: Callable[[str], None]) -> None:
    """Run a multirun to its end; a second time it finds its points finished.

    Args:
        words: From `words_of`.
        on_line: Told each line of its output.

    Raises:
        WorldError: It failed; with its last lines.
    """
    process = subprocess.Popen(  # noqa: S603  (our own command, without a shell)
        [sys.executable, "-m", "rollpacker.cli", "train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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
            "A modelled multirun failed:\n" + "\n".join(lines[-_LAST_LINES:]),
            "Its points are modelled runs that need nothing but a processor.",
            f"Try it by hand: rollpacker train {shlex.join(words)}",
        )
