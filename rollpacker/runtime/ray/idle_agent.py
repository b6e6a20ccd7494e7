"""Stands in for an agent of Ray, without which a raylet does not go on: does nothing, and ends with the raylet.

Run as a script, by path, with arguments that mean nothing here.
"""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
"""See prctl(2)."""

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pause()
