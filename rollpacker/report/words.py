"""Numbers as people read them: three digits and a unit."""

from __future__ import annotations

_MINUTE_S = 60
_HOUR_S = 3600


def seconds(value: float) -> str:  # noqa: PLR0911  (one range of durations after the other)
    """A duration: 35 ms, 4.2 s, 61 s, 12 min 5 s, 2 h 13 min."""
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 0.0005:  # noqa: PLR2004  (would print as 0 ms)
        return "0 s" if value == 0 else f"{value * 1e6:.0f} µs"
    if value < 0.9995:  # noqa: PLR2004  (would print as 1000 ms)
        return f"{value * 1e3:.0f} ms" if value >= 0.00995 else f"{value * 1e3:.1f} ms"  # noqa: PLR2004
    if value < 9.95:  # noqa: PLR2004  (would print as 10.0 s)
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 2 * _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    minutes = round(value / _MINUTE_S)
    return f"{minutes // 60} h {minutes % 60} min"


def count(value: float) -> str:
    """A count: 950, 12,400, 3.4 M."""
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= scale:
            return f"{digits(value / scale)} {unit}"
    return f"{value:,.0f}"


def size(num_bytes: float) -> str:
    """A number of bytes: 547 kB, 65.5 GB."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= scale:
            return f"{digits(num_bytes / scale)} {unit}"
    return f"{num_bytes:.0f} bytes"


def tokens(value: float) -> str:
    """A count of tokens."""
    return f"{count(value)} tokens"


def share(value: float) -> str:
    """A share of 1: 0.4 %, 12 %."""
    percent = 100 * value
    if 0 < abs(percent) < 0.095:  # noqa: PLR2004  (would print as 0.1 or 0.0)
        return f"{percent:.1g} %"
    return f"{percent:.1f} %" if 0 < abs(percent) < 9.95 else f"{percent:.0f} %"  # noqa: PLR2004


def ratio(value: float) -> str:
    """How often one thing fits into another: 1.39 x."""
    return f"{value:.2f} x" if value < 99.5 else f"{value:,.0f} x"  # noqa: PLR2004  (three digits)


def digits(value: float) -> str:
    """Three digits, or all that are before the point: 0.0412, 48.3, 1,104."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004


def plural(number: float, noun: str) -> str:
    """1 engine, 2 engines, 0.5 steps."""
    said = f"{number:,}" if isinstance(number, int) else digits(number)
    return f"{said} {noun}" + ("" if number == 1 else "s")
