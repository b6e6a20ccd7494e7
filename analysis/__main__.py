"""One command for the paper's tables and figures.

    python -m analysis list                                   what there is
    python -m analysis table2 --backend sim                   models the runs that are missing, then draws
    python -m analysis table2 --runs runs/e2e                 draws from runs of yours, real or modelled
    python -m analysis all --backend sim --out out            everything, with a page that shows it
    python -m analysis verdicts --backend sim                 every claim of the paper, and how far it is borne out

Modelled numbers are marked as such wherever they appear.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status
from rich.table import Table

from analysis.exhibits import EXHIBITS
from analysis.numbers import Standing
from analysis.runs import Runs, find_runs, read_runs
from analysis.sweeps import model_experiment, words_of
from analysis.verdicts import accept, lost_claims
from analysis.writing import write_exhibit, write_page
from rollpacker.core.errors import EXIT_INTERRUPTED, ConfigError, RollpackerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from analysis.exhibit import Exhibit
    from analysis.numbers import Numbers

MARKS = {
    Standing.REPRODUCED: "[green]reproduced[/]",
    Standing.DIRECTION: "[yellow]direction only[/]",
    Standing.NOT: "[red]not reproduced[/]",
    Standing.UNKNOWN: "[dim]no runs[/]",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry one command out; exits like `rollpacker` does."""
    try:
        return _run(_parser().parse_args(arguments))
    except RollpackerError as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", soft_wrap=True, markup=False)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    lines = (__doc__ or "").strip().splitlines()
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description=lines[0],
        epilog="\n".join(lines[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", help="list, all, verdicts, or the name of an exhibit")
    parser.add_argument("--backend", choices=["sim"], help="model the runs that are missing, first")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="where the runs are (default: OUT/runs)")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where files go (default: out)")
    parser.add_argument("--seeds", type=_count, default=2, metavar="N", help="of each modelled run (default: 2)")
    parser.add_argument("--jobs", type=_count, default=_num_cores(), metavar="N", help="modelled runs at a time")
    parser.add_argument("--accept", action="store_true", help="with verdicts: record what holds now")
    return parser


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def _run(chosen: argparse.Namespace) -> int:
    console = Console(highlight=False)
    if chosen.what == "list":
        console.print(_listing())
        return 0
    exhibits = _exhibits_named(chosen.what)
    folder = chosen.runs or chosen.out / "runs"
    if chosen.backend == "sim":
        _model(exhibits, folder, num_seeds=chosen.seeds, num_jobs=chosen.jobs)
    numbers = _gather(exhibits, folder)
    if chosen.what == "verdicts":
        return _judge(numbers, console, must_accept=chosen.accept)
    for exhibit in exhibits:
        paths = write_exhibit(exhibit, numbers[exhibit.name], chosen.out)
        console.print(f"[bold]{exhibit.title}[/]\n  {'  '.join(map(str, paths))}", soft_wrap=True)
    if len(exhibits) > 1:
        page = write_page({exhibit: numbers[exhibit.name] for exhibit in exhibits}, chosen.out)
        console.print(f"[bold]All of it[/]\n  {page}", soft_wrap=True)
    console.print(_verdicts(numbers))
    return 0


def _gather(exhibits: Sequence[Exhibit], folder: Path) -> dict[str, Numbers]:
    """Compute the numbers of every exhibit; what is missing is said, and the rest is computed."""
    runs, problems = read_runs(list(find_runs(folder)))
    if not runs:
        raise ConfigError(
            f"There is no run with a finished step below {folder}.",
            "An exhibit is drawn from runs, by `--runs DIR`, or from modelled ones.",
            "Model them: add --backend sim.",
        )
    numbers = {exhibit.name: exhibit.gather(Runs(runs=runs)) for exhibit in exhibits}
    missing = [f"{name}: {sentence}" for name, of_exhibit in numbers.items() for sentence in of_exhibit.missing]
    for sentence in [*(f"left out: {problem}" for problem in problems), *missing]:
        _note(sentence)
    return numbers


def _judge(numbers: Mapping[str, Numbers], console: Console, *, must_accept: bool) -> int:
    console.print(_verdicts(numbers))
    if must_accept:
        accept(numbers)
        return 0
    lost = lost_claims(numbers)
    for sentence in lost:
        console.print(f"[red]lost[/] {sentence}", soft_wrap=True)
    return 1 if lost else 0


def _exhibits_named(name: str) -> list[Exhibit]:
    if name in {"all", "verdicts"}:
        return list(EXHIBITS.values())
    if name in EXHIBITS:
        return [EXHIBITS[name]]
    nearest = difflib.get_close_matches(name, [*EXHIBITS, "all", "list", "verdicts"], n=1)
    raise ConfigError(
        f"There is no exhibit {name!r}.",
        f"Exhibits are {', '.join(EXHIBITS)}; further words are list, all and verdicts.",
        f"Did you mean {nearest[0]}?" if nearest else "`python -m analysis list` describes them.",
    )


def _model(exhibits: Sequence[Exhibit], folder: Path, *, num_seeds: int, num_jobs: int) -> None:
    """Run what is missing of every experiment, each once."""
    for experiment in dict.fromkeys(name for exhibit in exhibits for name in exhibit.experiments):
        words = words_of(experiment, folder, num_seeds=num_seeds, num_jobs=num_jobs)
        _note(f"rollpacker train {shlex.join(words)}")
        with Status("modelling ...", console=Console(stderr=True)) as status:
            model_experiment(words, status.update)


def _listing() -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("name", "what it shows", "experiments that it needs"):
        table.add_column(title)
    for exhibit in EXHIBITS.values():
        table.add_row(exhibit.name, exhibit.title, ", ".join(exhibit.experiments))
    return table


def _verdicts(numbers: Mapping[str, Numbers]) -> Table:
    table = Table(box=None, pad_edge=False, title="What the paper says, and what the runs say", title_justify="left")
    for title in ("exhibit", "claim", "paper", "ours", ""):
        table.add_column(title)
    for name, of_exhibit in numbers.items():
        for claim in of_exhibit.claims:
            ours = "" if claim.ours is None else f"{claim.ours.y:.3g} {claim.unit} ({claim.ours.source})"
            table.add_row(name, claim.text, f"{claim.paper:.3g} {claim.unit}", ours, MARKS[claim.standing])
    return table


def _note(text: str) -> None:
    Console(stderr=True, highlight=False).print(text, style="dim", soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())
