"""What `rollpacker demo` does: three commands in a row, each shown before it runs.

It makes a model and prompts, as a user's own would be; trains them once under every system by the command that a user
would type; and draws table and figure from what the runs wrote. Overrides are added to the second command. With `mixed`
the prompts are walks, which a rule scores, programs, which a sandbox runs, and climbs, read by a small LLM judge.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.text import Text

from rollpacker.config.multirun import compose_sweep
from rollpacker.config.words import key_of, replaced
from rollpacker.core.errors import ConfigError
from rollpacker.demo.inputs import Inputs, are_made, make_inputs
from rollpacker.demo.task import Language
from rollpacker.runtime.job.preemption import SHELL_SIGNALS
from rollpacker.runtime.job.signals import signals_handled
from rollpacker.runtime.run.folder_checks import check_folder
from rollpacker.runtime.run.streams import keep_writing
from rollpacker.terminal import Terminal

FOLDER = Path("runs/demo")

SYSTEMS = ("verl", "rollpacker")
"""The baseline first."""

_OWN = ("system", "run.dir")
"""Keys that the demo sets, and reads its results by."""

EVERY_STEPS = 20
"""Between evaluations: of walks, with the one at the start, five times 600 responses beside the 10,240 of training."""


def run_demo(overrides: Sequence[str]) -> int:
    """Run the demo; returns the exit code of the first command that failed, or 0.

    Raises:
        ConfigError: An override that is not legal, or of what the demo sets itself: systems or folder.
    """
    is_mixed = overrides[:1] == ("mixed",)
    overrides = overrides[is_mixed:]
    _refuse_own(overrides)
    keep_writing("stdout")
    console = Terminal()
    started = time.monotonic()
    folder = FOLDER / "mixed" if is_mixed else FOLDER
    inputs = Inputs(folder=folder / "input", is_mixed=is_mixed)
    runs = folder / datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    own = [*words_of(inputs), f"system={','.join(SYSTEMS)}", f"run.dir={runs}/${{system.name}}"]
    words = replaced(own, overrides)
    compose_sweep(words)  # an illegal setting is refused before anything is made
    _check_writable(runs)
    _announce(console, "1/3", "a task and a model to train")
    _prepare(console, inputs)
    _announce(console, "2/3", "the same job under two systems")
    code = _run(console, "train", ["-m", *words])
    if not code:
        _announce(console, "3/3", "the results")
        code = _run(console, "analysis", ["compare", *(str(runs / system) for system in SYSTEMS), f"out={runs}"])
    if not code:
        console.print(f"The demo took {(time.monotonic() - started) / 60:.1f} minutes.")
    return code


def _refuse_own(overrides: Sequence[str]) -> None:
    if own := [word for word in overrides if key_of(word) in _OWN]:
        raise ConfigError(
            f"`{own[0]}` with `rollpacker demo`.",
            f"The demo compares the systems {' and '.join(SYSTEMS)}, in a new folder below {FOLDER}.",
            "Leave it out; or take the command `rollpacker train -m` that the demo shows, and change that.",
        )


def _check_writable(runs: Path) -> None:
    try:
        check_folder("run.dir", runs)
    except ConfigError as error:
        raise ConfigError(
            error.problem, f"The demo writes into {FOLDER} below the present folder.", "Give it in another folder."
        ) from None


def words_of(inputs: Inputs) -> list[str]:
    """The experiment, and where its inputs are."""
    words = [f"model.path={inputs.model}", f"data.path={inputs.prompts}"]
    words += [f"evaluation.path={inputs.unseen}", f"evaluation.every_steps={EVERY_STEPS}"]
    if not inputs.is_mixed:
        return ["experiment=demo", *words]
    judge = [f"reward.judge.model.path={inputs.judge}", f"reward.judge.template={inputs.template}"]
    return ["experiment=mixed", *words, *judge]


def _announce(console: Terminal, number: str, title: str) -> None:
    console.print()
    console.print(Rule(Text.assemble((f"{number} ", "dim"), (title, "bold")), align="left", style="dim"))


def _prepare(console: Terminal, inputs: Inputs) -> None:
    console.print(
        "WALK: go from one number to another in steps of 1 to 4, and say where you are. How long a walk is follows a\n"
        "log-normal distribution, so a few responses are far longer than most."
    )
    console.print(
        Text.assemble(("  prompt    ", "dim"), "3 20 :\n", ("  response  ", "dim"), "+4 7 +1 8 +4 12 +4 16 +4 20")
    )
    if inputs.is_mixed:
        console.print(
            "Beside it CODE, programs that add two numbers to what they read, and CLIMB, from number to number."
        )
    if are_made(inputs):
        console.print(f"Model and prompts are in {inputs.folder} already.")
        return
    console.print(
        "A model of 0.1 M parameters first imitates worked-out walks, in which every second +2 is added wrongly."
    )
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.2f}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        import torch

        from rollpacker.demo.warm_start import NUM_ITERATIONS, make_model

        torch.set_num_threads(1)

        names = {inputs.model: "imitating"} | ({inputs.judge: "judging"} if inputs.is_mixed else {})
        bars = {folder: progress.add_task(name, total=NUM_ITERATIONS, loss=math.nan) for folder, name in names.items()}

        def learn(folder: Path, language: Language) -> None:
            make_model(
                folder,
                language,
                on_iteration=lambda finished, loss: progress.update(bars[folder], completed=finished, loss=loss),
            )

        make_inputs(inputs, learn)
    console.print(f"Model and tokenizer: {inputs.model}   prompts: {inputs.prompts}")


def _run(console: Terminal, command: str, words: Sequence[str]) -> int:
    """Run a command as the user would, and show its line; returns its exit code, 128 + the signal that killed it."""
    line = ["rollpacker", command, *words]
    console.print(Text.assemble(("$ ", "dim"), (shlex.join(line), "bold")), soft_wrap=True)
    process = subprocess.Popen(  # noqa: S603  # our own command
        [sys.executable, "-P", "-m", "rollpacker.cli", *line[1:]],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        process_group=0,  # Ctrl-C reaches it through this process alone: a second signal would end a run at once
    )
    # what ends a program is passed on: the command puts its own things in order
    with signals_handled((*SHELL_SIGNALS, signal.SIGQUIT), lambda number, _: process.send_signal(number)):
        code = process.wait()
    return code if code >= 0 else 128 - code
