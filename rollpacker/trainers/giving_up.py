"""Ending a call of the trainer between two passes, because the run leaves and repeats the step in another attempt.

Ranks that pass together wait for one another within a pass, so they stop before the same one: before each they agree
whether one of them was told. That takes one number's all-reduce, beside a pass of a second or so.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rollpacker.trainers.process_group import all_reduce

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class StepGivenUp(Exception):
    """The passes that are left are not made; what was accumulated of the step counts no more."""


class GivingUp:
    """Whether this rank was told to give its step up. It may be told from any thread, and stays so."""

    def __init__(self, device: torch.device) -> None:
        """`device` is one on which the ranks' groups reduce."""
        self._device = device
        self._is_told = threading.Event()

    def tell(self) -> None:
        """Let no further pass begin."""
        self._is_told.set()

    def check(self, group: dist.ProcessGroup | None = None) -> None:
        """Raise `StepGivenUp`, before a pass, if this rank was told; with a group on all its ranks, if one was."""
        is_told = self._is_told.is_set()
        if group is not None and group.size() > 1:
            is_told = all_reduce([is_told], "sum", self._device, group) != [0.0]
        if is_told:
            raise StepGivenUp
