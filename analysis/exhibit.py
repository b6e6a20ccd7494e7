"""What an exhibit is.

Which runs it draws: all runs lie below one folder, and an exhibit picks some by `runs.of(model=..., system=..., ...)`.
An experiment whose runs differ from those of setup=paper in nothing but model, workload, system and seed needs no name:
its runs are drawn by every exhibit that asks for them. One that varies anything else (GPUs, batch, lengths, hardware, a
key of a system whose name stays) sets `run.study` in conf/experiment to a name that tells each variant apart, such as

    run:
      study: correlation-${workload.rho}

and its exhibit asks for `runs.of(study="correlation-0.3", ...)`; by number of GPUs, `study: scaling` is enough, as the
run's folder and `num_gpus` tell the points apart. No other exhibit sees these runs: without `study`, `runs.of` takes
only runs that have none. `rollpacker.analysis.sweeps` has what else is in a run's folder; tests/analysis
holds every experiment against it. A variant of a system with a name of its own (`system.name: eta-1.5-1`) needs no
study.

Of which size these runs are: `runs.of` takes those of one setup, which is the paper's unless `scale` says otherwise.
An exhibit that can be drawn of others names them in `setups`; then it asks `runs.models(...)` for the models, or
`runs.model(...)` for its only one, and takes the paper's numbers only where `runs.are_papers_size`. Every call of
`runs.of` names the model or a study of one model: runs that differ in it would pass for seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.analysis.numbers import Claim, Numbers, Point
from rollpacker.analysis.runs import PAPER_SETUP, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL_SETUPS = (PAPER_SETUP, "8gpus", "tiny")
"""Sizes of run: the paper's, one node as the artifact takes it, and this machine."""

TINY_SETUPS = ("tiny", "walks")
"""Those that this machine trains for real: with three kinds of reward, or one."""


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One table or figure: which runs it needs, what it shows, and how it looks."""

    name: str
    """On the command line, and of its files."""
    title: str
    """A sentence without a full stop."""
    experiments: tuple[str, ...]
    """Files of conf/experiment whose multiruns it draws."""
    gather: Callable[[Runs], Iterable[Point | Claim | None]]
    """Compute points and claims, each kind in the order in which it is shown; a point is None where no run gives it."""
    draw: Callable[[Numbers], Figure]
    note: str = ""
    """What else a reader of the figure must know: what was chosen, fitted or left out."""
    setups: tuple[str, ...] = (PAPER_SETUP,)
    """Of conf/setup, the sizes of run that it can be drawn of; without `scale` the first."""

    def numbers(self, runs: Runs) -> Numbers:
        """Compute all that it shows; what is missing or cannot be read is said in it, and the rest is computed."""
        for run in runs.runs:
            run.unread.clear()  # other exhibits may have asked it for other tables
        found = list(self.gather(runs))
        unread = [sentence for run in runs.runs for sentence in run.unread]
        return Numbers(
            points=[each for each in found if isinstance(each, Point)],
            claims=[each for each in found if isinstance(each, Claim)],
            missing=[*runs.missing, *unread],
        )
