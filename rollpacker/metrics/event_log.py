"""The event log of one attempt: every event that the scheduler was given, and the commands that it returned.

    <run.dir>/events/attempt-000.jsonl, attempt-001.jsonl after the first resume, ...
    {"schema_version": 4, "settings": {...}, "snapshot": null}                                    the first line
    {"seq": 0, "now": 0.5, "event": {"type": "EngineJoined", ...}, "commands": [...]}             one line per event

Invariant: the settings, the snapshot and the events of a log are all that is needed to make the same commands again,
on any machine (`rollpacker.runtime.rollout.replay`). The file is a prefix of what happened: lines are written in order,
so a kill can cost the last ones, and can tear only the very last.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from rollpacker.core.commands import Command
from rollpacker.core.errors import DataError, UserError
from rollpacker.core.events import Event
from rollpacker.core.settings import SchedulerSettings
from rollpacker.metrics.codec import UnionCodec, encode, from_plain
from rollpacker.metrics.files import storage_errors, write_atomically
from rollpacker.paths import open_to_read, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

EVENT_LOG_VERSION = 4
"""Grows when a line's form changes, or an event or command so that old lines cannot be read."""

EVENTS_FOLDER = "events"
"""Below the run directory."""

FLUSH_BYTES = 1 << 20
"""Lines wait in memory until there is 1 MiB of them or `flush` is called: one write per step, not per event."""

_EVENTS: UnionCodec[Event] = UnionCodec(Event)
_COMMANDS: UnionCodec[Command] = UnionCodec(Command)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One event and what came of it."""

    seq: int
    """From 0, without gap."""
    now: float
    """Seconds since the run began, as the scheduler was given it."""
    event: Event
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog:
    """One attempt."""

    settings: SchedulerSettings
    snapshot: dict[str, Any] | None
    """The scheduler's state at the start of the attempt; None at the start of a run."""
    records: tuple[LogRecord, ...]


class EventLogWriter:
    """Appends to the log of one attempt."""

    def __init__(self, path: Path, settings: SchedulerSettings, snapshot: dict[str, Any] | None) -> None:
        """Start the log at `path`, with its first line on disk when the call returns."""
        self._path = path
        self._lines: list[str] = []
        self._num_waiting_bytes = 0
        self._seq = 0
        state = json.dumps(snapshot, separators=(",", ":"))
        header = f'{{"schema_version":{EVENT_LOG_VERSION},"settings":{encode(settings)},"snapshot":{state}}}'
        first_line = f"{header}\n".encode()
        write_atomically(path, first_line)
        self._num_bytes = len(first_line)
        with storage_errors(path):
            self._file = path.open("ab", buffering=0)

    def append(self, event: Event, now: float, commands: Sequence[Command]) -> None:
        """Add one line; it is on disk after the next `flush`, or earlier."""
        orders = ",".join(map(_COMMANDS.encode, commands))
        line = f'{{"seq":{self._seq},"now":{now!r},"event":{_EVENTS.encode(event)},"commands":[{orders}]}}'
        self._seq += 1
        self._lines.append(line)
        self._num_waiting_bytes += len(line)
        if self._num_waiting_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits. After `StorageFailed` the file ends with a whole line, and the next call tries again."""
        if not self._lines:
            return
        data = memoryview(("\n".join(self._lines) + "\n").encode())
        with storage_errors(self._path):
            try:
                num_written = 0
                while num_written < len(data):
                    num_written += self._file.write(data[num_written:]) or 0
            except OSError:
                os.ftruncate(self._file.fileno(), self._num_bytes)
                raise
        self._num_bytes += len(data)
        self._lines.clear()
        self._num_waiting_bytes = 0

    def close(self) -> None:
        """Write what waits and close the file, also when writing fails."""
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            self._file.close()


def attempt_path(run_dir: Path, attempt: int) -> Path:
    """Return where the log of an attempt lies; attempts count from 0."""
    return run_dir / EVENTS_FOLDER / f"attempt-{attempt:03d}.jsonl"


def attempt_paths(run_dir: Path) -> tuple[Path, ...]:
    """Return the logs that a run has, in the order of its attempts; files of other names, such as copies, are none."""
    found = (run_dir / EVENTS_FOLDER).glob("attempt-*.jsonl")
    logs = (path for path in found if path.stem.removeprefix("attempt-").isdecimal())
    return tuple(sorted(logs, key=lambda path: (len(path.name), path.name)))


def read_event_log(path: Path) -> EventLog:
    """Read the log of one attempt, finished or not.

    Raises:
        DataError: It is missing or empty, written by another version, or a line is broken; the message has its number.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    first_line, *lines, _ = data.split(b"\n") if b"\n" in data else (data, b"")  # a kill may have cut the last one
    settings, snapshot = _parse_header(path, first_line)
    records = []
    for number, line in enumerate(lines, start=2):
        try:
            records.append(_parse_record(line, seq=number - 2))
        except ValueError as error:
            raise _broken_line(path, number, error) from error
    return EventLog(settings=settings, snapshot=snapshot, records=tuple(records))


