"""What the driver tells the run of: events and commands, progress, and groups that may be trained."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollpacker.core.commands import Command
from rollpacker.core.events import Event
from rollpacker.runtime.rollout.batch import Batch

OnEvent = Callable[[Event, float, tuple[Command, ...]], None]
"""Told of every event with its time and the commands that followed: the event log."""

OnProgress = Callable[[int, int], None]
"""Told of groups accepted and groups needed."""

OnStream = Callable[[Batch, frozenset[int] | None, int | None], None]
"""Told of the round whose accepted groups the trainer may train from now on, on which of the GPUs that it shares with
engines, None where it shares none, and how many groups at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The callbacks of a run."""

    on_event: OnEvent
    on_progress: OnProgress
    on_stream: OnStream
    on_reclaim: Callable[[], Awaitable[None]]
    """Awaited until the trainer has left the GPUs that are lent to it; the step that it is in goes on later."""
    note: Callable[[str], None]
    """Tells a person something."""
