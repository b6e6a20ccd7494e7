"""Past failures as files: an event log that a scheduler once handled wrongly, or a world that once did not hold.

    <name>.jsonl   the settings and what was found, then one event per line: fed to a fresh scheduler
    <name>.json    a world: run from its beginning to its end

The events of a log followed from the orders of a scheduler with a defect, and a right one may order otherwise. So a
right scheduler may refuse an event as impossible, but for the last one; what it takes must hold.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import Event
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings
from rollpacker.metrics.codec import UnionCodec, from_plain, to_plain
from rollpacker.metrics.files import write_atomically
from tests.fuzz.naming import rule_of
from tests.fuzz.oracle.models import model_of
from tests.fuzz.session import run_world
from tests.fuzz.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REPLAY_VERSION = 1
"""Grows when the form of these files changes."""

_EVENTS: UnionCodec[Event] = UnionCodec(Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a scheduler was told, and when."""

    settings: SchedulerSettings
    events: tuple[tuple[float, Event], ...]


def rule_broken_by(told: Told) -> str | None:
    """Feed events to a fresh scheduler; gives the first rule that does not hold, None when all do."""
    scheduler, reference = Scheduler(told.settings), model_of(told.settings)
    for number, (now, event) in enumerate(told.events, start=1):
        try:
            commands = scheduler.handle(event, now)
        except ImpossibleEvent as error:
            if number == len(told.events):
                return rule_of(error)
            continue
        except Exception as error:  # noqa: BLE001 - a machine that raises anything else is what we are looking for
            return rule_of(error)
        try:
            scheduler.check()
            reference.note(event, commands, scheduler.waiting)
        except (InvariantViolated, AssertionError) as error:
            return rule_of(error)
        except LookupError:
            return None  # the reference was told what cannot be: events were left out that it needs
    return None


def save_events(told: Told, path: Path, *, rule: str, seed: int) -> None:
    """Write an event log as a replay test."""
    header = {
        "replay_version": REPLAY_VERSION,
        "settings": to_plain(told.settings),
        "found": {"seed": seed, "rule": rule},
    }
    lines = [json.dumps(header, separators=(",", ":"))]
    lines += (f'{{"now":{now!r},"event":{_EVENTS.encode(event)}}}' for now, event in told.events)
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def load_events(path: Path) -> Told:
    """Read what `save_events` wrote."""
    header, *lines = map(json.loads, path.read_text().splitlines())
    return Told(
        settings=from_plain(SchedulerSettings, header["settings"]),
        events=tuple((line["now"], _EVENTS.decode(line["event"])) for line in lines),
    )


def save_world(world: World, path: Path, *, rule: str, seed: int) -> None:
    """Write a world as a replay test."""
    plain = {
        "replay_version": REPLAY_VERSION,
        "found": {"seed": seed, "rule": rule},
        "world": world.to_plain(),
    }
    write_atomically(path, (json.dumps(plain, indent=1) + "\n").encode())


def load_world(path: Path) -> World:
    """Read what `save_world` wrote."""
    return World.from_plain(json.loads(path.read_text())["world"])


def rule_broken_in(path: Path, scratch: Path) -> str | None:
    """Replay one file of either kind; gives the rule that does not hold, None when all do.

    Args:
        path: The file.
        scratch: An empty folder.
    """
    if path.suffix == ".jsonl":
        return rule_broken_by(load_events(path))
    violation = run_world(load_world(path), scratch).violation
    return None if violation is None else f"{violation.rule}\n{violation.message}"


def without_each(items: Sequence[object]) -> list[list[int]]:
    """Which indices to keep, to leave out large parts first: halves, quarters, and at last single items."""
    keeps: list[list[int]] = []
    size = len(items) // 2
    while size:
        starts = range(0, len(items), size)
        keeps += [[index for index in range(len(items)) if not start <= index < start + size] for start in starts]
        size //= 2
    if len(items) == 1:
        keeps.append([])
    return keeps
