"""Draws malformed inputs over all commands, and lists each one that was not answered well.

    python -m tests.malformed [NUM] [FIRST_SEED]

No traceback, no other exit code than 0, 1 and 2, no more than 5 s, nothing left behind; of the errors, which are not
clear. Exits with 1 if anything but clearness fails, or if more than 2 % are unclear.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import rollpacker.cli.check
import rollpacker.cli.train  # noqa: F401 loaded once, for all children
from rollpacker.config.compose import compose
from tests.malformed.draws import LEGAL, draw
from tests.malformed.ground import make_ground
from tests.malformed.trials import run_trial

MOST_UNCLEAR = 0.02


def main(arguments: list[str]) -> int:
    """Run the trials one after the other."""
    num, first = (int(word) for word in (arguments + ["1000", "0"][len(arguments) :])[:2])
    outcomes: Counter[str] = Counter()
    compose(["model.path=m", "data.path=p"])  # finds Hydra's plugins once, for all children
    with tempfile.TemporaryDirectory() as scratch:
        ground, folder = Path(scratch) / "ground", Path(scratch) / "trial"
        make_ground(ground)
        for legal in LEGAL:
            outcome = run_trial(legal, ground, folder)
            if outcome.code or outcome.faults:
                raise SystemExit(f"{legal.words} is in order: {outcome.code} {outcome.faults}\n{outcome.said}")
            shutil.rmtree(folder)
        for seed in range(first, first + num):
            drawn = draw(seed)
            outcome = run_trial(drawn, ground, folder)
            shutil.rmtree(folder)
            outcomes["accepted" if outcome.code == 0 else "refused"] += 1
            outcomes["faulty"] += bool(outcome.faults)
            outcomes["unclear"] += bool(outcome.unclear)
            if outcome.faults or outcome.unclear:
                print(f"seed {seed}: rollpacker {' '.join(map(repr, drawn.words))}  {drawn.harm}")
                print(f"  {'; '.join((*outcome.faults, outcome.unclear))}")
                print("".join(f"    | {line}\n" for line in repr_lines(outcome.said)[-8:]), flush=True)
    print(", ".join(f"{count} {name}" for name, count in outcomes.items()))
    return int(outcomes["faulty"] > 0 or outcomes["unclear"] > MOST_UNCLEAR * num)


def repr_lines(text: str) -> list[str]:
    """The lines of a text, safe for a terminal."""
    return [line.encode("unicode_escape").decode()[:160] for line in text.splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
