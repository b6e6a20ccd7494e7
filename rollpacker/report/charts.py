"""Charts as inline SVG: bars, lines, distributions and the timeline of a round.

Every chart is a string that needs nothing else: colours are the page's CSS variables, so that a chart follows the
page from light to dark; what a mark stands for is said in its tooltip (`<title>`). Legends and titles are the page's.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rollpacker.report.words import count, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from rollpacker.report.story import RoundPicture

HEIGHT = 230
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 34
"""Margins in pixels: room for the numbers of the axes."""

ROOM, ROW_HEIGHT = 104, 15
"""Of charts with a row per actor: pixels for the names, and of a row."""

LOWEST_ROW = 1.2
"""Pixels of a row with one request, however many others have: a straggler must be seen."""

MOST_BARS = 120
"""More steps than that share bars: a bar of 4 pixels is the narrowest that one can point at."""

MOST_ENGINE_ROWS = 40
"""A round of more engines shows some of them, evenly chosen."""

_HOUR_S = 3600.0
_ROUND_S = (2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, _HOUR_S)
"""Steps of an axis of durations."""

Number = float | int

RowType = TypeVar("RowType")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    name: str
    color: str
    """A CSS variable's name."""
    x: Sequence[Number]
    y: Sequence[Number]
    is_dashed: bool = False


class _Frame:
    """The plotting area: scales, axes and marks."""

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.width, self.height = width, height
        self._x = x if x[1] > x[0] else (x[0] - 0.5, x[0] + 0.5)  # one value stands in the middle
        self._y = y
        self._marks: list[str] = []

    def px(self, x: float) -> float:
        low, high = self._x
        return LEFT + (x - low) / ((high - low) or 1.0) * (self.width - LEFT - RIGHT)

    def py(self, y: float) -> float:
        low, high = self._y
        return self.height - BOTTOM - (y - low) / ((high - low) or 1.0) * (self.height - TOP - BOTTOM)

    def add(self, mark: str) -> None:
        self._marks.append(mark)

    def y_axis(self, label: Callable[[float], str], marks: Sequence[float] | None = None) -> None:
        for tick in ticks(*self._y) if marks is None else marks:
            y = self.py(tick)
            self.add(f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.add(f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{label(tick)}</text>')

    def x_axis(self, marks: Sequence[tuple[float, str]], title: str) -> None:
        base = self.height - BOTTOM
        self.add(f'<line class="axis" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{base}" y2="{base}"/>')
        for x, text in marks:
            self.add(f'<text class="tick" x="{self.px(x):.1f}" y="{base + 15}" text-anchor="middle">{text}</text>')
        middle = (LEFT + self.width - RIGHT) / 2
        self.add(f'<text class="label" x="{middle:.0f}" y="{self.height - 3}" text-anchor="middle">{title}</text>')

    def svg(self, description: str) -> str:
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{html.escape(description)}">'
            f"{''.join(self._marks)}</svg>"
        )


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Choose round numbers between two: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    unit = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / unit - 1e-9)
    return [round(number * unit, 12) for number in range(first, math.floor(high / unit + 1e-9) + 1)]


