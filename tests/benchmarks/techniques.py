"""Measures each technique alone and all together: `python -m tests.benchmarks.techniques [--repeats N]`.

On the demo's walks and on its mixed workload of walks, programs and climbs, whose rewards are a rule, a real sandbox
and a small real judge. In each repetition of a workload the plain system (verl) and every technique run once, one right
after the other, and a technique is compared with the plain run of its repetition; every second repetition goes the
other way round, so that a machine that gets slower favours nobody. The first step of a run does not count: it is the
first of everything. The planner is left out: the embedded engine has one tensor-parallel degree (see
`tests/benchmarks/planner.py`). Writes `tests/benchmarks/results/techniques.md` after every run; a run that has finished
is in `--folder`, and is not run again when the command is started once more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rollpacker.demo.inputs import Inputs, provide_inputs
from rollpacker.demo.three_commands import words_of
from rollpacker.metrics.tables import read_table
from rollpacker.runtime.placing.host import hardware_name
from rollpacker.runtime.run.status import read_status
from tests.benchmarks.parity import wait_for_quiet

PLAIN = "plain"
SYSTEMS: Mapping[str, Sequence[str]] = {
    PLAIN: ("system=verl",),
    "tail batching": ("system=tail",),
    "reward scheduler": ("system=reward",),
    "stream trainer": ("system=verl", "system.stream=true"),
    "all of them": ("system=rollpacker",),
}
CYCLE_STEPS = 5
"""Four short rounds and a long one: fewer steps would flatter tail batching, which defers."""

NUM_STEPS: Mapping[str, int] = {"walks": 6 * CYCLE_STEPS, "mixed": 2 * CYCLE_STEPS}
"""That count, of each run. A mixed step takes several times as long: programs that never end are waited for."""

OUT = Path(__file__).parent / "results" / "techniques.md"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one run without its first step."""

    steps_s: Sequence[float]
    exposed_reward_s: float
    """Per step: in which rewards were computed and nothing was generated."""
    reward_mean: float
    busy_share: float
    """Of the cores, by others, before it began."""

    @property
    def sum_s(self) -> float:
        return sum(self.steps_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self.steps_s)


Measurements = Mapping[tuple[str, str], Mapping[int, Measured]]
"""By workload and system, then by repetition."""


def make_workload(folder: Path, name: str) -> Inputs:
    inputs = Inputs(folder=folder / name, is_mixed=name == "mixed")
    provide_inputs(inputs)
    return inputs


def measure(inputs: Inputs, run_dir: Path, words: Sequence[str], num_steps: int, grace_s: float) -> Measured:
    share = run_dir.with_suffix(".busy")
    status = read_status(run_dir)
    if not status or status.state != "finished":
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        share.write_text(str(wait_for_quiet(grace_s)))
        command = [sys.executable, "-m", "rollpacker.cli", "train", *words_of(inputs), *words, f"run.dir={run_dir}"]
        command += [f"run.num_steps={num_steps + 1}", "run.checkpoint_every_steps=0", "run.progress=plain"]
        command += ["backend.deadlines.start_s=600"]  # the machine may be busy
        with run_dir.with_suffix(".log").open("wb") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, env=environment)
    rows = read_table(run_dir, "steps").sort_by("step").to_pylist()[1:]
    return Measured(
        steps_s=[row["step_time_s"] for row in rows],
        exposed_reward_s=statistics.mean(row["exposed_reward_time_s"] for row in rows),
        reward_mean=statistics.mean(row["reward_mean"] for row in rows),
        busy_share=float(share.read_text()),
    )


def report(command: str, measured: Measurements) -> str:
    workloads = dict.fromkeys(workload for workload, _ in measured)
    steps = ", ".join(f"{NUM_STEPS[workload]} of {workload}" for workload in workloads)
    lines = [
        "# Each technique against plain, measured",
        "",
        f"{hardware_name(has_gpus=False)}; {datetime.now().astimezone():%Y-%m-%d}; Python {sys.version.split()[0]}.",
        f"Steps that count: {steps}.",
        "",
        f"    {command}",
        "",
        "A cell has one number per repetition, with the seeds 0, 1 and so on. The speedup is plain over technique of",
        "the same repetition, above 1 where the technique is faster: by the sums of all steps, and by the medians of",
        "the steps. Exposed reward is the time of a step in which rewards were computed and nothing was generated.",
        "`others` is the share of the cores that other work took before a run began: above a tenth, figures are of a",
        "loaded machine.",
        "",
        "| workload | system | s per step | speedup, sums | speedup, medians | exposed reward, s | reward | others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (workload, system), runs in measured.items():
        pairs = [(measured[workload, PLAIN].get(number), run) for number, run in sorted(runs.items())]
        against = [(plain, run) for plain, run in pairs if plain and system != PLAIN]
        cells = [
            ", ".join(f"{run.sum_s / len(run.steps_s):.2f}" for _, run in pairs),
            ", ".join(f"{plain.sum_s / run.sum_s:.2f}" for plain, run in against),
            ", ".join(f"{plain.median_s / run.median_s:.2f}" for plain, run in against),
            ", ".join(f"{run.exposed_reward_s:.2f}" for _, run in pairs),
            ", ".join(f"{run.reward_mean:.2f}" for _, run in pairs),
            ", ".join(f"{run.busy_share:.0%}" for _, run in pairs),
        ]
        lines.append(f"| {workload} | {system} | {' | '.join(cells)} |")
    lines.append("")
    for (workload, system), runs in measured.items():
        if system == PLAIN and len(runs) > 1:
            sums = [run.sum_s for run in runs.values()]
            lines.append(
                f"Noise on {workload}: the slowest of {len(sums)} plain runs took {max(sums) / min(sums):.2f} times as "
                "long as the fastest."
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="of everything")
    parser.add_argument("--workloads", nargs="+", choices=NUM_STEPS, default=[*NUM_STEPS])
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--folder", type=Path, default=Path("runs/techniques"), help="for inputs and runs")
    arguments = parser.parse_args()
    inputs = {name: make_workload(arguments.folder / "input", name) for name in arguments.workloads}
    command = f"python -m tests.benchmarks.techniques --repeats {arguments.repeats}"
    measured: dict[tuple[str, str], dict[int, Measured]] = {
        (workload, system): {} for workload in arguments.workloads for system in SYSTEMS
    }
    for number in range(arguments.repeats):
        for workload in arguments.workloads:
            for system, words in list(SYSTEMS.items())[:: -1 if number % 2 else 1]:
                run_dir = arguments.folder / f"{workload}-{number}" / system.replace(" ", "-")
                seeded = (*words, f"run.seed={number}")
                measured[workload, system][number] = measure(
                    inputs[workload], run_dir, seeded, NUM_STEPS[workload], arguments.patience
                )
                OUT.write_text(report(command, measured))
    print(OUT.read_text())


if __name__ == "__main__":
    main()
