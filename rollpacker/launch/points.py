"""The points of a sweep, and in which jobs and arrays those go that are still to be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollpacker.config.schema import RunConfig
from rollpacker.launch.shape import JobShape, job_shape
from rollpacker.runtime.status import read_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep."""

    number: int
    """As Hydra counts the points."""
    name: str
    """The words that tell it from the other points; empty when it is the only one."""
    config: RunConfig

    @property
    def title(self) -> str:
        """How a person is told of it."""
        return f"point {self.number} ({self.name})" if self.name else f"point {self.number}"

    @property
    def has_finished(self) -> bool:
        """Whether its run has come to its end; with more steps than it then had, it has not."""
        status = read_status(self.config.run.dir)
        return status is not None and status.state == "finished" and status.num_steps >= self.config.run.num_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Points whose jobs ask for the same: one job, or one array."""

    shape: JobShape
    points: tuple[Point, ...]


def batches(points: Sequence[Point]) -> list[Batch]:
    """Put points of equal shapes together, in the order of the points."""
    found: list[tuple[JobShape, list[Point]]] = []
    for point in points:
        shape = job_shape(point.config)
        members = next((members for known, members in found if known == shape), None)
        if members is None:
            found.append((shape, members := []))
        members.append(point)
    return [Batch(shape=shape, points=tuple(members)) for shape, members in found]