def duration_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Choose round durations between two: multiples of whole seconds, minutes or hours where there are such."""
    span = high - low
    if span <= most:  # seconds and less count in tens
        return ticks(low, high, most)
    unit = next((unit for unit in _ROUND_S if span / unit <= most), None)
    if unit is None:
        return [tick * _HOUR_S for tick in ticks(low / _HOUR_S, high / _HOUR_S, most)]
    return [number * unit for number in range(math.ceil(low / unit), math.floor(high / unit + 1e-9) + 1)]


def stacked_bars(
    steps: Sequence[int],
    stacks: Mapping[str, Sequence[float]],
    colors: Mapping[str, str],
    names: Mapping[str, str],
    *,
    width: int,
    top: float | None = None,
    label: Callable[[float], str] = seconds,
    description: str,
    notes: Sequence[str] | None = None,
) -> str:
    """Draw a bar per step, or per some steps when there are many; `top` is the end of the axis.

    `notes` are words for each step's tooltip.
    """
    per_bar = -(-len(steps) // MOST_BARS)
    groups = [range(first, min(first + per_bar, len(steps))) for first in range(0, len(steps), per_bar)]
    means = {key: [sum(values[i] for i in group) / len(group) for group in groups] for key, values in stacks.items()}
    sums = [sum(values[i] for values in means.values()) for i in range(len(groups))]
    highest = top if top is not None else max(sums, default=0.0)
    frame = _Frame(width, HEIGHT, (0, max(len(groups), 1)), (0, (highest or 1.0) * 1.04))
    if label is seconds:
        frame.y_axis(seconds_axis(highest), duration_ticks(0.0, highest or 1.0))
    else:
        frame.y_axis(count_axis)
    slot = (width - LEFT - RIGHT) / max(len(groups), 1)
    thick = min(slot * (0.82 if slot > 5 else 0.96), 46)  # noqa: PLR2004  (narrow bars keep a narrow gap)
    for number, group in enumerate(groups):
        first, last = steps[group[0]], steps[group[-1]]
        which = f"step {first}" if first == last else f"steps {first} to {last}, mean"
        note = f", {notes[group[0]]}" if notes and len(group) == 1 else ""
        tip = [f"{which}{note}: {label(sums[number])}"]
        tip += [f"{names[key]}: {label(values[number])}" for key, values in means.items() if values[number] > 0]
        frame.add(f"<g><title>{html.escape(chr(10).join(tip))}</title>")
        at, x = 0.0, frame.px(number + 0.5) - thick / 2
        for key, values in means.items():
            y1, y0 = frame.py(at + values[number]), frame.py(at)
            if y0 - y1 > 0.05:  # noqa: PLR2004  (thinner is invisible)
                frame.add(
                    f'<rect x="{x:.1f}" y="{y1:.2f}" width="{thick:.1f}" height="{y0 - y1:.2f}" '
                    f'style="fill:var(--{colors[key]})"/>'
                )
            at += values[number]
        frame.add("</g>")
    frame.x_axis(_step_marks(steps, groups), "step")
    return frame.svg(description)


def _step_marks(steps: Sequence[int], groups: Sequence[range]) -> list[tuple[float, str]]:
    every = max(1, round(len(groups) / 10))
    nice = next((number for number in (1, 2, 5, 10, 20, 25, 50, 100) if number >= every), every)
    return [(number + 0.5, str(steps[group[0]])) for number, group in enumerate(groups) if number % nice == 0]


def seconds_axis(highest: float) -> Callable[[float], str]:
    """Give an axis of durations one unit."""
    for limit, scale, unit in ((7200.0, 3600.0, "h"), (300.0, 60.0, "min"), (1.0, 1.0, "s")):
        if highest >= limit:
            return lambda value: f"{value / scale:g} {unit}"
    return lambda value: f"{value * 1e3:g} ms"


def count_axis(value: float) -> str:
    """Write a count on an axis."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[unit]:g} {unit}"
    return f"{value:,g}"


def lines(
    series: Sequence[Line],
    *,
    width: int,
    title: str,
    label: Callable[[float], str],
    y: tuple[float, float] | None = None,
    description: str,
) -> str:
    """Draw lines over steps."""
    xs = [x for line in series for x in line.x]
    ys = [value for line in series for value in line.y if math.isfinite(value)]
    if not xs or not ys:
        return empty(width, "no data")
    low, high = y if y is not None else (min(0.0, *ys), max(ys))
    high = high if high > low else low + 1.0
    frame = _Frame(width, HEIGHT, (min(xs), max(xs)), (low, high + 0.04 * (high - low)))
    frame.y_axis(label)
    for line in series:
        points = [(frame.px(a), frame.py(b)) for a, b in zip(line.x, line.y, strict=True) if math.isfinite(b)]
        dash = ' stroke-dasharray="5 4"' if line.is_dashed else ""
        tip = f"{line.name}: {label(line.y[0])} to {label(line.y[-1])}"
        path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in points)
        frame.add(
            f'<path class="line" d="{path}" style="stroke:var(--{line.color})"{dash}>'
            f"<title>{html.escape(tip)}</title></path>"
        )
        if len(points) == 1:
            frame.add(
                f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3.5" '
                f'style="fill:var(--{line.color})"><title>{html.escape(tip)}</title></circle>'
            )
    whole = [tick for tick in ticks(min(xs), max(xs), 8) if tick == int(tick)]
    frame.x_axis([(tick, f"{tick:g}") for tick in whole], title)
    return frame.svg(description)


