"""The supervisor's channel to one runner: frames and output, read and written without blocking.

`runner` defines the frames. The other side may send anything: a frame is a letter and some bytes, and what is no frame
is the program's error.
"""

from __future__ import annotations

import marshal
import os
import re
import select
from typing import Any

from rollpacker.rewards.sandbox.bubblewrap import BubblewrapLauncher

_HEAD_BYTES = 5
"""A letter and a length."""

_PIPE_BYTES = 1 << 16

_EXIT_CODE = re.compile(rb"-?[0-9]{1,3}")
"""Of a process, or less than 0 the signal that ended it."""


class Failed(Exception):
    """The program failed a case; its text is the reason."""


class RunnerChannel:
    """The channel to one runner."""

    def __init__(self, launcher: BubblewrapLauncher, job: dict[str, Any]) -> None:
        bounds = launcher.bounds
        self.output = bytearray()
        """What the case's process wrote."""
        self._most_bytes = bounds.output_bytes
        self._reports = bytearray()
        self._num_bytes = 0
        self._sandbox = launcher.start()
        self._to_send = bytearray(self._sandbox.boot_data)
        own = {"limits": bounds.resource_limits(), "packages": bounds.packages, **self._sandbox.streams}
        kept = {name: job[name] for name in ("source", "entry_point", "has_prelude")}
        self.send("J", marshal.dumps(own | kept))

    @property
    def top_pid(self) -> int:
        return self._sandbox.top_pid

    def begin(self) -> None:
        """The runner has started, and no program has."""
        self._sandbox.begin()

    def kernel_bytes(self) -> int:
        return self._sandbox.kernel_bytes()

    def send(self, letter: str, body: bytes) -> None:
        """Queue a frame; a new case resets the count of bytes."""
        if letter == "K":
            self.output.clear()
            self._num_bytes = 0
        self._to_send += letter.encode() + len(body).to_bytes(4, "big") + body

    def register(self, poll: select.poll) -> None:
        poll.register(self._sandbox.output, select.POLLIN)
        poll.register(self._sandbox.reports, select.POLLIN)
        if self._to_send:
            poll.register(self._sandbox.control, select.POLLOUT)

    def next_frame(self) -> tuple[str, bytes] | None:
        reports = self._reports
        if not (end := self._frame_end()):
            return None
        frame = chr(reports[0]), bytes(reports[_HEAD_BYTES:end])
        del reports[:end]
        return frame

    def exchange(self) -> None:
        """Write and read without blocking."""
        if self._to_send:
            try:
                del self._to_send[: os.write(self._sandbox.control, self._to_send[:_PIPE_BYTES])]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self._to_send.clear()  # the end of the reports follows
        self._read_into(self.output, self._sandbox.output)
        if self._read_into(self._reports, self._sandbox.reports) == b"" and not self._frame_end():
            raise Failed("error")  # the runner is gone

    def drain(self) -> None:
        """Read what the case's process wrote before it ended."""
        while self._read_into(self.output, self._sandbox.output):
            pass

    def kill(self) -> None:
        self._sandbox.kill()

    def _frame_end(self) -> int:
        """Give the end of the first frame, 0 where it has not come whole."""
        reports = self._reports
        if len(reports) < _HEAD_BYTES:
            return 0
        end = _HEAD_BYTES + int.from_bytes(reports[1:_HEAD_BYTES], "big")
        if end > self._most_bytes:
            raise Failed("output")
        return end if end <= len(reports) else 0

    def _read_into(self, buffer: bytearray, file: int) -> bytes | None:
        """Give what was read: nothing at the end, None where there is nothing yet."""
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
        Failed: No runner sends it.
    """
    if not _EXIT_CODE.fullmatch(body):
        raise Failed("error")
    return int(body)