def scan_event_log(path: Path, types: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Give the first and last line behind the header, and each with an event or command of some types, as plain JSON.

    Reads line by line, so that a long log costs no memory; a torn last line is left out. Every line is checked, also
    those that are not given: a log with a missing or broken part proves nothing.

    Raises:
        DataError: As `read_event_log` does, but for the fields of events and commands in lines that are not given.
    """
    wanted = re.compile(f'"type":"(?:{"|".join(types)})"'.encode())
    try:
        file = open_to_read(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        _parse_header(path, file.readline())
        plain: Any = None
        is_given = True
        for seq, line in enumerate(file):
            if not line.endswith(b"\n"):
                break
            try:
                plain = from_json(line)  # several times as fast as json's
                is_given = seq == 0 or wanted.search(line) is not None
                (_decode if is_given else _check_record)(plain, seq)
            except ValueError as error:
                raise _broken_line(path, seq + 2, error) from error
            if is_given:
                yield plain
        if not is_given:
            yield plain


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{path} cannot be read: {error.strerror}",
        f"The log of an attempt is a file <run.dir>/{EVENTS_FOLDER}/attempt-000.jsonl",
        "Check the path",
    )


def _parse_header(path: Path, line: bytes) -> tuple[SchedulerSettings, dict[str, Any] | None]:
    try:
        header = from_json(line)
        version = int(header["schema_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise _broken_line(path, 1, error) from error
    if version != EVENT_LOG_VERSION:
        raise DataError(
            f"{path} is an event log of version {version}",
            f"This rollpacker reads version {EVENT_LOG_VERSION}",
            "Use the rollpacker that wrote it",
        )
    try:
        return from_plain(SchedulerSettings, header["settings"]), header["snapshot"]
    except (ValueError, KeyError, TypeError, UserError) as error:
        raise _broken_line(path, 1, error) from error


def _parse_record(line: bytes, seq: int) -> LogRecord:
    return _decode(from_json(line), seq)


def _decode(plain: Any, seq: int) -> LogRecord:
    _check_record(plain, seq)
    commands = tuple(map(_COMMANDS.decode, plain["commands"]))
    return LogRecord(seq=seq, now=float(plain["now"]), event=_EVENTS.decode(plain["event"]), commands=commands)


def _check_record(plain: Any, seq: int) -> None:
    """Raise ValueError where a line is not the one of this number, or holds what no version has written."""
    if not isinstance(plain, dict) or plain.keys() != {"seq", "now", "event", "commands"}:
        raise ValueError("it is no object with seq, now, event and commands")
    if plain["seq"] != seq:
        raise ValueError(f"seq is {plain['seq']!r}, not {seq}")
    if type(plain["now"]) not in {int, float} or not isinstance(plain["commands"], list):
        raise ValueError("now is no number, or commands is no array")
    _EVENTS.check_type(plain["event"])
    for command in plain["commands"]:
        _COMMANDS.check_type(command)


def _broken_line(path: Path, number: int, error: Exception) -> DataError:
    return DataError(
        f"{path}, line {number} is broken: {error}",
        "Each line is one JSON object as the run wrote it; only the last line may be cut, by a kill",
        "Copy the file again from where the run wrote it",
    )
