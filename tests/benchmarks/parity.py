"""Compares modelled runs with real ones: `python -m tests.benchmarks.parity [--steps N] [--repeats N] [--patience S]`.

For each system: measures a profile (`rollpacker profile`), trains the demo's model on its prompts for real (torch
engine, Ray), and repeats the run in virtual time with the same configuration and prompts, the profile, and the lengths
and rewards of the real run. Compared are what was trained (round kinds, prompts, samples) and the time of every step.
All of it `--repeats` times, because the machine is shared: the real runs of one repetition against those of the next
say how much of the difference is the machine's. Ray starts its workers at nice 15; `nice -n -15 python ...` gives them
the priority of other work. Writes `tests/benchmarks/results/parity.md`. The goal: step times within 15 % over at least
20 steps.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.demo.inputs import Inputs, provide_inputs

if TYPE_CHECKING:
    import pandas as pd

SYSTEMS = ("verl", "rollpacker")
GOAL = 0.15
"""Largest share by which a modelled step may be off."""

QUIET = 0.1
"""Share of the cores that other work may take before a measurement starts."""

PROMPT_TOKENS = 3
"""Of every prompt of the demo: a modelled run does not tokenize those that the recorded run never drew."""

STAGES = ("rollout_time_s", "exposed_reward_time_s", "train_time_s", "weight_sync_time_s", "step_time_s")
OUT = Path(__file__).parent / "results" / "parity.md"


def busy_share(interval_s: float = 1.0) -> float:
    """Share of the cores that work now, while this process waits."""

    def ticks() -> tuple[int, int]:
        numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    total, idle = ticks()
    time.sleep(interval_s)
    total_later, idle_later = ticks()
    return 1 - (idle_later - idle) / max(total_later - total, 1)


def wait_for_quiet(grace_s: float) -> float:
    """Wait until other work leaves the cores alone, or patience ends; gives the share that it takes."""
    deadline = time.monotonic() + grace_s
    while (share := busy_share()) > QUIET and time.monotonic() < deadline:
        time.sleep(1)
    return share


def rollpacker(*words: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rollpacker.cli", *words]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def steps_of(run: Path) -> pd.DataFrame:
    from rollpacker.metrics.tables import read_frame

    return read_frame(run, "steps").set_index("step")


def accepted_of(run: Path) -> set[tuple[int, str, int]]:
    from rollpacker.metrics.tables import read_frame

    frame = read_frame(run, "responses")
    accepted = frame[frame["accepted"]]
    return set(zip(accepted["step"], accepted["prompt"], accepted["sample"], strict=True))


def errors(of: pd.DataFrame, against: pd.DataFrame) -> pd.Series:
    """By which share each step's time is off."""
    return of["step_time_s"] / against["step_time_s"] - 1


def distribution(of: pd.DataFrame, against: pd.DataFrame) -> str:
    """By how much all steps together are off, and how the errors of single steps are distributed."""
    off = errors(of, against)
    size = off.abs()
    together = of["step_time_s"].sum() / against["step_time_s"].sum() - 1
    return (
        f"{together:+.1%} | {size.mean():.1%} | {size.quantile(0.5):.1%} | {size.quantile(0.9):.1%} | "
        f"{size.max():.1%} | {(size <= GOAL).mean():.0%} of {len(size)}"
    )


def same_samples(run: Path, other: Path) -> float:
    """Share of what one run trained in a step that the other did, too."""
    ours, theirs = accepted_of(run), accepted_of(other)
    return len(ours & theirs) / len(ours)


def sameness(real: Path, modelled: Path) -> str:
    kinds = (steps_of(real)["round_kind"] == steps_of(modelled)["round_kind"]).mean()
    ours, theirs = accepted_of(real), accepted_of(modelled)
    groups, other_groups = ({(step, prompt) for step, prompt, _ in each} for each in (ours, theirs))
    same_groups = len(groups & other_groups) / len(groups)
    return f"{kinds:.0%} | {same_groups:.1%} | {same_samples(real, modelled):.1%}"


