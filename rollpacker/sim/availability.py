"""When the nodes of modelled rollout workers come and go.

A **place** is one node, or one element of a job array. Each place is up or down; nothing here knows of workers, engines
or wishes. Changes come in order of time, perhaps without end, and depend on the settings alone.

    constant    every place is up from the beginning
    staircase   one more place every period up to all; then in turns the one that is up longest leaves, and comes back
                (the artifact of PolyRL)
    file        as many places are up as a CSV file says (Bamboo's traces, NSDI '23); chance says which one leaves
    random      times up and down are exponential, and a preemption may take several places at once

Of `random`: a preemption takes (1 + burst) / 2 places on average, less where fewer than `burst` are up, so preemptions
come that much more rarely than by the mean time up of one place, whose mean stays what was asked for.
"""

from __future__ import annotations

import csv
import hashlib
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.errors import DataError
from rollpacker.paths import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.config.sections.modelled_workers import ModelledWorkersSection


MOST_PLACES = 100_000
"""That a file may count: as many as `elastic.modelled.num_workers` may say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceChanged:
    """A place is up from now on, or down."""

    at_s: float
    """Seconds since the run began."""
    place: int
    is_up: bool


def availability_of(section: ModelledWorkersSection) -> Iterator[PlaceChanged]:
    """When places come and go, in order of time.

    Raises:
        DataError: The file of counts cannot be read, or says no times or no counts.
    """
    match section.availability:
        case "constant":
            return constant(section.num_workers)
        case "staircase":
            return staircase(section.num_workers, section.period_s)
        case "file":
            assert section.counts is not None
            return counted(read_counts(section.counts), section.seed)
        case "random":
            return on_and_off(
                section.num_workers,
                mean_up_s=section.mean_up_s,
                mean_down_s=section.mean_down_s,
                burst=section.burst,
                seed=section.seed,
            )


def constant(num_places: int) -> Iterator[PlaceChanged]:
    """All places, from the beginning."""
    return (PlaceChanged(at_s=0.0, place=place, is_up=True) for place in range(num_places))


def staircase(num_places: int, period_s: float) -> Iterator[PlaceChanged]:
    """One more place every period; when all are up, the oldest leaves, and comes back a period later."""
    if not num_places:
        return
    for number in itertools.count():
        at_s = (number + 1) * period_s
        if number < num_places:
            yield PlaceChanged(at_s=at_s, place=number, is_up=True)
        else:
            turn, is_back = divmod(number - num_places, 2)
            yield PlaceChanged(at_s=at_s, place=turn % num_places, is_up=bool(is_back))


def counted(counts: Sequence[tuple[float, int]], seed: int) -> Iterator[PlaceChanged]:
    """As many places as were counted: the lowest free ones come, and chance says which ones leave."""
    chance = _Chance(f"places that leave/{seed}")
    up: list[int] = []
    for at_s, count in counts:
        taken = set(up)
        free = (place for place in itertools.count() if place not in taken)
        for place in list(itertools.islice(free, max(0, count - len(up)))):
            up.append(place)
            yield PlaceChanged(at_s=at_s, place=place, is_up=True)
        for _ in range(len(up) - count):
            yield PlaceChanged(at_s=at_s, place=up.pop(chance.below(len(up))), is_up=False)


def on_and_off(
    num_places: int, *, mean_up_s: float, mean_down_s: float, burst: int, seed: int
) -> Iterator[PlaceChanged]:
    """Every place by chance; all are up at first."""
    chance = _Chance(f"places on and off/{seed}")
    up = dict.fromkeys(range(num_places))
    for place in up:
        yield PlaceChanged(at_s=0.0, place=place, is_up=True)
    coming: list[tuple[float, int]] = []
    now = 0.0
    while num_places:
        preempted_at_s = float("inf")
        if up:
            most = min(burst, len(up))
            mean_burst = most * (2 * burst - most + 1) / (2 * burst)  # of min(k, most), k from 1 to burst
            preempted_at_s = now + chance.wait_s(len(up) / (mean_up_s * mean_burst))
        if coming and coming[0][0] <= preempted_at_s:  # the next preemption is drawn again: it has no memory
            now, place = heapq.heappop(coming)
            up[place] = None
            yield PlaceChanged(at_s=now, place=place, is_up=True)
            continue
        now = preempted_at_s
        for _ in range(min(len(up), 1 + chance.below(burst))):
            place = list(up)[chance.below(len(up))]
            del up[place]
            heapq.heappush(coming, (now + chance.wait_s(1 / mean_down_s), place))
            yield PlaceChanged(at_s=now, place=place, is_up=False)


class _Chance:
    """Draws numbers that depend on a name and on how many were drawn before, on every machine alike."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count()

    def below(self, limit: int) -> int:
        """A whole number from 0, each as likely."""
        return int(self._uniform() * limit)

    def wait_s(self, rate: float) -> float:
        """Time to an event of so many per second, exponential."""
        return -math.log1p(-self._uniform()) / rate

    def _uniform(self) -> float:
        """From 0 to below 1."""
        digest = hashlib.blake2b(f"{self._name}/{next(self._numbers)}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def read_counts(path: Path) -> list[tuple[float, int]]:
    """Read the columns `time_s` and `count` of a CSV file.

    Raises:
        DataError: It cannot be read, lacks a column, has a value that is no number or out of range, or times that do
            not ascend.
    """
    allowed = (
        "A CSV file with the columns time_s and count: seconds, ascending from 0, and whole numbers from 0 to "
        f"{MOST_PLACES:,}."
    )
    remedy = "Correct the file, or elastic.modelled.counts."
    try:
        rows = list(csv.DictReader(read_text(path).removeprefix("\ufeff").splitlines()))
        counts = [(float(row["time_s"]), int(row["count"])) for row in rows]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(f"{path} gives no counts of workers: {error!r}.", allowed, remedy) from error
    times = [at_s for at_s, _ in counts]
    are_in_range = all(0 <= at_s < math.inf and 0 <= count <= MOST_PLACES for at_s, count in counts)
    if not counts or not are_in_range or times != sorted(times):
        raise DataError(f"{path} has no rows, times that do not ascend, or numbers out of range.", allowed, remedy)
    return counts
