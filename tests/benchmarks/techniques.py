"""Measures each technique alone and all together: `python tests/benchmarks/techniques.py [--steps N] [--repeats N]`.

On the demo's walks and on its mixed workload of walks, programs and climbs, whose rewards are a rule, a real sandbox
and a small real judge. Every run of a technique has a run of the plain system (verl) right before it, so that both meet
the same machine; all of it `--repeats` times. The first step of a run does not count: it is the first of everything.
The planner is left out: the embedded engine has one tensor-parallel degree (see `tests/benchmarks/planner.py`). Writes
`tests/benchmarks/results/techniques.md`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rollpacker.demo import mixed
from rollpacker.demo.__main__ import words_of
from rollpacker.demo.inputs import Inputs, are_made, make_inputs
from rollpacker.demo.language import WALKS
from rollpacker.demo.warm_start import make_model
from rollpacker.metrics.tables import read_table
from tests.benchmarks.parity import wait_for_quiet

PLAIN = ("system=verl",)
TECHNIQUES: Mapping[str, Sequence[str]] = {
    "tail batching": ("system=tail",),
    "reward scheduler": ("system=reward",),
    "stream trainer": ("system=verl", "system.stream=true"),
    "all of them": ("system=rollpacker",),
}
WORKLOADS = ("walks", "mixed")
CYCLE_STEPS = 5
"""Four short rounds and a long one: fewer steps would flatter tail batching, which defers."""

OUT = Path(__file__).parent / "results" / "techniques.md"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one run without its first step."""

    steps_s: Sequence[float]
    exposed_reward_s: float
    """Per step: from the end of generation until the batch is complete."""
    reward_mean: float

    @property
    def sum_s(self) -> float:
        return sum(self.steps_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self.steps_s)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A technique, and the plain run right before it."""

    plain: Measured
    other: Measured
    busy_share: float
    """Of the cores, by others, before it began."""


def make_workload(folder: Path, name: str) -> Inputs:
    import torch

    torch.set_num_threads(1)
    inputs = Inputs(folder=folder / name, is_mixed=name == "mixed")
    if not are_made(inputs):
        language = mixed.POLICY if inputs.is_mixed else WALKS
        make_inputs(
            inputs,
            lambda model: make_model(model, language=language),
            lambda judge: make_model(judge, language=mixed.JUDGE),
        )
    return inputs


def measure(inputs: Inputs, run_dir: Path, words: Sequence[str], num_steps: int) -> Measured:
    command = [sys.executable, "-m", "rollpacker.cli", "train", *words_of(inputs), *words, f"run.dir={run_dir}"]
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    with run_dir.with_suffix(".log").open("wb") as log:
        subprocess.run(
            [*command, f"run.num_steps={num_steps + 1}", "run.checkpoint_every_steps=0", "run.progress=plain"],
            check=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    rows = read_table(run_dir, "steps").sort_by("step").to_pylist()[1:]
    return Measured(
        steps_s=[row["step_time_s"] for row in rows],
        exposed_reward_s=statistics.mean(row["reward_time_s"] for row in rows),
        reward_mean=statistics.mean(row["reward_mean"] for row in rows),
    )


def report(command: str, pairs: Mapping[tuple[str, str], Sequence[Pair]]) -> str:
    lines = [
        "# Each technique against plain, measured",
        "",
        f"{datetime.now().astimezone():%Y-%m-%d}, {os.cpu_count()} cores, Python {sys.version.split()[0]}.",
        "",
        f"    {command}",
        "",
        "Ratios are plain over technique: above 1 the technique is faster. `of sums` is over all steps of a pair of",
        "runs, `of medians` of the steps' medians; each cell has one number per repetition. `others` is the share of",
        "the cores that other work took before a pair began: figures with more than a tenth are of a loaded machine.",
        "Exposed reward (from the end of generation until the batch is complete, per step) and mean reward are those",
        "of plain and of the technique.",
        "",
        "| workload | technique | of sums | of medians | plain, s per step | exposed reward, s | reward | others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (workload, technique), measured in pairs.items():
        cells = [
            ", ".join(f"{pair.plain.sum_s / pair.other.sum_s:.2f}" for pair in measured),
            ", ".join(f"{pair.plain.median_s / pair.other.median_s:.2f}" for pair in measured),
            ", ".join(f"{pair.plain.sum_s / len(pair.plain.steps_s):.2f}" for pair in measured),
            "; ".join(f"{pair.plain.exposed_reward_s:.2f}, {pair.other.exposed_reward_s:.2f}" for pair in measured),
            "; ".join(f"{pair.plain.reward_mean:.2f}, {pair.other.reward_mean:.2f}" for pair in measured),
            ", ".join(f"{100 * pair.busy_share:.0f} %" for pair in measured),
        ]
        lines.append(f"| {workload} | {technique} | {' | '.join(cells)} |")
    lines.append("")
    for workload in dict.fromkeys(workload for workload, _ in pairs):
        plain = [pair.plain.sum_s for (own, _), each in pairs.items() if own == workload for pair in each]
        lines.append(
            f"Noise on {workload}: the slowest of {len(plain)} plain runs took {max(plain) / min(plain):.2f} times as "
            "long as the fastest."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3 * CYCLE_STEPS, help="that count, of each run")
    parser.add_argument("--repeats", type=int, default=2, help="of everything")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--folder", type=Path, default=Path("runs/techniques"), help="for inputs and runs")
    arguments = parser.parse_args()
    folder = arguments.folder / datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    inputs = {name: make_workload(arguments.folder / "input", name) for name in arguments.workloads}
    command = f"python tests/benchmarks/techniques.py --steps {arguments.steps} --repeats {arguments.repeats}"
    pairs: dict[tuple[str, str], list[Pair]] = {}
    for number in range(arguments.repeats):
        for workload in arguments.workloads:
            for technique, words in TECHNIQUES.items():
                busy_share = wait_for_quiet(arguments.patience)
                place = folder / f"{workload}-{technique.replace(' ', '-')}-{number}"
                plain = measure(inputs[workload], place / "plain", PLAIN, arguments.steps)
                other = measure(inputs[workload], place / "technique", words, arguments.steps)
                pairs.setdefault((workload, technique), []).append(
                    Pair(plain=plain, other=other, busy_share=busy_share)
                )
                OUT.write_text(report(command, pairs))
    print(OUT.read_text())


if __name__ == "__main__":
    main()
