"""`rollpacker analysis`: draws the paper's tables and figures, and models the runs that are missing."""

from __future__ import annotations

import difflib
import itertools
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rollpacker.analysis.compare import command as compare
from rollpacker.analysis.exhibit import ALL_SETUPS, TINY_SETUPS
from rollpacker.analysis.exhibits import ARTIFACT, EXHIBITS
from rollpacker.analysis.missing_runs import make_missing_runs
from rollpacker.analysis.numbers import Source, Standing
from rollpacker.analysis.processes import end_like_ctrl_c
from rollpacker.analysis.runs import PAPER_SETUP, Runs, find_runs, read_runs
from rollpacker.analysis.verdicts import accept, lost_claims, unchecked_claims
from rollpacker.analysis.writing import write_exhibit, write_page
from rollpacker.cli.command_help import CommandHelp
from rollpacker.cli.settings import choice, parse_settings, whole_number
from rollpacker.config.words import counted
from rollpacker.core.errors import ConfigError, WorldError
from rollpacker.runtime.run.folder_checks import check_folder
from rollpacker.runtime.run.streams import keep_writing
from rollpacker.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollpacker.analysis.exhibit import Exhibit
    from rollpacker.analysis.numbers import Numbers
    from rollpacker.analysis.runs import Run
    from rollpacker.cli.arguments import Arguments

SCALES = tuple(dict.fromkeys((*ALL_SETUPS, *TINY_SETUPS)))

HELP = CommandHelp(
    purpose="Draw the paper's tables and figures from runs, and compare every number with the paper's. Runs of a "
    "cluster are made by `rollpacker train -m experiment=...`; modelled numbers are marked wherever they appear.",
    usage="NAME [key=value] ...",
    arguments=(
        (
            "NAME",
            (
                "An exhibit such as table2, an experiment of the artifact such as e2e_performance, all, or: "
                "list (what there is), verdicts (every claim of the paper, and how far it is borne out), "
                "compare RUN ... (any runs, or folders of them, as a multirun makes: table and figure of their times "
                "and scores, with errors over run.seed; the first is the baseline)."
            ),
        ),
        (
            "backend",
            "sim models missing runs, and draws modelled before measured ones; ray trains them here. Default: none",
        ),
        ("scale", f"Size of the runs, as conf/setup has it: {', '.join(SCALES)}. Default: the exhibit's own"),
        ("runs", "The folder that the runs are below. Default: OUT/runs"),
        (
            "out",
            "The folder for tables, figures and their page; those of the same names in it are replaced. Default: out",
        ),
        ("seeds", "With a backend: of each run. Default: 2"),
        ("jobs", "With backend=sim: runs that are modelled at a time. Default: one per core"),
        ("accept", "With verdicts: true records what holds now. Default: false"),
    ),
    examples=(
        "rollpacker analysis table2 backend=sim",
        "rollpacker analysis table2 runs=runs/e2e",
        "rollpacker analysis e2e_performance scale=tiny backend=ray",
        "rollpacker analysis verdicts backend=sim",
        "rollpacker analysis compare runs/2026-11-29_18-00-00",
    ),
)

MARKS = {
    Standing.REPRODUCED: Text("reproduced", "green"),
    Standing.DIRECTION: Text("direction only", "yellow"),
    Standing.NOT: Text("not reproduced", "red"),
    Standing.UNKNOWN: Text("no runs", "dim"),
}

_FILE_WIDTH = 150
"""Characters of a line where no terminal says how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is drawn, and from which runs."""

    what: str
    backend: str | None
    """None makes no missing run."""
    scale: str | None
    """None takes each exhibit's own."""
    runs: Path
    out: Path
    num_seeds: int
    num_jobs: int
    must_accept: bool


