"""The processes and threads of a trace, and their names."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

Event = dict[str, Any]
"""Of the Trace Event Format."""


class Place(NamedTuple):
    process: int
    thread: int


class Tracks:
    """Numbers processes and threads, and names them before their first event."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._processes: dict[str, int] = {}
        self._num_threads: Counter[str] = Counter()
        self._places: dict[tuple[str, str], Place] = {}
        self.news: list[Event] = []

    def process(self, name: str, label: str = "", rank: int | None = None) -> int:
        if name not in self._processes:
            number = self._processes[name] = len(self._processes) + 1
            self._name(number, 0, "process_name", name=f"{label or name}{self._suffix}")
            if rank is not None:
                self.rank(name, rank)
        return self._processes[name]

    def rank(self, process: str, rank: int) -> None:
        """Place a process in the viewer, below those of lower rank."""
        self._name(self._processes[process], 0, "process_sort_index", sort_index=rank)

    def thread(self, process: str, name: str) -> Place:
        if (process, name) not in self._places:
            self._num_threads[process] += 1
            place = self._places[process, name] = Place(self._processes[process], self._num_threads[process])
            self._name(*place, "thread_name", name=name)
            self._name(*place, "thread_sort_index", sort_index=place.thread)
        return self._places[process, name]

    @property
    def num_threads(self) -> int:
        return len(self._places)

    def _name(self, process: int, thread: int, what: str, **arguments: object) -> None:
        self.news.append({"ph": "M", "pid": process, "tid": thread, "name": what, "args": arguments})
