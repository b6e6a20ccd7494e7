"""The talk of the keeper with one runner: frames and output, never waited for.

Frames are those of `inside`. What the other side says may be anything: a frame is a letter and some bytes, and what
does not fit is the program's error.
"""

from __future__ import annotations

import marshal
import os
import re
import select
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollpacker.rewards.sandbox.bubblewrap import BubblewrapLauncher

_HEAD_BYTES = 5
"""A letter and a length."""

_PIPE_BYTES = 1 << 16

_EXIT_CODE = re.compile(rb"-?[0-9]{1,3}")
"""Of a process, or less than 0 the signal that ended it."""


class Failed(Exception):
    """The program failed a case; says why in a word."""


class Talk:
    """The talk with one runner."""

    def __init__(self, enclosure: BubblewrapLauncher, job: dict[str, Any]) -> None:
        bounds = enclosure.bounds
        self.output = bytearray()
        """What the case's process wrote."""
        self._most_bytes = bounds.output_bytes
        self._reports = bytearray()
        self._num_bytes = 0
        self._enclosed = enclosure.start()
        self._to_send = bytearray(self._enclosed.first_words)
        own = {"limits": bounds.resource_limits(), "packages": bounds.packages, **self._enclosed.streams}
        kept = {name: job[name] for name in ("source", "entry_point", "has_prelude")}
        self.tell("J", marshal.dumps(own | kept))

    @property
    def top_pid(self) -> int:
        return self._enclosed.top_pid

    def begin(self) -> None:
        """The runner has started, and no program has."""
        self._enclosed.begin()

    def held_bytes(self) -> int:
        return self._enclosed.held_bytes()

    def tell(self, letter: str, body: bytes) -> None:
        """Send a frame as soon as the runner takes it; a new case begins to count its bytes."""
        if letter == "K":
            self.output.clear()
            self._num_bytes = 0
        self._to_send += letter.encode() + len(body).to_bytes(4, "big") + body

    def register(self, poll: select.poll) -> None:
        poll.register(self._enclosed.output, select.POLLIN)
        poll.register(self._enclosed.reports, select.POLLIN)
        if self._to_send:
            poll.register(self._enclosed.control, select.POLLOUT)

    def take_frame(self) -> tuple[str, bytes] | None:
        reports = self._reports
        if len(reports) < _HEAD_BYTES:
            return None
        end = _HEAD_BYTES + int.from_bytes(reports[1:_HEAD_BYTES], "big")
        if end > self._most_bytes:
            raise Failed("output")
        if len(reports) < end:
            return None
        frame = chr(reports[0]), bytes(reports[_HEAD_BYTES:end])
        del reports[:end]
        return frame

    def exchange(self) -> None:
        """Write and read what can be without waiting."""
        if self._to_send:
            try:
                del self._to_send[: os.write(self._enclosed.control, self._to_send[:_PIPE_BYTES])]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self._to_send.clear()  # the end of the reports says what it means
        self._read_into(self.output, self._enclosed.output)
        if self._read_into(self._reports, self._enclosed.reports) == b"" and not self._reports:
            raise Failed("error")  # the runner is gone

    def drain(self) -> None:
        """Read what the case's process wrote before it ended."""
        while self._read_into(self.output, self._enclosed.output):
            pass

    def kill(self) -> None:
        self._enclosed.kill()

    def _read_into(self, buffer: bytearray, file: int) -> bytes | None:
        """Give what was read; nothing at the end, None where nothing is there yet."""
        try:
            part = os.read(file, _PIPE_BYTES)
        except BlockingIOError:
            return None
        buffer += part
        self._num_bytes += len(part)
        if self._num_bytes > self._most_bytes:
            raise Failed("output")
        return part


def exit_code(body: bytes) -> int:
    """Read the body of a frame `E`.

    Raises:
        Failed: No runner sends such a one.
    """
    if not _EXIT_CODE.fullmatch(body):
        raise Failed("error")
    return int(body)
