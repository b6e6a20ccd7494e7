"""RollPacker from Python: in a notebook, or in a script.

    rollpacker.train("reward=math system=rollpacker", model__path=DIR, data__path="prompts.jsonl")
    rollpacker.load("runs/x")

`train` takes the words of `rollpacker train`, as texts, and keys as arguments, with two underscores for each dot. It
prints what the command prints, waits for the end, and gives a `Run`; `load` gives that of a folder, also while the run
goes on. Steps begin at 0 in `steps`, as in all tables; `samples` and `evaluations` count finished ones, as the screen
does: what was generated in the tenth step has the step 10. `reward` may be a function of yours, as `reward.function`
takes it. It has to be in a file that can be imported, because it runs in processes that are killed when it hangs: in a
notebook write the file by %%writefile, and in a script put the call of `train` under `if __name__ == "__main__":`.

The run is a process of its own: it needs no event loop of yours, and its memory is free when it ends. Interrupting it
(Ctrl-C, or the notebook's button) saves a checkpoint, and `run__resume="auto"` goes on from there; doing it twice
leaves at once. It ends with the process that called `train`, however that ends.

An example for a machine without a GPU, some two minutes. A small model has learnt to walk from number to number and
makes a mistake in every second +2; it unlearns that. First the reward, in a file:

    # my_reward.py
    def score(response, ground_truth):
        words = response.split()
        place, target = map(int, ground_truth.split())
        for step, said in zip(words[::2], words[1::2]):
            place += int(step) if step.strip("+-").isdecimal() else 0
            if str(place) != said:
                return {"score": 0, "reason": "wrong_sum", "num_words": len(words)}
        return {"score": float(place == target), "reason": "counted", "num_words": len(words)}

Then:

    import random
    from pathlib import Path

    import rollpacker
    from my_reward import score
    from rollpacker.demo.task import prompt_file, unseen_file
    from rollpacker.demo.warm_start import make_model

    make_model(Path("walk/model"), num_iterations=800)
    prompts = prompt_file(1000, random.Random(0))
    Path("walk/prompts.jsonl").write_text(prompts)
    Path("walk/unseen.jsonl").write_text(unseen_file(100, random.Random(1), prompts))

    run = rollpacker.train(
        "system=rollpacker rollout.num_prompts=16 rollout.num_responses=8 rollout.max_response_tokens=150",
        model__path="walk/model",
        data__path="walk/prompts.jsonl",
        data__max_prompt_tokens=16,
        evaluation__path="walk/unseen.jsonl",
        trainer__learning_rate=1e-3,
        run__num_steps=20,
        run__dir="walk/run",
        reward=score,
    )

    print(run.steps[["step", "reward_mean", "step_time_s"]])
    print(run.evaluations[["step", "reward_mean", "se_given_prompts", "se_over_prompts"]])
    print(run.samples[["step", "prompt_text", "response_text", "reward"]].tail())

    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(run.model, dtype="auto")
"""

from __future__ import annotations

import os
import pickle
import shlex
import signal
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError, DataError, RollpackerError, WorldError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd


@dataclass(frozen=True, slots=True)
class Run:
    """A run's folder, finished or not; its tables are read anew each time. `rollpacker.train` and `load` make it."""

    dir: Path

    @property
    def steps(self) -> pd.DataFrame:
        """The table `steps`: a row per step, from 0; `attrs["units"]` has the unit of each column.

        Raises `DataError` before the first step, and of a run that only evaluates.
        """
        from rollpacker.timeline.run_tables import refuse_other_folders

        refuse_other_folders(self.dir)
        return self._table("steps")

    @property
    def evaluations(self) -> pd.DataFrame:
        """The table `evaluations`: a row per evaluation and held-out set, by the number of finished steps."""
        return self._table("evaluations")

    @property
    def samples(self) -> pd.DataFrame:
        """The responses that are kept as text, of training and of evaluations, by step from 1.

        Evaluations that cannot be read are left out, with a warning.
        """
        from rollpacker.metrics.samples import PROBLEM, read_samples

        samples = read_samples(self.dir)
        if problem := samples.attrs.get(PROBLEM):
            warnings.warn(problem, stacklevel=2)
        return samples

    @property
    def model(self) -> Path:
        """The trained model, a Hugging Face folder; its card says after how many steps.

        Raises `DataError` before the run has ended once. While a finished run is continued, and when that fails, it is
        the model of before.
        """
        from rollpacker.runtime.run.exporting import MODEL_FOLDER

        folder = self.dir / MODEL_FOLDER
        if not folder.is_dir():
            raise DataError(
                f"{self.dir} has no {MODEL_FOLDER}/.",
                "A run that trains with real engines writes it when it ends, unless model.export_dtype=null.",
                f"Of such a run, `rollpacker export {self.dir} out=DIR` writes the model of a checkpoint.",
            )
        return folder

    def _table(self, name: str) -> pd.DataFrame:
        from rollpacker.metrics.tables import read_frame

        return read_frame(self.dir, name)


def load(run_dir: str | Path) -> Run:
    """Open the folder of a run that has a finished step or an evaluation; raises `DataError` for anything else."""
    from rollpacker.metrics.samples import has_evaluations
    from rollpacker.timeline.run_tables import refuse_other_folders

    try:
        refuse_other_folders(Path(run_dir))
    except DataError:
        if not has_evaluations(Path(run_dir)):
            raise
    return Run(Path(run_dir))


def train(*words: str, reward: str | Callable[..., object] | None = None, **keys: object) -> Run:
    """Train a model in a process of its own, and wait for its end.

    Args:
        words: As `rollpacker train` takes them; one text may hold several, quoted as in a shell.
        reward: An option of the group `reward`; or a function, or its name as `reward.function` takes it.
        keys: Further groups and keys, with two underscores for a dot: `run__num_steps=20`.

    Returns:
        The run, complete.

    Raises:
        RollpackerError: What `rollpacker train` would end with.
        KeyboardInterrupt: It was interrupted; its checkpoint is saved.
    """
    _refuse_to_nest()
    from rollpacker.config.words import in_hydra, key_of, quoted

    given = [each for text in words for each in _split(text)]
    given += [f"{name.replace('__', '.')}={in_hydra(value)}" for name, value in keys.items()]
    package_root = None
    if callable(reward):
        source = _source(reward)
        package_root = _package_root(reward)
        reward = source
    elif not isinstance(reward, str | None):
        raise ConfigError(
            f"reward={reward!r} is no reward.",
            "It is a function, FILE.py:NAME, or an option of the group `reward`.",
            "For example: reward=score, or reward='math'.",
        )
    if reward is not None:
        given.append(f"{'reward.function' if ':' in reward else 'reward'}={in_hydra(reward)}")

    from rollpacker.config.compose import compose
    from rollpacker.runtime.placing.automatic import complete

    if unfit := [word for word in given if "\0" in word]:
        raise ConfigError(f"{unfit[0]!r} has a null character.", "No argument of a program has one.", "Take it out.")
    run_dir = compose(given, complete).run.dir
    if "run.dir" not in map(key_of, given):
        given.append(f"run.dir={quoted(run_dir)}")  # it has the time in its name
    _run_process(given, package_root)
    return Run(run_dir)


def _split(text: object) -> list[str]:
    if not isinstance(text, str):
        raise ConfigError(
            f"{text!r} is not a string.",
            "Words are strings, as `rollpacker train` takes them.",
            "Give a list of words as *WORDS, and a mapping of keys as **KEYS.",
        )
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"`{text}` cannot be split into words: {str(error).lower()}.",
            "A text holds words as a shell takes them.",
            'Close the quote, or give the value as an argument: run__dir="it\'s mine".',
        ) from None