def run(arguments: Arguments) -> None:
    """List, draw, or compare with the record of the claims."""
    words, defaults = arguments.words, _defaults()
    if "compare" in words:
        out_alone = {"out": defaults["out"]}
        names, settings = parse_settings("analysis compare", words, out_alone, example="runs/verl runs/rollpacker")
    else:
        names, found = parse_settings("analysis", words, dict.fromkeys(defaults, ""), example="table2 backend=sim")
        given = {name: value for name, value in found.items() if value}
        if names:
            _refuse_idle(names, given)
        settings = defaults | given
    match names:
        case ["list"]:
            Terminal().print(_listing())
        case ["compare", *folders]:
            out = Path(settings["out"])
            check_folder("out", out)
            compare.show(tuple(map(Path, folders)), out)
        case [what]:
            end_like_ctrl_c()
            _answer(_parse(what, settings))
        case _:
            if names and names[0] not in {"list", "compare"}:
                _exhibits_named(names[0])  # says which name is near
            raise ConfigError(
                f"`rollpacker analysis` was given {' '.join(names) or 'no name'}.",
                "It takes one of list, all, verdicts, compare, an exhibit, or an experiment of the artifact.",
                "`rollpacker analysis list` describes them.",
            )


def _defaults() -> dict[str, str]:
    num_cores = len(os.sched_getaffinity(0))
    defaults = {"backend": "", "scale": "", "runs": "", "out": "out", "seeds": "2", "jobs": str(num_cores)}
    return {**defaults, "accept": "false"}


def _refuse_idle(names: Sequence[str], given: Mapping[str, str]) -> None:
    """Refuse settings that would do nothing."""
    backend = given.get("backend", "").lower()
    has_use = {"accept": names == ["verdicts"], "seeds": bool(backend), "jobs": backend == "sim"}
    idle = [f"{name}={value}" for name, value in given.items() if names == ["list"] or not has_use.get(name, True)]
    if idle:
        raise ConfigError(
            f"{' and '.join(idle)} would do nothing in `rollpacker analysis {' '.join(names)}`.",
            "accept belongs to verdicts, seeds to a backend, jobs to backend=sim; list takes no setting.",
            "Leave it out, or add what it belongs to.",
        )


def _parse(what: str, settings: Mapping[str, str]) -> _Question:
    out = Path(settings["out"])
    return _Question(
        what=what,
        backend=choice(settings, "backend", ("", "sim", "ray")) or None,
        scale=choice(settings, "scale", ("", *SCALES)) or None,
        runs=Path(settings["runs"]) if settings["runs"] else out / "runs",
        out=out,
        num_seeds=whole_number(settings, "seeds"),
        num_jobs=whole_number(settings, "jobs"),
        must_accept=choice(settings, "accept", ("true", "false")) == "true",
    )


def _console() -> Terminal:
    return Terminal(width=None if sys.stdout.isatty() else _FILE_WIDTH)


def _answer(question: _Question) -> None:
    """Make what is missing, draw what there is, and end with an error when a run failed or a claim is lost."""
    keep_writing("stdout", is_result=True)  # without a reader all is drawn, and lost claims decide the exit code
    console = _console()
    exhibits = _of_scale(_exhibits_named(question.what), question.scale, question.what)
    if question.what != "verdicts":  # which are only shown
        check_folder("out", question.out)
    if question.backend:
        check_folder("runs", question.runs)
    failures: dict[str, list[str]] = {}
    if question.backend:
        failures = make_missing_runs(
            exhibits,
            question.runs,
            backend=question.backend,
            scale=question.scale,
            num_seeds=question.num_seeds,
            num_jobs=question.num_jobs,
            console=Terminal(stderr=True),
        )
    for failure in _sentences(failures):
        _note(failure)
    numbers = _gather(exhibits, question, failures)
    if question.what == "verdicts":
        _compare_claims(numbers, question, console, has_failed=bool(failures))
    else:
        _draw(exhibits, numbers, question, console)
    if failures:
        raise _failed(failures)


def _sentences(failures: Mapping[str, Sequence[str]]) -> list[str]:
    """One for each run that failed, though several experiments need it."""
    return list(dict.fromkeys(itertools.chain.from_iterable(failures.values())))


def _failed(failures: Mapping[str, Sequence[str]]) -> WorldError:
    return WorldError(
        f"{counted(len(_sentences(failures)), 'run')} failed, and what needs a failed run is incomplete.",
        "The lines above say which, and why.",
        "Give the same command again: finished runs are kept.",
    )


