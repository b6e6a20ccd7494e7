"""Runs small modelled runs in which things break, and checks every invariant after every event.

    python -m tests.fuzz [seeds=FIRST:END] [jobs=N] [out=DIR]

    seeds   Which worlds; END is not run. Default: 0:1000
    jobs    Processes that run them. Default: 1
    out     Where replay tests of violations go. Default: runs/fuzz

Worlds are drawn from their seeds; odd seeds above 100 are asynchronous runs. In them engines crash, messages are lost
or come twice, weights tear and the driver is killed. A violation is shrunk and saved as a replay test, and the exit
code is 1.

Example: python -m tests.fuzz seeds=0:10000 jobs=2
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rollpacker.cli.screen import output, show_error
from rollpacker.config.sections.base import LARGEST
from rollpacker.core.errors import EXIT_INTERRUPTED, ConfigError, RollpackerError, WorldError
from rollpacker.runtime.placing.capacity import MOST_PER_CORE
from rollpacker.runtime.placing.host import usable_cpus
from rollpacker.runtime.run.folder_checks import check_folder
from rollpacker.terminal import Terminal
from tests.fuzz import campaign
from tests.fuzz.campaign import Tally
from tests.fuzz.shrink import shrink, violation_of

COMMAND = "python -m tests.fuzz"
DEFAULTS = {"seeds": "0:1000", "jobs": "1", "out": "runs/fuzz"}

_SECONDS_PER_LINE = 30.0
"""How often progress is told where nobody watches a terminal."""


def main(arguments: Sequence[str]) -> int:
    """Run one command line; returns the process exit code."""
    try:
        if {"-h", "--help"}.intersection(arguments):
            print(__doc__)
        else:
            run(arguments)
    except RollpackerError as error:
        show_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def run(arguments: Sequence[str]) -> None:
    """Run the worlds of some seeds, and print what was found."""
    words = _parse(arguments)
    seeds, num_jobs, out = _seeds(words["seeds"]), _jobs(words["jobs"]), Path(words["out"])
    check_folder("out", out)  # a violation after hours finds its folder
    console, tally = output(), Tally()
    try:
        _run_worlds(console, tally, seeds, num_jobs)
    finally:  # Ctrl-C too shows what was done
        _show(console, tally)
    if tally.failures:
        files = _save(console, tally, out)
        raise WorldError(
            f"{len(tally.failures)} of {tally.num_worlds:,} worlds violated an invariant.",
            "A replay test of each: " + ", ".join(map(str, files)),
            "Fix what they show, and move them to tests/replays, where they run with the tests.",
        )


def _parse(arguments: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        if name not in DEFAULTS or name in found or not equals or not value:
            raise ConfigError(
                f"`{COMMAND}` was given {word}.",
                f"It takes {', '.join(f'{each}=...' for each in DEFAULTS)}, each once.",
                f"For example: {COMMAND} seeds=0:10000 jobs=2",
            )
        found[name] = value
    return DEFAULTS | found


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    if first.isdecimal() and ((end.isdecimal() and int(first) < int(end)) if colon else True):
        seeds = range(int(first), int(end) if colon else int(first) + 1)
        if seeds.stop <= LARGEST:
            return seeds
    raise ConfigError(
        f"seeds={text}.",
        f"It is one number from 0, or FIRST:END with FIRST below END, at most {LARGEST:,}; END itself is not run.",
        "For example: seeds=0:10000",
    )


def _jobs(text: str) -> int:
    most = MOST_PER_CORE * usable_cpus()
    if text.isdecimal() and 0 < int(text) <= most:
        return int(text)
    raise ConfigError(
        f"jobs={text}.", f"It is the number of processes, from 1 to {most} on this machine.", "For example: jobs=2"
    )


def _run_worlds(console: Terminal, tally: Tally, seeds: range, num_jobs: int) -> None:
    began_s = told_s = time.monotonic()
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("worlds, {task.description}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("no violation", total=len(seeds))
        for outcome in campaign.outcomes(seeds, num_jobs):
            tally.add(outcome)
            found = f"{len(tally.failures)} violations" if tally.failures else "no violation"
            progress.update(bar, advance=1, description=found)
            now_s = time.monotonic()
            if not console.is_terminal and now_s - told_s >= _SECONDS_PER_LINE:
                told_s = now_s
                left_s = (now_s - began_s) / tally.num_worlds * (len(seeds) - tally.num_worlds)
                console.print(f"{tally.num_worlds:,} of {len(seeds):,} worlds, {found}, {left_s:.0f} s left")


def _show(console: Terminal, tally: Tally) -> None:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.happened.items())) or "none"
    console.print(
        f"{tally.num_worlds:,} worlds, {tally.num_events:,} events, {tally.num_steps:,} steps in "
        f"{tally.num_attempts:,} attempts."
    )
    console.print(f"Faults: {sum(tally.happened.values()):,}: {kinds}.")
    console.print(f"Violations: {len(tally.failures)}.")


def _save(console: Terminal, tally: Tally, out: Path) -> list[Path]:
    """Shrink the first failure of each rule and save it."""
    files: list[Path] = []
    for world, violation in tally.first_failures():
        console.print(f"\nseed {world.seed}: {violation.rule}\n{violation.message}")
        again = violation_of(world)
        if again is None:
            console.print("It held when it was run again: a world depends on something beside its seed.")
            continue
        shrunk = shrink(world, again)
        saved = shrunk.save(out)
        size = "the driver is needed" if shrunk.told is None else f"{len(shrunk.told.events)} events are enough"
        console.print(f"Shrunk to {len(shrunk.world.faults)} faults; {size}: {', '.join(map(str, saved))}")
        files += saved
    return files


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
