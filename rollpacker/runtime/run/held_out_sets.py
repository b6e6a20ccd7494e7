"""Since which evaluation the held-out sets of a run have the prompts that they have now.

    <run.dir>/evaluation/sets.json     by set: checksums of the prompts of its last evaluation, and since which step

Invariant: the file is written after the tables of an evaluation. A set without an entry was not edited, as far as is
known.
"""

from __future__ import annotations

from collections.abc import Mapping  # pydantic reads it
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from rollpacker.data.contents import contents_of
from rollpacker.metrics.files import write_atomically
from rollpacker.paths import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rollpacker.protocols.rollout import Prompt

SETS_FILE = "sets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """What a set asks."""

    checksums: Mapping[str, int]
    """By domain, as `contents_of` gives them."""
    since_step: int = 0
    """Of the first evaluation of these prompts."""


_SETS = TypeAdapter(dict[str, _Contents])


class HeldOutSets:
    """The sets of one attempt, compared with those of earlier ones.

    Args:
        folder: Of the evaluations.
        held_out: The prompts of each set.
    """

    def __init__(self, folder: Path, held_out: Mapping[str, Iterable[Prompt]]) -> None:
        self._file = folder / SETS_FILE
        self._earlier = _read(self._file)
        self._sets: dict[str, _Contents] = {}
        self.edited: set[str] = set()
        """Sets that no evaluation is of as they are now."""
        for name, prompts in held_out.items():
            checksums = {str(domain): checksum for domain, checksum in contents_of(prompts).items()}
            self._sets[name] = earlier = self._earlier.get(name, _Contents(checksums=checksums))
            if earlier.checksums != checksums:
                self._sets[name] = _Contents(checksums=checksums)
                self.edited.add(name)

    def is_as_now(self, name: str, step: int) -> bool:
        """Whether the evaluation of a step was of the prompts that a set has now."""
        return name not in self.edited and step >= self._sets[name].since_step

    def evaluated(self, step: int) -> None:
        """Record that the tables have an evaluation of a step."""
        for name, own in self._sets.items():
            if name in self.edited or own.since_step > step:  # of an evaluation that was taken back
                self._sets[name] = _Contents(checksums=own.checksums, since_step=step)
        self.edited.clear()
        if (sets := self._earlier | self._sets) != self._earlier:
            self._earlier = sets
            write_atomically(self._file, _SETS.dump_json(sets, indent=1) + b"\n")


def read_sets(folder: Path) -> dict[str, tuple[Mapping[str, int], int]]:
    """Give the checksums of each set's prompts, and since which step it has these; only of sets with an entry."""
    return {name: (own.checksums, own.since_step) for name, own in _read(folder / SETS_FILE).items()}


def _read(file: Path) -> dict[str, _Contents]:
    try:
        return _SETS.validate_json(read_bytes(file))
    except (OSError, ValueError):
        return {}
