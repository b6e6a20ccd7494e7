"""Which GPUs of each node a role works on, in one line of text.

    all             every GPU of every node
    0-7             GPUs 0 to 7 of every node
    4-7@0           GPUs 4 to 7 of node 0, and none elsewhere
    all 4-7@0,3     GPUs 4 to 7 of nodes 0 and 3, and every GPU of the others
    0-7 none@0      GPUs 0 to 7 of every node but node 0
    rest            every GPU that the trainer's map does not name: of engines alone

A part without `@` holds for every node that no part with `@` names. GPUs and nodes are counted from 0; GPU 0 is the
first one that the run has on a node, however CUDA_VISIBLE_DEVICES names it.

Invariant: a map names each GPU of a node at most once, and each node at most once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Self

ALL = "all"
NONE = "none"
REST = "rest"
"""What another map does not name; `without` makes it."""
_RANGE = re.compile(r"(?P<first>\d{1,6})(?:-(?P<last>\d{1,6}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMap:
    """A parsed map."""

    elsewhere: tuple[int, ...] | None
    """GPUs of every node that `nodes` does not name; None is every GPU of such a node."""
    nodes: Mapping[int, tuple[int, ...] | None] = field(default_factory=dict)
    """The same for single nodes."""
    but: GpuMap | None = None
    """Names the GPUs that are left out."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a map; raises `ValueError` with what is wrong with it, in one sentence."""
        if not text.split():
            raise ValueError("It names no GPU.")
        elsewhere: list[tuple[int, ...] | None] = []
        nodes: dict[int, tuple[int, ...] | None] = {}
        for part in text.split():
            gpus_text, at, nodes_text = part.partition("@")
            gpus = _gpus(gpus_text)
            if not at:
                elsewhere.append(gpus)
                continue
            for node in _numbers(nodes_text, "node"):
                if node in nodes:
                    raise ValueError(f"It names node {node} twice.")
                nodes[node] = gpus
        if len(elsewhere) > 1:
            raise ValueError("It has two parts without `@`, which both hold for every node.")
        return cls(elsewhere=elsewhere[0] if elsewhere else (), nodes=nodes)

    @property
    def named_nodes(self) -> frozenset[int]:
        """Those that it speaks of by number."""
        return frozenset(self.nodes) | (self.but.named_nodes if self.but else frozenset())

    def gpus_of(self, node: int, num_gpus: int) -> tuple[int, ...]:
        """The GPUs of a node that has `num_gpus`, ascending."""
        named = self.nodes.get(node, self.elsewhere)
        gpus = tuple(range(num_gpus)) if named is None else named
        if self.but is None:
            return gpus
        others = set(self.but.gpus_of(node, num_gpus))
        return tuple(gpu for gpu in gpus if gpu not in others)

    def places(self, num_nodes: int, num_gpus: int) -> set[tuple[int, int]]:
        """The GPUs that it names of so many nodes that have `num_gpus`, each with its node."""
        return {(node, gpu) for node in range(num_nodes) for gpu in self.gpus_of(node, num_gpus)}


def rest_of(other: GpuMap) -> GpuMap:
    """Every GPU that another map does not name."""
    return GpuMap(elsewhere=None, but=other)


def map_text(gpus_by_node: Sequence[Sequence[int]]) -> str:
    """Write the map that names these GPUs of each node, ascending."""
    texts = [ranges_text(gpus) for gpus in gpus_by_node]
    if len(set(texts)) == 1:
        return texts[0] if len(texts) > 1 else f"{texts[0]}@0"
    named = ((text, [node for node, other in enumerate(texts) if other == text]) for text in dict.fromkeys(texts))
    return " ".join(f"{text}@{ranges_text(nodes)}" for text, nodes in named if text != NONE)


def ranges_text(numbers: Sequence[int]) -> str:
    """Write ascending numbers as 0-3,5, and none as none."""
    runs = [list(run) for _, run in groupby(enumerate(numbers), key=lambda place: place[1] - place[0])]
    ends = [(run[0][1], run[-1][1]) for run in runs]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends) or NONE


def _gpus(text: str) -> tuple[int, ...] | None:
    if text == ALL:
        return None
    return () if text == NONE else _numbers(text, "GPU")


def _numbers(text: str, what: str) -> tuple[int, ...]:
    """The numbers of `0-3,5`, ascending."""
    numbers: list[int] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise ValueError(f"`{word}` is no range of {what}s.")
        first = int(match["first"])
        last = first if match["last"] is None else int(match["last"])
        if last < first:
            raise ValueError(f"The range {word} ends before it begins.")
        numbers += range(first, last + 1)
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise ValueError(f"It names {what} {twice} twice.")
    return tuple(sorted(numbers))
