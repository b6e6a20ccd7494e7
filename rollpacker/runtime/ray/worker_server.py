"""Forks Ray's workers of one node from a process that has loaded most of what they need.

Run as a script, by path: `python -P worker_server.py LISTENER PARENT`, the descriptor of a listening socket and the
pid of who starts it; `start.py` does.

To load that takes 3 s of a core, and 8 s where Python may write no compiled files. Every engine and every rank of the
trainer would spend that by itself, and again after each death. A fork is there at once, and all workers of a node share
the memory of what was loaded. Nothing here may start a thread or touch a GPU: neither survives a fork.

The raylet starts `worker.py`, which sends its arguments, environment and output to this server, and ends after the
worker.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
"""See prctl(2)."""
_PACKAGE = Path(__file__).parents[2]
_OF_MODELS = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")
"""And torch with them."""
_OF_RAY = ("jsonschema", "pydantic.v1", "requests")
"""Not Ray itself, which reads a worker's environment when it is loaded; nor pyarrow, which starts a thread."""
_OF_RUNS = ("rollpacker.config.schema",)


def main() -> None:
    """Serve until the parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return  # it ended before it could be asked for
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers that have ended leave no zombies
    listener = socket.socket(fileno=int(sys.argv[1]))
    listener.set_inheritable(False)
    select.select([listener], [], [])  # Ray's own processes start first: they have a deadline of 15 s
    _load_libraries()
    while True:
        client, _ = listener.accept()
        try:
            arguments, environment, streams = _receive(client)
        except (OSError, ValueError):  # of one that was killed while it asked
            client.close()
            continue
        if os.fork() == 0:
            listener.close()
            _work(arguments, environment, streams)
            return  # the client's end is closed with this process
        for stream in streams:
            os.close(stream)
        client.close()


def _load_libraries() -> None:
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # who asks whether GPUs are there does not touch them
    gc.disable()  # they make a million objects that stay
    sys.path.insert(0, str(_PACKAGE.parent))  # the one that this run is of, whatever else is installed
    for name in (*_OF_MODELS, *_OF_RAY, *_OF_RUNS):
        with suppress(ImportError):
            importlib.import_module(name)
    del sys.path[0]
    gc.enable()
    gc.freeze()


def _receive(client: socket.socket) -> tuple[list[str], dict[str, str], list[int]]:
    first, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile("rb") as file:
        message = json.loads(first + file.read())
    return message["arguments"], message["environment"], streams


def _work(arguments: list[str], environment: dict[str, str], streams: list[int]) -> None:
    """Become what Python would have become with these arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
