"""The points of a sweep: each is one run, which may have finished before a launch."""

from __future__ import annotations

from dataclasses import dataclass

from rollpacker.config.multirun import Sweep, point_names
from rollpacker.config.schema import RunConfig
from rollpacker.runtime.run.status import read_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep."""

    number: int
    """As Hydra counts the points."""
    name: str
    """The arguments that distinguish it from the other points; empty when it is the only one."""
    config: RunConfig

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"point {self.number} ({self.name})" if self.name else f"point {self.number}"

    @property
    def has_finished(self) -> bool:
        """Whether its run has come to its end; with more steps than it then had, it has not."""
        status = read_status(self.config.run.dir)
        return status is not None and status.state == "finished" and status.num_steps >= self.config.run.num_steps


def points_of(sweep: Sweep) -> list[Point]:
    """Number and name the points of a sweep."""
    named = zip(point_names(sweep.points), sweep.configs, strict=True)
    return [Point(number=number, name=name, config=config) for number, (name, config) in enumerate(named)]
