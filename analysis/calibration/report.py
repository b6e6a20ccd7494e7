"""The hardware file that a calibration writes: data sheet, fitted parameters, and how far off each row is.

Invariant: what was fitted and what was given stand apart, and every row of the reference has its line, whether it fits
or not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from rollpacker.analysis.calibration.reference import Row
from rollpacker.config.chosen_options import FITTED_FROM
from rollpacker.config.roots import conf_dir
from rollpacker.metrics.outputs import open_output

FITTED_TO = "what the paper reports of its 7B and 14B runs"

GOOD_WITHIN = 0.1


class Compared(NamedTuple):
    """A row of the reference and what the model says."""

    row: Row
    predicted: float

    @property
    def error(self) -> float:
        """Relative to the paper's number."""
        return self.predicted / self.row.value - 1

    @property
    def is_good(self) -> bool:
        return abs(self.error) <= GOOD_WITHIN


def write_hardware(
    out: Path, base: str, values: Mapping[str, float], compared: Sequence[Compared], *, origin: str
) -> None:
    """Write a hardware file named after its option; `fitted_to` of one outside the package ends with the file's name.

    Args:
        out: The file.
        base: The text of the one that the data sheet's values are taken from.
        values: The fitted parameters.
        compared: Every row of the reference.
        origin: When and how they were fitted.
    """
    name = yaml.safe_dump({"name": out.stem}).rstrip()
    fitted_to = FITTED_TO if _is_packaged(out) else f"{FITTED_TO}, in {out.name}"
    given = re.sub("(?m)^name: .*", lambda _: name, base.partition(FITTED_FROM)[0].rstrip())
    lines = [
        given,
        f"{FITTED_FROM} {origin}",
        f"# to {FITTED_TO}; the same for all models, systems and exhibits. All else is prediction.",
        yaml.safe_dump({"fitted_to": fitted_to}, width=math.inf).rstrip(),
        *(f"{key}: {value:g}" for key, value in values.items()),
        "#",
        f"# {summary(compared)}",
        "#",
        *(f"# {line}".rstrip() for line in table(compared)),
    ]
    with open_output(out) as file:
        file.write(("\n".join(lines) + "\n").encode())


def how_to_take(out: Path) -> str:
    """Say by which words a run takes the file; an option of this package hides one of the same name."""
    folder = out.absolute().parent
    if _is_packaged(out):
        return f"a run takes it by hardware={out.stem}"
    name = "NAME" if (conf_dir() / "hardware" / f"{out.stem}.yaml").exists() else out.stem
    if folder.name == "hardware" and name == out.stem:
        return f"a run takes it by hydra.searchpath=[file://{folder.parent}] hardware={name}"
    return f"as DIR/hardware/{name}.yaml a run takes it by hydra.searchpath=[file://DIR] hardware={name}"


def _is_packaged(out: Path) -> bool:
    return out.absolute().parent == conf_dir() / "hardware"


def summary(compared: Sequence[Compared]) -> str:
    """One sentence about the rows that count in the fit."""
    fitted = [each for each in compared if each.row.weight]
    num_good = sum(each.is_good for each in fitted)
    return (
        f"{num_good} of {len(fitted)} fitted rows are within {GOOD_WITHIN:.0%} of the paper; "
        f"half of them are within {_median([abs(each.error) for each in fitted]):.0%}."
    )


def table(compared: Sequence[Compared]) -> list[str]:
    """A line per row: seconds, shares of a step, or speedups over veRL."""
    names = f"{'exhibit':8} {'model':6} {'system':20} {'task':5} {'rounds':6} {'quantity':14}"
    return [f"{names} {'paper':>7} {'modelled':>8} {'error':>6}", *(_line(each) for each in compared)]


def _line(compared: Compared) -> str:
    row = compared.row
    names = f"{row.exhibit:8} {row.model:6} {row.system:20} {row.task:5} {row.kind:6} {row.quantity:14}"
    remark = "" if row.weight else "  not fitted"
    return f"{names} {row.value:7.4g} {compared.predicted:8.4g} {compared.error:+6.0%}{remark}"


def _median(numbers: Sequence[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]