def repeat(folder: Path, inputs, number: int, steps: int, grace_s: float) -> dict[str, tuple[Path, Path, float]]:
    """Profile, train and model each system once; gives the runs, and how busy the machine was before each real run."""
    runs: dict[str, tuple[Path, Path, float]] = {}
    for system in SYSTEMS:
        words = ["experiment=demo", f"system={system}", f"model.path={inputs.model}", f"data.path={inputs.prompts}"]
        words += [f"run.num_steps={steps}", "run.progress=none", "run.checkpoint_every_steps=0"]
        profile = folder / f"{number}-{system}.json"
        real, modelled = folder / f"{number}-{system}-real", folder / f"{number}-{system}-modelled"
        wait_for_quiet(grace_s)
        rollpacker("profile", *words, f"out={profile}")
        busy = wait_for_quiet(grace_s)
        rollpacker("train", *words, f"run.dir={real}")
        source = [f"hardware.profile={profile}", f"workload.lengths={real}", "workload.reward_time_s=0"]
        source += [f"workload.prompt_tokens={PROMPT_TOKENS}"]
        rollpacker("train", *words, "backend=sim", "hardware=cpu", *source, f"run.dir={modelled}")
        runs[system] = real, modelled, busy
        print(f"{number} {system:11} busy {busy:.0%} | {distribution(steps_of(modelled), steps_of(real))}")
    return runs


def report(command: str, repetitions: list[dict[str, tuple[Path, Path, float]]]) -> str:
    from rollpacker.runtime.placing.host import hardware_name

    machine = f"{hardware_name(has_gpus=False)}; {datetime.now().astimezone():%Y-%m-%d}; nice {os.nice(0)}"
    lines = [
        "# Modelled against real steps",
        "",
        f"`{command}`",
        "",
        f"{machine}. The machine was shared: `busy` is the share of its cores that worked just before the real run.",
        "",
        f"## Error of modelled step times (goal: within {GOAL:.0%})",
        "",
        "| system | run | busy | all together | mean | p50 | p90 | max | within goal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for system in SYSTEMS:
        for number, runs in enumerate(repetitions):
            real, modelled, busy = runs[system]
            lines.append(f"| {system} | {number} | {busy:.0%} | {distribution(steps_of(modelled), steps_of(real))} |")
    if len(repetitions) > 1:
        lines += [
            "",
            "## Error of one real run against another of the same steps: the machine's own",
            "",
            "Under verl the lengths are those of the seed, so both runs did the same work; under rollpacker nearly.",
            "",
            "| system | runs | same samples | all together | mean | p50 | p90 | max | within goal |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for system in SYSTEMS:
            reals = [runs[system][0] for runs in repetitions]
            for number, (before, after) in enumerate(itertools.pairwise(reals)):
                same, spread = same_samples(before, after), distribution(steps_of(before), steps_of(after))
                lines.append(f"| {system} | {number} and {number + 1} | {same:.0%} | {spread} |")
    lines += [
        "",
        "## What was trained",
        "",
        "Timing decides nothing under verl, and under rollpacker which of the launched are the first.",
        "",
        "| system | run | same round kinds | same prompts in the same step | same samples |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {system} | {number} | {sameness(*runs[system][:2])} |"
        for system in SYSTEMS
        for number, runs in enumerate(repetitions)
    ]
    lines += ["", "## Stages, mean per step in ms, real and modelled", ""]
    lines += [f"| system | run | {' | '.join(STAGES)} |", f"|---|---|{'---|' * len(STAGES)}"]
    for system in SYSTEMS:
        for number, runs in enumerate(repetitions):
            real, modelled = (steps_of(run) for run in runs[system][:2])
            cells = (f"{1000 * real[stage].mean():.0f}, {1000 * modelled[stage].mean():.0f}" for stage in STAGES)
            lines.append(f"| {system} | {number} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="of each run")
    parser.add_argument("--repeats", type=int, default=2, help="of everything")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--folder", type=Path, default=Path("runs/parity"), help="for inputs, profiles and runs")
    arguments = parser.parse_args()

    inputs = Inputs(folder=arguments.folder / "input")
    provide_inputs(inputs)
    folder = arguments.folder / datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    repetitions = []
    for number in range(arguments.repeats):
        repetitions.append(repeat(folder, inputs, number, arguments.steps, arguments.patience))
        command = f"python -m tests.benchmarks.parity --steps {arguments.steps} --repeats {arguments.repeats}"
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(report(command, repetitions))
    print(OUT.read_text())


if __name__ == "__main__":
    main()