def _source(function: Callable[..., object]) -> str:
    """The name by which a process can import a function; raises `ConfigError` where it cannot."""
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None) or ""
    if module is None or not name.isidentifier() or not file.endswith(".py") or not hasattr(module, name):
        raise ConfigError(
            f"reward={function!r} cannot be imported.",
            "A reward is a function at the top level of a Python file: it runs in processes that are killed when it "
            "hangs. One of a notebook, a lambda, a method or a function within another one is in no such file.",
            'Write it to a file, in a notebook by %%writefile, and give reward="FILE.py:NAME" or import it from there.',
        )
    return f"{module.__name__}:{name}" if "." in module.__name__ else f"{Path(file).resolve()}:{name}"


def _package_root(function: Callable[..., object]) -> Path | None:
    """The folder from which the package of a function is imported; None where it is in no package, or an installed one.

    A script finds what lies beside it, and a process of its own does not.
    """
    module = sys.modules[function.__module__]
    if "." not in module.__name__:
        return None
    file = Path(module.__file__ or "")
    root = file.absolute().parents[module.__name__.count(".") + (file.name == "__init__.py")]
    return None if {"site-packages", "dist-packages"} & {*root.parts} else root


def _refuse_to_nest() -> None:
    """Refuse to train in a process that imports a script for the function in it: it would never end."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name.startswith("rollpacker.") and main.name != __name__:
        raise ConfigError(
            "rollpacker.train was called while this file was imported for a function in it.",
            "What calls it stands where an import does not come.",
            'Put the call under `if __name__ == "__main__":`.',
        )


def _run_process(words: Sequence[str], package_root: Path | None) -> None:
    """Start the process, which also imports from a folder; print what it prints, and raise what it ends with."""
    with tempfile.TemporaryFile() as errors:  # a pipe takes 64 KiB while nobody reads it
        process = subprocess.Popen(  # noqa: S603  our own interpreter and module
            [sys.executable, "-P", "-m", __name__, str(errors.fileno()), str(os.getpid()), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            pass_fds=(errors.fileno(),),
            start_new_session=True,  # Ctrl-C comes here first, in a terminal as in a notebook
            env=_environment(package_root),
            text=True,
            errors="replace",
        )
        try:
            _print_until_ended(process)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        errors.seek(0)
        error = errors.read()
    if process.returncode == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if error:
        raised: RollpackerError = pickle.loads(error)  # noqa: S301  from our own process
        raise raised
    if process.returncode:
        raise WorldError(f"The process of the run ended with code {process.returncode}.", "", "Its output says more.")


def _print_until_ended(process: subprocess.Popen[str]) -> None:
    """Hand each interruption on: the run decides what it means."""
    assert process.stdout is not None
    while True:
        try:
            for line in process.stdout:
                print(line, end="", flush=True)  # noqa: T201  as the command does
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
        else:
            return


def _environment(package_root: Path | None) -> Mapping[str, str]:
    from rollpacker.processes.package_modules import path_of_package

    path = os.pathsep.join([path_of_package(), *([str(package_root)] if package_root else [])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _main(arguments: Sequence[str]) -> int:
    """Be the process of a run, which ends as Ctrl-C or SIGTERM end it when its parent does."""
    errors, parent_pid, *words = arguments
    from rollpacker.cli import train as command
    from rollpacker.cli.arguments import parse_arguments
    from rollpacker.cli.main import as_ours, print_any_sign
    from rollpacker.processes.lifetimes import set_parent_death_signal

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    set_parent_death_signal(signal.SIGTERM)
    if os.getppid() != int(parent_pid):
        return 1
    print_any_sign()
    try:
        try:
            command.run(parse_arguments("train", words, command.HELP, can_sweep=False))
        except Exception as raised:  # noqa: BLE001 - the process boundary: the parent raises it again
            error = as_ours(raised)
            if error.exit_code != 128 + signal.SIGINT:
                with open(int(errors), "wb") as file:  # noqa: PTH123  a descriptor
                    pickle.dump(error, file)
            else:
                print(error)  # noqa: T201
            return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
