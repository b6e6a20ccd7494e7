"""Settings combined at random: a modelled run is refused before it starts, or it ends and its events replay.

    python -m tests.fuzz.combinations FIRST:END

Worlds (`world`, `elastic_world`, `async_world`) hold the machines to an oracle, each in one mode of training. Here
nothing is held to anything but that it ends, and all modes meet: rollout workers that are lost beside asynchronous
training, held-out prompts, checkpoints on shared GPUs, and environments. A run that waits for nothing ends as well: in
virtual time a deadlock is an error.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollpacker import pipeline
from rollpacker.core.errors import UserError
from rollpacker.runtime.rollout.replay import replay
from rollpacker.runtime.run.preflight import validate
from rollpacker.sim.run_facts import ModelledRunFacts
from tests.fuzz.scratch import scratch_folder
from tests.sim.composed import config_of

if TYPE_CHECKING:
    from pathlib import Path

SMALL = (
    *("backend=sim", "model=qwen2.5-7b", "run.progress=none", "rollout.num_prompts=16", "rollout.num_responses=4"),
    *("rollout.max_response_tokens=4096", "trainer.tensor_parallel=1"),
)
SYSTEMS = (
    *("verl", "reward", "tail", "rollpacker", "rlhfuse", "ours", "ours-exact", "ours-fast", "dapo", "dapo-rollpacker"),
    *("flash", "roll-flash", "one-step-off"),
)
WORKERS = ("elastic=sim", "elastic.modelled.num_workers=2", "elastic.modelled.start_s=1")
FLAPPING = (
    *("availability=random", "mean_up_s=20", "mean_down_s=5", "burst=2", "grace_s=3", "time_limit_s=60"),
    *("least_stay_s=5", "drain_lead_s=5", "drain_margin_s=1"),
)
SEEDING: tuple[list[str], ...] = (
    *([], ["elastic.seeding=off"], ["elastic.seeding=adaptive"]),
    *(["elastic.seeding=fixed", f"elastic.seeding_s={seconds}"] for seconds in (0, 5, 30)),
)
HELD_OUT = "".join(
    f'{{"id": "q{number}", "domain": "math", "prompt": "?", "ground_truth": "1"}}\n' for number in range(40)
)


def words_of(seed: int, folder: Path) -> list[str]:
    """Draw the words of a run; `folder` gets its held-out prompts."""
    rng = random.Random(f"combination {seed}")

    def maybe(share: float, *words: str) -> list[str]:
        return list(words) if rng.random() < share else []

    def one(share: float, key: str, *values: object) -> list[str]:
        return maybe(share, f"{key}={rng.choice(values)}")

    system, has_workers, has_turns = rng.choice(SYSTEMS), rng.random() < 0.6, rng.random() < 0.2
    words = [*SMALL, f"system={system}", f"run.seed={seed}", f"run.num_steps={rng.choice([3, 5])}"]
    words += one(1, "engine.num_engines", 1, 2, 3) + one(1, "engine.max_num_seqs", 2, 4, 8, 32)
    if has_turns:
        words += ["workload=agents", "workload.environment.turns_mean=4", "workload.environment.turns_std=2"]
        words += one(0.4, "workload.environment.fail_stop_share", 0.05, 0.2)
    else:
        words += one(1, "workload", "math", "math", "code", "judge", "mix")
    if system in {"flash", "roll-flash"}:
        bound = rng.choice([1, 2, 3])
        words += maybe(0.7, f"system.max_staleness={bound}", f"system.lookahead={rng.choice([0, 0.5, 1, bound])}")
        words += one(0.4, "system.interrupt", "recompute", "keep")
    words += one(0.2, "system.routing", "sample", "prompt")
    words += one(0.4, "system.stream", "true", "false") + one(0.2, "system.speculative_decoding", "true", "false")
    words += one(0.4, "run.checkpoint_every_steps", 1, 2) + one(0.3, "workload.num_prompts", 16, 40, 70)
    if rng.random() < 0.6:
        (folder / "new.jsonl").write_text(HELD_OUT)
        words += [f"evaluation.path=[{folder}/new.jsonl]", f"evaluation.every_steps={rng.choice([1, 2])}"]
        words += one(0.5, "evaluation.num_samples", 2) + maybe(0.2, "evaluation.when=fill")
    if has_workers:
        when = f"step: {rng.choice([0, 1, 2])}, num_workers: {rng.choice([1, 2])}"
        delay = f"delay_s: {rng.choice([0, 5, 20])}, away_s: {rng.choice([1, 5, 50])}"
        words += [*WORKERS, *maybe(0.5, f"elastic.modelled.losses=[{{{when}, {delay}}}]")]
        if rng.random() < 0.3:
            of_workers = ("least_stay_s", "drain_lead_s", "drain_margin_s")
            words += [f"elastic.{'' if each.startswith(of_workers) else 'modelled.'}{each}" for each in FLAPPING]
        words += rng.choice(SEEDING) + one(0.3, "elastic.max_moves", 0, 1, 2)
        words += one(0.3, "elastic.keeps_tokens", "false") + one(0.2, "elastic.modelled.loses_silently", "true")
    return words


def outcome_of(seed: int, folder: Path) -> str:
    """Run a combination: `refused`, or `ended`.

    Raises:
        Exception: It neither was refused nor ended.
    """
    try:
        config = config_of(folder / "run", words_of(seed, folder))
        validate(config, ModelledRunFacts)
    except UserError as error:
        if "not legal" in str(error):
            raise  # a mistake of `words_of`, which would test nothing
        return "refused"
    pipeline.run(config)
    replay(config.run.dir)
    return "ended"


def main(arguments: Sequence[str]) -> int:
    """Run the combinations of some seeds, `FIRST:END`, and print those that neither were refused nor ended."""
    first, end = map(int, arguments[0].split(":"))
    counts: Counter[str] = Counter()
    for seed in range(first, end):
        with scratch_folder() as folder:
            try:
                counts[outcome_of(seed, folder)] += 1
            except Exception as error:  # noqa: BLE001  any is a finding
                counts["failed"] += 1
                words = " ".join(words_of(seed, folder))
                print(f"seed {seed}: {type(error).__name__}: {error}\n  {words}", flush=True)
    print(f"combinations {first} to {end - 1}: {dict(counts)}")
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