def distributions(
    lengths: Sequence[tuple[Line, npt.NDArray[np.int64]]], *, width: int, limit: int | None, description: str
) -> str:
    """Draw which share of responses has at least so many tokens; both axes are logarithmic: the tail matters."""
    known = [values for _, values in lengths if len(values)]
    if not known:
        return empty(width, "no response was trained")
    shortest = max(1, min(int(np.quantile(values, 0.02)) for values in known))
    rarest = min(0.1, *(1.0 / len(values) for values in known))
    longest = max(int(values[-1]) for values in known)
    longest = max(longest, limit or 0, shortest + 1)
    low, high = math.log10(shortest), math.log10(longest * 1.05)
    bottom = math.floor(math.log10(rarest))
    frame = _Frame(width, HEIGHT, (low, high), (bottom, 0.08))
    frame.y_axis(lambda power: f"{100 * 10.0**power:g} %", range(bottom, 1))
    grid = np.unique(np.rint(np.logspace(low, math.log10(longest), 160)).astype(np.int64))
    if limit is not None:
        x = frame.px(math.log10(limit))
        frame.add(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        frame.add(f'<text class="tick" x="{x - 5:.1f}" y="{TOP + 10}" text-anchor="end">limit {count(limit)}</text>')
    for line, values in lengths:
        if not len(values):
            continue
        above = 1.0 - np.searchsorted(values, grid, side="left") / len(values)
        points = [
            (frame.px(math.log10(at)), frame.py(math.log10(share)))
            for at, share in zip(grid.tolist(), above.tolist(), strict=True)
            if share > 0
        ]
        path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in points)
        dash = ' stroke-dasharray="5 4"' if line.is_dashed else ""
        frame.add(
            f'<path class="line" d="{path}" style="stroke:var(--{line.color})"{dash}>'
            f"<title>{html.escape(line.name)}: median {count(float(np.median(values)))} tokens</title></path>"
        )
    frame.x_axis(_log_marks(shortest, longest, frame), "tokens of a trained response, logarithmic")
    return frame.svg(description)


def _log_marks(low: int, high: int, frame: _Frame) -> list[tuple[float, str]]:
    """Powers of two that stand at least 44 pixels apart."""
    marks: list[tuple[float, str]] = []
    power = 2 ** math.ceil(math.log2(low))
    while power <= high * 1.001:
        x = math.log10(power)
        if not marks or frame.px(x) - frame.px(marks[-1][0]) > 44:  # noqa: PLR2004
            marks.append((x, count(power)))
        power *= 2
    return marks


def shares(parts: Sequence[tuple[str, str, float]], *, width: int, height: int = 26, label: str = "") -> str:
    """Draw one bar of (name, colour, seconds) that add up to the whole."""
    whole = sum(value for _, _, value in parts) or 1.0
    marks, x = [], 0.0
    for name, color, value in parts:
        part = value / whole * width
        tip = f"{label}{name}: {seconds(value)}, {100 * value / whole:.1f} %"
        marks.append(
            f'<g><title>{html.escape(tip)}</title><rect x="{x:.2f}" y="0" width="{part:.2f}" height="{height}" '
            f'style="fill:var(--{color})"/>'
        )
        if part > 44:  # noqa: PLR2004  (room for the number)
            marks.append(
                f'<text class="on" x="{x + part / 2:.1f}" y="{height / 2 + 4.5:.1f}" text-anchor="middle">'
                f"{100 * value / whole:.0f} %</text>"
            )
        marks.append("</g>")
        x += part
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}">{"".join(marks)}</svg>'


def engine_use(rows: Sequence[tuple[str, Sequence[tuple[str, str, float]]]], *, width: int, description: str) -> str:
    """Draw a bar per engine: (name, colour, seconds) of what it did, as shares of the time that it was there."""
    room = ROOM
    height = len(rows) * ROW_HEIGHT + 24
    marks = []
    for percent in (0, 25, 50, 75, 100):
        x = room + percent / 100 * (width - room - 22)
        marks.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 22}"/>')
        marks.append(f'<text class="tick" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{percent} %</text>')
    for number, (engine, parts) in enumerate(rows):
        y, x = number * ROW_HEIGHT, float(room)
        whole = sum(value for _, _, value in parts) or 1.0
        tip = [engine, *(f"{name}: {seconds(value)}, {100 * value / whole:.0f} %" for name, _, value in parts if value)]
        marks.append(f"<g><title>{html.escape(chr(10).join(tip))}</title>")
        marks.append(
            f'<text class="tick" x="{room - 8}" y="{y + 11}" text-anchor="end">{html.escape(_short(engine))}</text>'
        )
        for _, color, value in parts:
            part = value / whole * (width - room - 22)
            if part > 0.05:  # noqa: PLR2004  (thinner is invisible)
                marks.append(
                    f'<rect x="{x:.2f}" y="{y + 1.5}" width="{part:.2f}" height="{ROW_HEIGHT - 3}" '
                    f'style="fill:var(--{color})"/>'
                )
            x += part
        marks.append("</g>")
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(description)}">{"".join(marks)}</svg>'
    )


