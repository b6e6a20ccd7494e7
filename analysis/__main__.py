"""One command for the paper's tables and figures.

    python -m analysis list                                   what there is
    python -m analysis table2 --backend sim                   models the runs that are missing, then draws
    python -m analysis table2 --runs runs/e2e                 draws from runs of yours, real or modelled
    python -m analysis all --backend sim --out out            everything, with a page that shows it
    python -m analysis e2e_performance --scale 8gpus          an experiment of the artifact, on one node
    python -m analysis e2e_performance --scale tiny --backend ray    the same for real, on this machine
    python -m analysis verdicts --backend sim                 every claim of the paper, and how far it is borne out

Runs on a cluster are brought by the same words: `rollpacker train -m experiment=e2e_performance setup=8gpus
hydra/launcher=slurm cluster=h800 ...`. Modelled numbers are marked as such wherever they appear.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from analysis.bringing import bring
from analysis.exhibit import ALL_SETUPS, TINY_SETUPS
from analysis.exhibits import ARTIFACT, EXHIBITS
from analysis.numbers import Standing
from analysis.runs import PAPER_SETUP, Runs, find_runs, read_runs
from analysis.verdicts import accept, lost_claims
from analysis.writing import write_exhibit, write_page
from rollpacker.core.errors import EXIT_INTERRUPTED, ConfigError, RollpackerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from analysis.exhibit import Exhibit
    from analysis.numbers import Numbers

SCALES = tuple(dict.fromkeys((*ALL_SETUPS, *TINY_SETUPS)))

MARKS = {
    Standing.REPRODUCED: "[green]reproduced[/]",
    Standing.DIRECTION: "[yellow]direction only[/]",
    Standing.NOT: "[red]not reproduced[/]",
    Standing.UNKNOWN: "[dim]no runs[/]",
}

_FILE_WIDTH = 150
"""Characters of a line where no terminal says how many there are."""


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
    parser.add_argument("what", help="list, all, verdicts, an exhibit, or an experiment of the artifact")
    parser.add_argument(
        "--backend",
        choices=["sim", "ray"],
        help="bring missing runs first: modelled, or real ones of this machine",
    )
    parser.add_argument(
        "--scale", choices=SCALES, metavar="|".join(SCALES), help="size of the runs, as conf/setup has it"
    )
    parser.add_argument("--runs", type=Path, metavar="DIR", help="where the runs are (default: OUT/runs)")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where files go (default: out)")
    parser.add_argument("--seeds", type=_count, default=2, metavar="N", help="of each run (default: 2)")
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
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
    if chosen.what == "list":
        console.print(_listing())
        return 0
    exhibits = _of_scale(_exhibits_named(chosen.what), chosen.scale, chosen.what)
    folder = chosen.runs or chosen.out / "runs"
    has_failed = False
    if chosen.backend:
        failures = bring(
            exhibits,
            folder,
            backend=chosen.backend,
            scale=chosen.scale,
            num_seeds=chosen.seeds,
            num_jobs=chosen.jobs,
            console=Console(stderr=True, highlight=False),
        )
        has_failed = bool(failures)
        for failure in failures:
            _note(failure)
    numbers = _gather(exhibits, folder, chosen.scale)
    if chosen.what == "verdicts":
        return _judge(numbers, console, must_accept=chosen.accept) or int(has_failed)
    out = chosen.out if chosen.scale in {None, PAPER_SETUP} else chosen.out / chosen.scale
    for exhibit in exhibits:
        paths = write_exhibit(exhibit, numbers[exhibit.name], out)
        console.print(f"[bold]{exhibit.title}[/]\n  {'  '.join(map(str, paths))}", soft_wrap=True)
    if len(exhibits) > 1:
        page = write_page({exhibit: numbers[exhibit.name] for exhibit in exhibits}, out)
        console.print(f"[bold]All of it[/]\n  {page}", soft_wrap=True)
    if any(of_exhibit.claims for of_exhibit in numbers.values()):
        console.print(_verdicts(numbers))
    return int(has_failed)


def _gather(exhibits: Sequence[Exhibit], folder: Path, scale: str | None) -> dict[str, Numbers]:
    """Compute the numbers of every exhibit; what is missing is said, and the rest is computed."""
    runs, problems = read_runs(list(find_runs(folder)))
    if not runs:
        raise ConfigError(
            f"There is no run with a finished step below {folder}.",
            "An exhibit is drawn from runs, by `--runs DIR`, or from modelled ones.",
            "Model them: add --backend sim.",
        )
    numbers = {exhibit.name: exhibit.gather(Runs(runs=runs, setup=scale or exhibit.setups[0])) for exhibit in exhibits}
    missing = [f"{name}: {sentence}" for name, of_exhibit in numbers.items() for sentence in of_exhibit.missing]
    for sentence in [*problems, *missing]:
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
    if name in ARTIFACT:
        return [EXHIBITS[exhibit] for exhibit in ARTIFACT[name]]
    if name in EXHIBITS:
        return [EXHIBITS[name]]
    nearest = difflib.get_close_matches(name, [*EXHIBITS, *ARTIFACT, "all", "list", "verdicts"], n=1)
    raise ConfigError(
        f"There is no exhibit {name!r}.",
        f"Exhibits are {', '.join(EXHIBITS)}; experiments of the artifact {', '.join(ARTIFACT)}; "
        "further words are list, all and verdicts.",
        f"Did you mean {nearest[0]}?" if nearest else "`python -m analysis list` describes them.",
    )


def _of_scale(exhibits: Sequence[Exhibit], scale: str | None, what: str) -> list[Exhibit]:
    """Leave out the exhibits that are not drawn at a scale; refuses when none is left."""
    found = [exhibit for exhibit in exhibits if scale is None or scale in exhibit.setups]
    if not found:
        scales = dict.fromkeys(setup for exhibit in exhibits for setup in exhibit.setups)
        raise ConfigError(
            f"{what} is not drawn at --scale {scale}.",
            f"Its scales are {', '.join(scales)}.",
            f"Write --scale {next(iter(scales))}, or leave it out.",
        )
    return found


def _listing() -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("name", "what it shows", "experiments that it needs", "scales"):
        table.add_column(title)
    for exhibit in EXHIBITS.values():
        table.add_row(exhibit.name, exhibit.title, ", ".join(exhibit.experiments), ", ".join(exhibit.setups))
    for name, drawn in ARTIFACT.items():
        table.add_row(name, f"the artifact's experiment: {', '.join(drawn)}", "", "")
    return table


def _verdicts(numbers: Mapping[str, Numbers]) -> Table:
    table = Table(box=None, pad_edge=False, title="What the paper says, and what the runs say", title_justify="left")
    for title in ("exhibit", "claim", "paper", "ours", ""):
        table.add_column(title)
    for name, of_exhibit in numbers.items():
        for claim in of_exhibit.claims:
            table.add_row(name, claim.text, claim.paper_said, claim.ours_said, MARKS[claim.standing])
    return table


def _note(text: str) -> None:
    Console(stderr=True, highlight=False).print(text, style="dim", soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())
