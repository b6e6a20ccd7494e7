"""What an exhibit is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.numbers import Numbers
    from analysis.runs import Runs


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One table or figure: which runs it needs, what it shows, and how it looks."""

    name: str
    """On the command line, and of its files."""
    title: str
    """A sentence without a full stop."""
    experiments: tuple[str, ...]
    """Files of conf/experiment whose multiruns bring what it draws."""
    gather: Callable[[Runs], Numbers]
    """Compute the numbers; what is missing is said in them, and the rest is computed."""
    draw: Callable[[Numbers], Figure]
