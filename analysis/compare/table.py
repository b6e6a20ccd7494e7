"""The comparison as a table: a row per quantity, a column per setting, the baseline first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from rollpacker.analysis.compare.columns import Column
from rollpacker.analysis.compare.numbers import Estimate, Row
from rollpacker.analysis.compare.scores import Scores
from rollpacker.config.words import counted

_BESIDE: Final = 3
"""Characters that rich draws beside a cell."""
_HEAD_WIDTH: Final = 18
"""Characters of a line in a column's head, where it can be broken: no wider than a number with its error."""


def tables_of(columns: Sequence[Column], rows: Sequence[Row], num_steps: int, width: int) -> Iterator[Table]:
    """Lay out rows over so many steps in as few tables as fit into a width, in characters; the first has the title.

    A column's head has the number of its runs, where any has several. A table leaves out what none of its columns has.
    """
    has_several = any(len(column.runs) > 1 for column in columns)
    cells = [[_head(column, columns, has_several=has_several)] for column in columns]
    for row in rows:
        for column, value in zip(cells, row.values, strict=True):
            column.append(_said(row, value))
    widths = [max(len(line) for cell in column for line in cell.splitlines()) + _BESIDE for column in cells]
    titles = ["", *(row.title for row in rows)]
    room = width - max(map(len, titles)) - _BESIDE - 1
    title: str | None = f"{counted(num_steps, 'step')}, {origin_of(columns)}; means per step"
    while cells:
        num_shown = max(1, sum(total <= room for total in itertools.accumulate(widths)))
        table = Table(title=title, title_style="bold", title_justify="left")
        for at, column in enumerate([titles, *cells[:num_shown]]):
            table.add_column(Text(column[0]), justify="right" if at else "left")
        for line in zip(*(column[1:] for column in [titles, *cells[:num_shown]]), strict=True):
            if any(line[1:]):
                table.add_row(*line)
        yield table
        cells, widths, title = cells[num_shown:], widths[num_shown:], None


def _head(column: Column, columns: Sequence[Column], *, has_several: bool) -> str:
    lines = [line for part in column.label(column.system).split(", ") for line in _folded(part)]
    notes = [counted(len(column.runs), "run")] if has_several else []
    notes += [origin_of([column])] if is_mixed(columns) else []
    return "\n".join([*lines, *notes])


def _folded(text: str) -> Iterator[str]:
    """Break a key with its value, or a path, into short lines."""
    line = ""
    for piece in re.findall(r"[^=/]+[=/]?|[=/]", text):
        if line and len(line + piece) > _HEAD_WIDTH:
            yield line
            line = ""
        line += piece
    yield line


def is_mixed(columns: Sequence[Column]) -> bool:
    """Whether some were measured and others modelled."""
    return len({column.is_modelled for column in columns}) > 1


def origin_of(columns: Sequence[Column]) -> str:
    """Where the numbers come from."""
    kinds = {"modelled" if column.is_modelled else "measured" for column in columns}
    return " and ".join(sorted(kinds))


def error_said(columns: Sequence[Column], scores: Scores) -> str:
    """What the standard errors are over; empty where nothing has one."""
    over = ["over seeds"] if any(len(column.runs) > 1 for column in columns) else []
    single = [own[0] for column in columns if len(own := scores.of(column.runs)) == 1]
    if any(own["se_over_prompts"].notna().to_numpy().any() for own in single):
        over.append("over the held-out prompts")
    return "standard error " + "; of a single run, ".join(over) if over else ""


def _said(row: Row, estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    said = f"{estimate.value:{'+' if row.is_signed else ''}.{row.num_digits}f}"
    if estimate.error is not None:
        said += f" +- {estimate.error:.{row.num_digits}f}"
    return f"{said} {row.unit}".rstrip()
