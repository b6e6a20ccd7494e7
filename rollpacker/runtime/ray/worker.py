"""What a raylet starts as a worker: asks the server of this node for a forked one, and ends when that has ended.

Run as a script, by path: `python worker.py SCRIPT ARG ...`, Ray's own script and its arguments. Without the server it
becomes that script itself, in the time that its imports take.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys

_OF_RAYS_SETUP = ("--language=", "--serialized-runtime-env-context=")
"""What Ray's own `setup_worker.py` would read and leave out; no actor of ours has a runtime environment."""
_FLAGS = ("-s", "-S")
"""Of Python, which Ray repeats ahead of the script where PYTHONNOUSERSITE is set, as in a container."""


def main() -> None:
    """Be the worker, or stand for it."""
    words = [word for word in sys.argv[1:] if not word.startswith(_OF_RAYS_SETUP)]
    arguments = list(itertools.dropwhile(_FLAGS.__contains__, words))
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(os.environ["ROLLPACKER_WORKER_SERVER"])
        except OSError:
            os.execv(sys.executable, [sys.executable, *words])  # noqa: S606  (our own interpreter)
        message = json.dumps({"arguments": arguments, "environment": dict(os.environ)}).encode()
        socket.send_fds(server, [message[:1]], [0, 1, 2])
        server.sendall(message[1:])
        server.shutdown(socket.SHUT_WR)
        server.recv(1)


if __name__ == "__main__":
    main()
