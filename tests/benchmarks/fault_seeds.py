"""Finds deliberate bugs by random runs: `python tests/benchmarks/fault_seeds.py [SEEDS [BUG]]`.

Each bug of `tests/fuzz/bugs` that whole runs have to find is put into the package, one at a time, and the worlds of
seeds 0, 1, ... are run until one violates an invariant. Prints a row of a Markdown table for each: the bug, the first
seed that finds it, and the rule that did not hold. SEEDS (default 1000) is how many are tried; BUG is a part of a bug's
name, and then bugs of the machines alone are tried too.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz.bugs import BUGS
from tests.fuzz.bugs.harness import Worlds, first_failure, with_bug


def main(num_seeds: int = 1000, part_of_name: str = "") -> int:
    num_missed = 0
    print("| bug | first seed | the rule that did not hold |\n|---|---|---|")
    began_s = time.monotonic()
    for bug in BUGS:
        if part_of_name not in bug.name or not (part_of_name or bug.worlds is Worlds.RUNS):
            continue
        with with_bug(bug):
            found = first_failure(range(num_seeds))
        if found is None:
            num_missed += 1
        seed, rule = ("none", "") if found is None else (str(found[0]), found[1].rule.replace("|", "\\|"))
        print(f"| {bug.name} | {seed} | {rule} |", flush=True)
    print(f"\n{time.monotonic() - began_s:.0f} s, {num_missed} bugs were not found by {num_seeds} seeds.")
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2]), *sys.argv[2:3]))
