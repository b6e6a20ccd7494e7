"""What is written of an exhibit: figure (PNG, PDF), numbers (CSV) and a summary (text); of all that lie there, a page.

Invariant: every file is complete or absent, and every summary says where its numbers come from. The page shows what the
summaries say, whichever command wrote them.
"""

from __future__ import annotations

import html
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt

from rollpacker.analysis.numbers import FELT_FROM, GOOD_WITHIN, OURS, Source, Standing
from rollpacker.analysis.style import save_figure, title_figure
from rollpacker.config.words import counted
from rollpacker.metrics.files import write_atomically
from rollpacker.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rollpacker.analysis.exhibit import Exhibit
    from rollpacker.analysis.numbers import Claim, Numbers

STATISTICS = (
    "Speedups compare runs of one seed. Over several seeds: the mean; the CSV file has the smallest and the largest."
)
"""Of the numbers of every exhibit."""

_ORIGINS = {
    Source.MODELLED: "MODELLED: times are computed by a model of the cluster, not measured.",
    Source.MEASURED: "Measured on real engines.",
}


def write_exhibit(exhibit: Exhibit, numbers: Numbers, out: Path) -> list[Path]:
    """Write all files of an exhibit; without any number there is no figure."""
    out.mkdir(parents=True, exist_ok=True)
    table, text = out / f"{exhibit.name}.csv", out / f"{exhibit.name}.txt"
    write_atomically(table, numbers.frame().to_csv(index=False).encode())
    write_atomically(text, printable(summary(exhibit, numbers)).encode())
    if not numbers.points:
        for suffix in ("png", "pdf"):
            (out / f"{exhibit.name}.{suffix}").unlink(missing_ok=True)
        return [table, text]
    figure = exhibit.draw(numbers)
    title = ": ".join([exhibit.title, *_origin(numbers)])
    title_figure(figure, title, text.name if numbers.missing else "")
    figures = save_figure(figure, out / exhibit.name)
    plt.close(figure)
    return [*figures, table, text]


def summary(exhibit: Exhibit, numbers: Numbers) -> str:
    """Say in a page of text what an exhibit shows and what it lacks."""
    of_paper = [*_notes(exhibit, numbers), *map(claim_line, numbers.claims), *_errors(exhibit.name, numbers)]
    return "\n".join([exhibit.title, "", *of_paper, *_missing(numbers), ""])


def claim_line(claim: Claim) -> str:
    """Say one claim with both numbers and what to think of it."""
    if claim.ours is None:
        return f"{claim.text}: paper {claim.paper_said}; {Standing.UNKNOWN}"
    error = f", {claim.ours.y / claim.paper - 1:+.0%}" if claim.paper and claim.neutral != 0 else ""
    return f"{claim.text}: paper {claim.paper_said}, ours {claim.ours_said}{error}; {claim.standing}"


def _origin(numbers: Numbers) -> set[Source]:
    """Of our numbers: one, or none without any."""
    return {point.source for point in numbers.points} - {Source.PAPER}


def _notes(exhibit: Exhibit, numbers: Numbers) -> Iterator[str]:
    yield from (_ORIGINS[source] for source in _origin(numbers))
    if exhibit.note:
        yield exhibit.note
    yield STATISTICS
    if numbers.claims:
        yield (
            f"`reproduced` is within {GOOD_WITHIN:.0%} of the paper and has at least half of its effect; "
            f"`direction only` has {FELT_FROM:.0%} of it or more."
        )
    yield ""


def _errors(name: str, numbers: Numbers) -> Iterator[str]:
    """How far our points of each curve lie from the paper's."""
    compared = numbers.frame().dropna(subset=["relative_error"])
    if compared.empty:
        return
    yield ""
    yield f"Relative errors of our points against the paper's; {name}.csv has each:"
    for (panel, series), curve in compared.groupby(["panel", "series"], sort=False):
        of_what = " ".join(str(panel).split()) + ("" if series == OURS else f", {series}")
        errors = curve["relative_error"].astype(float)
        spread = f"mean {errors.mean():+.0%}, without sign {errors.abs().mean():.0%}, largest {errors.abs().max():.0%}"
        yield f"  {of_what}: {counted(len(errors), 'point')}, {spread}"


def _missing(numbers: Numbers) -> Iterator[str]:
    if numbers.missing:
        yield ""
        yield "Missing:"
        yield from (f"  {missing}" for missing in numbers.missing)


def write_page(exhibits: Iterable[Exhibit], out: Path) -> Path:
    """Write `index.html`, which shows every exhibit whose files are in `out`, in this order."""
    written = {exhibit: file for exhibit in exhibits if (file := out / f"{exhibit.name}.txt").exists()}
    texts = {exhibit: file.read_text(encoding="utf-8").splitlines()[1:] for exhibit, file in written.items()}
    drawn = {exhibit: (out / f"{exhibit.name}.png").exists() for exhibit in texts}
    contents = "\n".join(_entry(exhibit, lines, has_figure=drawn[exhibit]) for exhibit, lines in texts.items())
    sections = "\n".join(_section(exhibit, lines, has_figure=drawn[exhibit]) for exhibit, lines in texts.items())
    page = out / "index.html"
    write_atomically(page, printable(_PAGE.format(contents=contents, sections=sections)).encode())
    return page


def _entry(exhibit: Exhibit, lines: Sequence[str], *, has_figure: bool) -> str:
    """A line of the table of contents, with how many claims stand how; without a figure there was no number."""
    counts = Counter(map(_standing_of, lines))
    marks = ", ".join(
        f'<span class="{standing.name.lower()}">{counts[standing]} {standing}</span>'
        for standing in Standing
        if counts[standing]
    )
    told = marks or ("" if has_figure else str(Standing.UNKNOWN))
    return f'<tr><td><a href="#{exhibit.name}">{html.escape(exhibit.title)}</a></td><td>{told}</td></tr>'


def _section(exhibit: Exhibit, lines: Sequence[str], *, has_figure: bool) -> str:
    name, title = exhibit.name, html.escape(exhibit.title)
    image = f'<a href="{name}.pdf"><img src="{name}.png" alt="{title}"></a>' if has_figure else ""
    return (
        f'<section id="{name}"><h2>{title}</h2>\n{image}\n{"".join(map(_paragraph, lines))}\n'
        f'<p class="files"><a href="{name}.csv">numbers</a> <a href="{name}.txt">summary</a></p></section>'
    )


def _paragraph(line: str) -> str:
    standing = _standing_of(line)
    return f"<p{f' class={standing.name.lower()}' if standing else ''}>{html.escape(line)}</p>" if line else ""


def _standing_of(line: str) -> Standing | None:
    """Of the claim that a line of a summary is."""
    return next((standing for standing in Standing if line.endswith(f"; {standing}")), None)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>RollPacker: tables and figures</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
img {{ width: 100%; max-width: 46rem; background: white; }}
a {{ color: LinkText; text-decoration: none; }} a:hover {{ text-decoration: underline; }}
.contents {{ margin-bottom: 1.5rem; }}
section {{ border-top: 1px solid #8886; padding: 1rem 0; }}
table {{ border-collapse: collapse; font-size: 13px; }}
td, th {{ padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }}
p {{ font-size: 13px; margin: .3rem 0; }}
.reproduced {{ color: #2a8a4a; }} .direction {{ color: #b07a00; }} .not {{ color: #c0392b; }}
.unknown {{ color: #888; }}
</style></head><body>
<h1>RollPacker: tables and figures</h1>
<table class="contents">{contents}</table>
{sections}
</body></html>
"""