def timeline(picture: RoundPicture, colors: Mapping[str, str], names: Mapping[str, str], *, width: int) -> str:
    """Draw one step: a row per actor with what it did, and a row per engine with how many requests it had."""
    room, gap = ROOM, 8
    engines = evenly(picture.engines, MOST_ENGINE_ROWS)
    actors = _actor_rows(picture)
    height = TOP + (len(actors) + len(engines)) * ROW_HEIGHT + gap + BOTTOM
    duration_s = max(picture.ended_s - picture.began_s, 1e-9)
    scale = (width - room - RIGHT) / duration_s

    def px(at_s: float) -> float:
        return room + min(max(at_s - picture.began_s, 0.0), duration_s) * scale

    marks = []
    axis = seconds_axis(duration_s)
    for tick in duration_ticks(0.0, duration_s, 8):
        x = px(picture.began_s + tick)
        marks.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        marks.append(
            f'<text class="tick" x="{x:.1f}" y="{height - BOTTOM + 15}" text-anchor="middle">{axis(tick)}</text>'
        )
    y = float(TOP)
    for title, spans in actors:
        marks.append(_row_title(title, room, y))
        for activity, began_s, ended_s in spans:
            tip = f"{title}, {names.get(activity, activity)}: {seconds(ended_s - began_s)}"
            marks.append(_span((px(began_s), px(ended_s)), y, colors.get(activity, "other"), tip))
        y += ROW_HEIGHT
    y += gap
    most = max((int(row.num_requests.max()) for row in engines if len(row.num_requests)), default=1)
    for row in engines:
        marks.append(_row_title(row.engine, room, y))
        for activity, began_s, ended_s in row.others:
            tip = f"{row.engine}, {names.get(activity, activity)}: {seconds(ended_s - began_s)}"
            marks.append(_span((px(began_s), px(ended_s)), y, colors.get(activity, "other"), tip))
        if len(row.times_s):
            area = _area([px(at) for at in row.times_s.tolist()], row.num_requests.tolist(), most, y)
            tip = f"{row.engine}: at most {int(row.num_requests.max())} requests at once"
            marks.append(f'<path d="{area}" style="fill:var(--rollout)"><title>{html.escape(tip)}</title></path>')
        y += ROW_HEIGHT
    middle = (room + width - RIGHT) / 2
    marks.append(
        f'<text class="label" x="{middle:.0f}" y="{height - 3}" text-anchor="middle">'
        f"time since the step began; an engine's row is as high as it has requests, at most {most}</text>"
    )
    description = f"step {picture.step}, actor by actor"
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{description}">{"".join(marks)}</svg>'


def _actor_rows(picture: RoundPicture) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """Driver first, then the trainer, then the others by name; a trainer that streams has one row for both."""
    rows: dict[str, list[tuple[str, float, float]]] = {}
    for actor, activity, began_s, ended_s in sorted(picture.actors, key=lambda each: (each[0], each[2])):
        if activity != "quiesce":
            rows.setdefault(actor, []).append((activity, began_s, ended_s))
    order = {"driver": 0, "trainer": 1}
    return sorted(rows.items(), key=lambda row: (order.get(row[0], 2), row[0]))[:8]


def _row_title(title: str, room: int, y: float) -> str:
    return f'<text class="tick" x="{room - 8}" y="{y + 11:.1f}" text-anchor="end">{html.escape(_short(title))}</text>'


def _span(x: tuple[float, float], y: float, color: str, tip: str) -> str:
    return (
        f'<rect x="{x[0]:.2f}" y="{y + 1.5:.1f}" width="{max(x[1] - x[0], 0.8):.2f}" height="{ROW_HEIGHT - 3}" '
        f'style="fill:var(--{color})"><title>{html.escape(tip)}</title></rect>'
    )


def _area(xs: Sequence[float], counts: Sequence[int], most: int, y: float) -> str:
    """Draw a step function as a closed path; points closer than half a pixel are one."""
    base, tall = y + ROW_HEIGHT - 1.5, ROW_HEIGHT - 3
    path, last_x, last_count = [f"M{xs[0]:.1f},{base:.1f}"], -1.0, 0
    for x, number in zip(xs, counts, strict=True):
        if x - last_x < 0.5 and number and last_count:  # noqa: PLR2004
            continue
        high = max(tall * number / most, LOWEST_ROW) if number else 0.0
        path.append(f"H{x:.1f}V{base - high:.1f}")
        last_x, last_count = x, number
    path.append(f"H{xs[-1]:.1f}V{base:.1f}Z")
    return "".join(path)


def evenly(rows: Sequence[RowType], most: int) -> list[RowType]:
    """Choose at most so many rows, first and last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(number * (len(rows) - 1) / (most - 1))] for number in range(most)]


def empty(width: int, text: str) -> str:
    """Say in a chart's place why there is none."""
    return (
        f'<svg viewBox="0 0 {width} 60" role="img"><text class="label" x="{width / 2}" y="34" '
        f'text-anchor="middle">{html.escape(text)}</text></svg>'
    )


def _short(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
