"""Finds deliberate bugs by random runs: `python -m tests.benchmarks.fault_seeds [SEEDS [BUG]]`.

Each bug of `tests/fuzz/bugs` that whole runs have to find is put into the package, one at a time, and the worlds of
seeds 0, 1, ... are run until one violates an invariant. Prints a row of a Markdown table for each: the bug, the first
seed that finds it, and the rule that did not hold. SEEDS (default 1000) is how many are tried; BUG is a part of a bug's
name, and then bugs of the machines alone are tried too.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.bugs import BUGS
from tests.fuzz.bugs.harness import Worlds, first_failure, with_bug


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("num_seeds", metavar="SEEDS", nargs="?", type=int, default=1000)
    parser.add_argument("part_of_name", metavar="BUG", nargs="?", default="")
    given = parser.parse_args()
    num_seeds, part_of_name = given.num_seeds, given.part_of_name
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
    sys.exit(main())
