"""`rollpacker fuzz`: runs random worlds in which things break, and turns a violated invariant into a replay test."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError, WorldError

if TYPE_CHECKING:
    from rich.console import Console

    from rollpacker.cli.arguments import Arguments
    from rollpacker.fuzz.campaign import Tally

DEFAULTS = {"seeds": "0:1000", "jobs": "1", "out": "runs/fuzz"}

_SECONDS_PER_LINE = 30.0
"""How often progress is told where nobody watches a terminal."""


def run(arguments: Arguments) -> None:
    """Run the worlds of some seeds, and print what was found."""
    words = _parse(arguments.words)
    seeds, num_jobs, out = _seeds(words["seeds"]), _jobs(words["jobs"]), Path(words["out"])

    from rollpacker.cli.screen import output
    from rollpacker.fuzz.campaign import Tally

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


def show_help() -> None:
    """Print what `rollpacker fuzz` takes."""
    from rollpacker.cli.help import show_fuzz_help

    show_fuzz_help()


def _parse(words: tuple[str, ...]) -> dict[str, str]:
    found = dict(DEFAULTS)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in DEFAULTS or not equals or not value:
            raise ConfigError(
                f"`rollpacker fuzz` was given {word}.",
                f"It takes {', '.join(f'{each}=...' for each in DEFAULTS)}.",
                "For example: rollpacker fuzz seeds=0:10000 jobs=2",
            )
        found[name] = value
    return found


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    if first.isdecimal() and ((end.isdecimal() and int(first) < int(end)) if colon else True):
        return range(int(first), int(end) if colon else int(first) + 1)
    raise ConfigError(
        f"seeds={text}.",
        "It is one number from 0, or FIRST:END with FIRST below END; END itself is not run.",
        "For example: seeds=0:10000",
    )


def _jobs(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ConfigError(f"jobs={text}.", "It is the number of processes, at least 1.", "For example: jobs=2")


def _run_worlds(console: Console, tally: Tally, seeds: range, num_jobs: int) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from rollpacker.fuzz.campaign import outcomes

    began_s = told_s = time.monotonic()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("worlds, {task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("no violation", total=len(seeds))
        for outcome in outcomes(seeds, num_jobs):
            tally.add(outcome)
            found = f"{len(tally.failures)} violations" if tally.failures else "no violation"
            progress.update(bar, advance=1, description=found)
            now_s = time.monotonic()
            if not console.is_terminal and now_s - told_s >= _SECONDS_PER_LINE:
                told_s = now_s
                left_s = (now_s - began_s) / tally.num_worlds * (len(seeds) - tally.num_worlds)
                console.print(f"{tally.num_worlds:,} of {len(seeds):,} worlds, {found}, {left_s:.0f} s left")


def _show(console: Console, tally: Tally) -> None:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.happened.items())) or "none"
    console.print(
        f"{tally.num_worlds:,} worlds, {tally.num_events:,} events, {tally.num_steps:,} steps in "
        f"{tally.num_attempts:,} attempts."
    )
    console.print(f"Faults: {sum(tally.happened.values()):,}: {kinds}.")
    console.print(f"Violations: {len(tally.failures)}.")


def _save(console: Console, tally: Tally, out: Path) -> list[Path]:
    """Shrink the first failure of each rule and save it."""
    from rollpacker.fuzz.shrink import shrink, violation_of

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
