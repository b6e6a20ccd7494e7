"""How many correct programs the sandbox fails, and how many subtly wrong ones it passes; prints tables.

python -m tests.benchmarks.grading [PROGRAMS_OF_EACH_KIND [SEED]]
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.rewards.sandbox.corpus import FORMS, generate
from tests.rewards.sandbox.programs import reasons_of

NUM_EACH = 1000
LIMIT_S = 10.0
"""Of own time; the corpus is about answers, not about time."""


def main() -> None:
    """Score a corpus with a real pool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("num_each", metavar="PROGRAMS_OF_EACH_KIND", nargs="?", type=int, default=NUM_EACH)
    parser.add_argument("seed", metavar="SEED", nargs="?", type=int, default=0)
    given = parser.parse_args()
    programs = generate(given.num_each, given.seed)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cases = [(program.fields, program.source) for program in programs]
        reasons = asyncio.run(reasons_of(Path(folder), cases, limits_s=(LIMIT_S,)))
    took_s = time.monotonic() - began_s
    print(f"seed {given.seed}, {took_s:.0f} s, load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    print_table(programs, reasons)


def print_table(programs, reasons):
    """Print counts by form, and every verdict that is not what the oracle says."""
    num_right, num_wrong, failed, passed = Counter(), Counter(), Counter(), Counter()
    for program, reason in zip(programs, reasons, strict=True):
        (num_right if program.is_right else num_wrong)[program.form] += 1
        if program.is_right != (reason == "correct"):
            (failed if program.is_right else passed)[program.form] += 1
            print(f"\n{'FALSE FAIL' if program.is_right else 'FALSE PASS'}: {program.form}, {program.kind}: {reason}")
            print(f"{program.fields}\n{program.source}")
    print("| form | correct programs | of these failed | wrong programs | of these passed |\n|---|---|---|---|---|")
    for form in FORMS:
        print(f"| {form} | {num_right[form]} | {failed[form]} | {num_wrong[form]} | {passed[form]} |")
    print(f"| all | {num_right.total()} | {failed.total()} | {num_wrong.total()} | {passed.total()} |")


if __name__ == "__main__":
    main()
