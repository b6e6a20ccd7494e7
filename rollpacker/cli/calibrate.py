"""`rollpacker calibrate`: fits the modelled cluster to the paper's numbers, and writes a hardware file."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from rollpacker.cli.arguments import Arguments

DEFAULTS = {"reference": "analysis/paper", "hardware": "h800", "rounds": "2", "jobs": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What was asked for."""

    reference: Path
    hardware: str
    num_rounds: int
    num_jobs: int
    out: Path


def run(arguments: Arguments) -> None:
    """Judge everything, fit, show, and write."""
    question = _parse(arguments.words)

    from rollpacker.calibration.reference import read_reference
    from rollpacker.config.roots import conf_dir

    rows = read_reference(question.reference)
    base = conf_dir() / "hardware" / f"{question.hardware}.yaml"
    if not base.is_file():
        options = ", ".join(sorted(file.stem for file in base.parent.glob("*.yaml")))
        raise ConfigError(f"hardware={question.hardware} is no option.", f"There are {options}.", "Choose one of them.")
    if not question.out.parent.is_dir():
        raise ConfigError(
            f"out={question.out}: there is no folder {question.out.parent}.",
            "The file is written into a folder that exists.",
            "Create the folder, or choose another path.",
        )

    from rollpacker.calibration import campaign, report
    from rollpacker.cli.screen import output, plan_progress

    with (
        plan_progress(campaign.num_runs(rows, question.num_rounds), question.num_jobs) as progress,
        campaign.open_campaign(rows, question.hardware, question.num_jobs, progress) as opened,
    ):
        values, compared = opened.fit(question.num_rounds)
    date = dt.datetime.now(tz=dt.UTC).date().isoformat()
    origin = f"on {date} by `rollpacker calibrate {' '.join(arguments.words)}`"
    report.write_hardware(question.out, base.read_text(encoding="utf-8"), values, compared, origin=origin)

    console = output()
    for line in report.table(compared):
        console.print(line, markup=False, soft_wrap=True)
    console.print(report.summary(compared))
    console.print(", ".join(f"{key} {value:g}" for key, value in values.items()))
    console.print(f"written: {question.out}", soft_wrap=True)


def show_help() -> None:
    """Print what `rollpacker calibrate` takes."""
    from rollpacker.cli.help import show_calibrate_help

    show_calibrate_help()


def _parse(words: tuple[str, ...]) -> _Question:
    found = dict(DEFAULTS)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in {*DEFAULTS, "out"} or not equals or not value:
            raise ConfigError(
                f"`rollpacker calibrate` was given {word}.",
                f"It takes {', '.join(f'{each}=...' for each in (*DEFAULTS, 'out'))}.",
                "For example: rollpacker calibrate out=h800.yaml jobs=2",
            )
        found[name] = value
    if "out" not in found:
        raise ConfigError(
            "`out` is not set.",
            "It names the hardware file to write.",
            "Add out=h800.yaml, or conf/hardware/h800.yaml.",
        )
    for name in ("rounds", "jobs"):
        if not found[name].isdecimal() or int(found[name]) < (name == "jobs"):
            raise ConfigError(
                f"{name}={found[name]}.",
                f"It is a whole number{', at least 1' if name == 'jobs' else ''}.",
                f"For example: {name}=2",
            )
    return _Question(
        reference=Path(found["reference"]),
        hardware=found["hardware"],
        num_rounds=int(found["rounds"]),
        num_jobs=int(found["jobs"]),
        out=Path(found["out"]),
    )