def _draw(exhibits: Sequence[Exhibit], numbers: Mapping[str, Numbers], question: _Question, console: Terminal) -> None:
    out = question.out if question.scale in {None, PAPER_SETUP} else question.out / str(question.scale)
    for exhibit in exhibits:
        paths = write_exhibit(exhibit, numbers[exhibit.name], out)
        console.print(_titled(exhibit.title, *paths), soft_wrap=True)
    page = write_page(EXHIBITS.values(), out)
    console.print(_titled("All that is in this folder", page), soft_wrap=True)
    if any(of_exhibit.claims for of_exhibit in numbers.values()):
        console.print(_verdicts(numbers))


def _titled(title: str, *paths: Path) -> Text:
    return Text.assemble((title, "bold"), f"\n  {'  '.join(map(str, paths))}")


def _gather(
    exhibits: Sequence[Exhibit], question: _Question, failures: Mapping[str, Sequence[str]]
) -> dict[str, Numbers]:
    """Compute the numbers of every exhibit; what is missing or failed is said, and the rest is computed."""
    folder, scale = question.runs, question.scale
    runs, problems = read_runs(list(find_runs(folder)))
    if not runs and failures:
        raise _failed(failures)
    if not runs:
        raise ConfigError(
            f"There is no run with a finished step below {folder}.",
            "An exhibit is drawn from runs, by runs=DIR, or from modelled ones.",
            "Model them: add backend=sim.",
        )
    numbers: dict[str, Numbers] = {}
    kinds, kept = _kinds(runs, question)
    problems += kept
    for exhibit in exhibits:
        failed = [" ".join(text.split()) for name in exhibit.experiments for text in failures.get(name, ())]
        own, left_out = _of_first_kind(exhibit, kinds, scale or exhibit.setups[0])
        numbers[exhibit.name] = replace(own, missing=(*own.missing, *failed))
        problems += left_out
    missing = [f"{name}: {sentence}" for name, of_exhibit in numbers.items() for sentence in of_exhibit.missing]
    for sentence in [*dict.fromkeys(problems), *missing]:
        _note(sentence)
    if question.what != "verdicts" and not failures and not any(map(_has_own, numbers.values())):
        raise _of_no_exhibit(exhibits, kinds, folder)
    return numbers


def _kinds(runs: Sequence[Run], question: _Question) -> tuple[list[list[Run]], list[str]]:
    """Sort the runs into the measured and the modelled, the ones to be drawn first; also gives what to say of it."""
    measured = [run for run in runs if not run.is_modelled]
    modelled = [run for run in runs if run.is_modelled]
    if not (measured and modelled):
        return [measured or modelled], []
    kinds, first, second, advice = [measured, modelled], "measured", "modelled", ""
    if question.backend == "sim":
        kinds, first, second = [modelled, measured], "modelled", "measured"
        advice = "; without backend=sim the measured come first"
    said = f"Of the runs below {question.runs} {len(measured)} were measured and {len(modelled)} modelled"
    shown = f"it shows the {first}, or where these give it no number the {second}"
    return kinds, [f"{said}. No exhibit mixes them: {shown}{advice}."]


def _of_first_kind(exhibit: Exhibit, kinds: Sequence[Sequence[Run]], setup: str) -> tuple[Numbers, list[str]]:
    """Compute an exhibit from the first kind of runs that give it a number.

    Also gives a sentence for each run that was left out, and for each table of a kind without a number that cannot be
    read.
    """
    told: list[str] = []
    for runs in kinds:
        drawn_from = Runs(runs=runs, setup=setup)
        numbers = exhibit.numbers(drawn_from)
        told += drawn_from.left_out
        if _has_own(numbers) or runs is kinds[-1]:
            break
        told += [sentence for run in runs for sentence in run.unread]
    return numbers, told


def _has_own(numbers: Numbers) -> bool:
    """Whether any number is not the paper's."""
    return any(point.source is not Source.PAPER for point in numbers.points)


