"""Models what a length history gains over epochs: `python -m tests.benchmarks.length_history [--models 7b 14b]`.

The paper's 7B, 14B and 32B setups in the project's own machines, 160 prompts of each domain, so that an epoch is about
four steps, and 40 steps, over three seeds. Per system: seconds per step from step 8 on, when every prompt is known, and
their speedup over `verl` of the same seed; the mean length of the trained responses over that of `verl`, which trains
what the policy writes; and the share of tokens that are not trained.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import fmean

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.metrics.tables import read_frame

SYSTEMS = {
    "verl": ("system=verl",),
    "ours-exact": ("system=ours-exact",),
    "rollpacker": ("system=rollpacker",),
    "1.25 x 1": ("system=rollpacker", "system.eta_responses=1"),
    "1.125 x 1": ("system=rollpacker", "system.eta_prompts=1.125", "system.eta_responses=1"),
    "ours": ("system=ours",),
    "ours, race at first": ("system=ours", "system.first_epoch=race"),
    "ours, 1.125 x 1.125": ("system=ours", "system.eta_responses=1.125"),
}
SETUP = (
    "setup=paper",
    "backend=sim",
    "workload.num_prompts=160",
    "run.num_steps=40",
    "run.checkpoint_every_steps=0",
    "run.progress=none",
)
FIRST_STEP = 8
"""Two epochs of verl: the first that counts in times."""


def measure(words: tuple[str, ...]) -> tuple[float, float, float, float]:
    """Give seconds per step once all is known, the same over all steps, trained length, and wasted share."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        pipeline.run(compose([*SETUP, *words, f"run.dir={run_dir}"]))
        steps = read_frame(run_dir, "steps")
    known = steps[steps["step"] >= FIRST_STEP]
    trained = known["tokens_trained"].sum() / known["num_responses"].sum()
    wasted = known["tokens_wasted"].sum() / known["tokens_generated"].sum()
    return known["step_time_s"].mean(), steps["step_time_s"].mean(), trained, wasted


def main() -> None:
    """Print a row per model and system, means over the seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", nargs="+", default=["7b", "14b", "32b"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="the first one is the base"
    )
    parser.add_argument("--words", nargs="*", default=[], help="further settings, KEY=VALUE")
    options = parser.parse_args()
    print(f"{'':28} {'step s':>8} {'speedup':>15} {'all steps':>10} {'length':>13} {'waste':>7}")
    for model in options.models:
        plain: dict[int, tuple[float, float, float, float]] = {}
        for name in options.systems:
            of_seed = {
                seed: measure((f"model=qwen2.5-{model}", f"run.seed={seed}", *SYSTEMS[name], *options.words))
                for seed in options.seeds
            }
            plain = plain or of_seed
            speedups = [plain[seed][0] / row[0] for seed, row in of_seed.items()]
            lengths = [row[2] / plain[seed][2] for seed, row in of_seed.items()]
            seconds, all_steps, _, waste = (fmean(column) for column in zip(*of_seed.values(), strict=True))
            print(
                f"{model:>4} {name:23} {seconds:8.1f} {fmean(speedups):5.2f} ({min(speedups):.2f}-{max(speedups):.2f}) "
                f"{all_steps:8.1f} s {fmean(lengths):4.2f} ({min(lengths):.2f}-{max(lengths):.2f}) {waste:6.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
