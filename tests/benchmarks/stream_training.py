"""How much of the training a stream hides: the same real run with and without it, in turns, on this machine.

    python -m tests.benchmarks.stream_training MODEL PROMPTS [--rounds 3] [WORDS ...]

MODEL and PROMPTS are the demo's (`make demo` leaves them in runs/demo), WORDS go to `rollpacker train` last. Prints,
per step, the exposed training time (`train_time_s`), what was hidden (`stream_time_s`) and the step, each as the median
over all steps but the first of each run, and the ratio of exposed training with the stream to that without.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rollpacker.config.words import replaced
from rollpacker.metrics.tables import read_table

NUM_STEPS = 8
COLUMNS = ("train_time_s", "stream_time_s", "rollout_time_s", "step_time_s")


def steps_of(run_dir: Path, words: list[str]) -> list[dict[str, float]]:
    """Every step but the first, which warms up."""
    command = [sys.executable, "-m", "rollpacker.cli", "train", f"run.dir={run_dir}", "run.progress=none", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return read_table(run_dir, "steps").to_pylist()[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given, more = parser.parse_known_args()
    own = [
        f"model.path={given.model}",
        f"data.path={given.prompts}",
        *("system=rlhfuse", "reward=walk", "data.max_prompt_tokens=16"),
        *("rollout.num_prompts=16", "rollout.num_responses=8", "rollout.max_response_tokens=256"),
        *("run.num_epochs=null", f"run.num_steps={NUM_STEPS}"),
    ]
    words = replaced(own, more)
    steps: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for streams in (False, True):
                run_dir = Path(folder) / f"{number}-{streams}"
                steps[streams] += steps_of(run_dir, [*words, f"system.stream={str(streams).lower()}"])
    print(f"{'':10}{''.join(f'{column:>16}' for column in COLUMNS)}{'streamed':>12}{'lent':>6}")
    medians = {}
    for streams, rows in steps.items():
        medians[streams] = [statistics.median(row[column] for row in rows) for column in COLUMNS]
        share = sum(row["tokens_streamed"] for row in rows) / sum(row["tokens_trained"] for row in rows)
        lent = statistics.mean(row["num_engines_lent"] for row in rows)
        numbers = "".join(f"{number:16.3f}" for number in medians[streams])
        print(f"{'stream' if streams else 'no stream':10}{numbers}{share:12.0%}{lent:6.2f}")
    print(f"exposed training, with the stream over without: {medians[True][0] / medians[False][0]:.2f}")
    print(f"step time, with the stream over without: {medians[True][3] / medians[False][3]:.2f}")


if __name__ == "__main__":
    main()