def _of_no_exhibit(exhibits: Sequence[Exhibit], kinds: Sequence[Sequence[Run]], folder: Path) -> ConfigError:
    """Make the error of exhibits that are drawn from none of these runs, or only at another scale."""
    names = " or ".join(exhibit.name for exhibit in exhibits)
    scales = dict.fromkeys(
        setup for exhibit in exhibits for setup in exhibit.setups if _has_own(_of_first_kind(exhibit, kinds, setup)[0])
    )
    if scales:
        return ConfigError(
            f"None of the runs below {folder} is of {names} at this scale.",
            f"They are of scale={' or '.join(scales)}.",
            f"Write scale={next(iter(scales))}.",
        )
    return ConfigError(
        f"None of the runs below {folder} is of {names}.",
        "An exhibit is drawn from the runs of its experiments, which `rollpacker analysis list` names.",
        "Model them: add backend=sim. Runs of your own are compared by `rollpacker analysis compare RUN RUN`.",
    )


def _compare_claims(
    numbers: Mapping[str, Numbers], question: _Question, console: Terminal, *, has_failed: bool
) -> None:
    """Fail if a claim is lost; where every run was modelled, one without a run is, too."""
    if not any(of_exhibit.claims for of_exhibit in numbers.values()):
        console.print(f"No claim is about runs of scale={question.scale}: there is nothing to compare.")
        return
    console.print(_verdicts(numbers))
    if question.must_accept and not has_failed:
        accept(numbers)
        return
    lost = lost_claims(numbers)
    unchecked = unchecked_claims(numbers) if question.scale in {None, PAPER_SETUP} else []  # else none is recorded
    is_modelled = question.backend == "sim"
    if is_modelled and not has_failed:
        lost += unchecked
    elif unchecked:
        said = f"no run here for {counted(len(unchecked), 'claim')} that stood in the record"
        advice = "" if is_modelled else "; backend=sim models what is missing"
        console.print(Text.assemble(("incomplete", "yellow"), f" {said}{advice}."), soft_wrap=True)
    for sentence in lost:
        console.print(Text.assemble(("lost", "red"), " ", sentence), soft_wrap=True)
    if lost:
        raise WorldError(
            f"{counted(len(lost), 'claim')} lost against the record.",
            "The record is analysis/verdicts.csv, of modelled runs.",
            "Find the change that lost them; accept=true records what holds now.",
        )


def _exhibits_named(name: str) -> list[Exhibit]:
    if name in {"all", "verdicts"}:
        return list(EXHIBITS.values())
    if name in ARTIFACT:
        return [EXHIBITS[exhibit] for exhibit in ARTIFACT[name]]
    if name in EXHIBITS:
        return [EXHIBITS[name]]
    nearest = difflib.get_close_matches(name, [*EXHIBITS, *ARTIFACT, "all", "list", "verdicts", "compare"], n=1)
    raise ConfigError(
        f"There is no exhibit {name!r}.",
        f"Exhibits are {', '.join(EXHIBITS)}; experiments of the artifact {', '.join(ARTIFACT)}; "
        "further words are list, all, verdicts and compare.",
        f"Did you mean {nearest[0]}?" if nearest else "`rollpacker analysis list` describes them.",
    )


def _of_scale(exhibits: Sequence[Exhibit], scale: str | None, what: str) -> list[Exhibit]:
    """Leave out the exhibits that are not drawn at a scale; refuses when none is left."""
    found = [exhibit for exhibit in exhibits if scale is None or scale in exhibit.setups]
    if not found:
        scales = dict.fromkeys(setup for exhibit in exhibits for setup in exhibit.setups)
        raise ConfigError(
            f"{what} is not drawn at scale={scale}.",
            f"Its scales are {', '.join(scales)}.",
            f"Write scale={next(iter(scales))}, or leave it out.",
        )
    return found


def _listing() -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows, the experiments that it needs, its scales")
    for exhibit in EXHIBITS.values():
        needs = f"needs {', '.join(exhibit.experiments)}; scales {', '.join(exhibit.setups)}"
        table.add_row(exhibit.name, Group(Text(exhibit.title), Text(needs, style="dim")))
    for name, drawn in ARTIFACT.items():
        table.add_row(name, f"the artifact's experiment: {', '.join(drawn)}")
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
    Terminal(stderr=True).print(text, style="dim", soft_wrap=True)
