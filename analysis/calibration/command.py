"""`rollpacker calibrate`: fits the modelled cluster to the paper's numbers, and writes a hardware file."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from rollpacker.cli.arguments import OVERWRITE, Arguments, is_overwriting
from rollpacker.cli.command_help import CommandHelp
from rollpacker.cli.settings import parse_settings, whole_number
from rollpacker.core.errors import ConfigError

DEFAULTS = {"reference": "", "rounds": "2", "jobs": "1", "out": "", "overwrite": ""}


HELP = CommandHelp(
    purpose=(
        "Fit eight parameters of the paper's H800 nodes to its numbers of the 7B and 14B models, by modelled runs of "
        "its setups, and write a hardware file with these parameters and every row's residual. Everything else in the "
        "paper is left to be predicted. Takes about ten minutes on two cores."
    ),
    usage="out=FILE [overwrite=true] [reference=DIR] [rounds=N] [jobs=N]",
    arguments=(
        (
            "out",
            (
                "The hardware file to write. Of DIR/hardware/NAME.yaml a run takes it by "
                "hydra.searchpath=[file://DIR] hardware=NAME, where NAME is no option of this package"
            ),
        ),
        OVERWRITE,
        ("reference", "The paper's numbers as CSV files. Default: those that are installed"),
        ("rounds", "Rounds of the fit; 0 compares the starting values. Default: 2"),
        ("jobs", "Processes that model runs. Default: 1"),
    ),
    examples=("mkdir hardware\nrollpacker calibrate out=hardware/fitted.yaml jobs=2",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What was asked for."""

    reference: Path | None
    """None: the numbers that are installed."""
    num_rounds: int
    num_jobs: int
    out: Path
    can_replace: bool
    """Whether `out` may exist."""


def run(arguments: Arguments) -> None:
    """Validate the arguments, fit, show, and write."""
    question = _parse(arguments.words)

    from rollpacker.config.roots import conf_dir
    from rollpacker.metrics.outputs import check_output

    check_output(question.out, can_replace=question.can_replace)
    if not question.out.parent.is_dir():
        raise ConfigError(
            f"out={question.out}: there is no folder {question.out.parent}.",
            "The file is written into a folder that exists.",
            "Create the folder, or choose another path.",
        )

    from rollpacker.analysis.calibration import campaign, report
    from rollpacker.analysis.calibration.reference import read_reference
    from rollpacker.analysis.numbers import PAPER
    from rollpacker.analysis.processes import end_like_ctrl_c, open_processes
    from rollpacker.cli.screen import output, plan_progress

    rows = read_reference(question.reference or PAPER)
    end_like_ctrl_c()
    with (
        plan_progress(campaign.num_runs(rows, question.num_rounds), question.num_jobs) as progress,
        open_processes(question.num_jobs) as processes,
    ):
        values, compared = campaign.calibrate(rows, question.num_rounds, processes, progress)
    date = dt.datetime.now(tz=dt.UTC).date().isoformat()
    origin = f"on {date} by `rollpacker calibrate {' '.join(arguments.words)}`"
    base = conf_dir() / "hardware" / f"{campaign.HARDWARE}.yaml"
    report.write_hardware(question.out, base.read_text(encoding="utf-8"), values, compared, origin=origin)

    console = output(beside=question.out)
    for line in report.table(compared):
        console.print(line, soft_wrap=True)
    console.print(report.summary(compared))
    console.print(", ".join(f"{key} {value:g}" for key, value in values.items()))
    console.print(f"written: {question.out}   ({report.how_to_take(question.out)})", soft_wrap=True)


def _parse(words: tuple[str, ...]) -> _Question:
    names, settings = parse_settings("calibrate", words, DEFAULTS, example="out=fitted.yaml jobs=2")
    if names:
        raise ConfigError(
            f"`rollpacker calibrate` was given {names[0]}.",
            f"It takes {', '.join(f'{each}=...' for each in DEFAULTS)}.",
            "For example: rollpacker calibrate out=fitted.yaml jobs=2",
        )
    if not settings["out"]:
        raise ConfigError(
            "`out` is not set.",
            "It names the hardware file to write.",
            "Add out=hardware/fitted.yaml.",
        )
    out = Path(settings["out"])
    if out.suffix != ".yaml":
        raise ConfigError(f"out={out} does not end in .yaml.", "A hardware option is a YAML file.", "Rename it.")
    return _Question(
        reference=Path(settings["reference"]) if settings["reference"] else None,
        num_rounds=whole_number(settings, "rounds", least=0),
        num_jobs=whole_number(settings, "jobs"),
        out=out,
        can_replace=is_overwriting(settings),
    )
