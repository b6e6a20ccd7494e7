"""Slurm's short form of node names, spelled out: `gpu[01-03,7],login` is gpu01, gpu02, gpu03, gpu7, login.

The grammar of `scontrol show hostnames`, which a container does not have.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_NAME = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
"""Up to a comma outside brackets."""
_PART = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")


def expand_node_list(node_list: str) -> tuple[str, ...]:
    """Spell a node list out, in its own order."""
    return tuple(itertools.chain.from_iterable(_expand_name(name) for name in _NAME.findall(node_list)))


def _expand_name(name: str) -> Iterator[str]:
    parts = [list(_expand_ranges(ranges)) if ranges else [text] for ranges, text in _PART.findall(name)]
    return ("".join(chosen) for chosen in itertools.product(*parts))


def _expand_ranges(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        for number in range(int(first), int(last if dash else first) + 1):
            yield str(number).zfill(len(first))
