"""The `ray` command of this interpreter, whatever PATH says, with what Ray 2.60 has no settings for.

Run as a script, by path: `python -P start.py PATIENCE_S SOCKET ARG ...`, where the arguments are those of `ray`.

It hides grpc: with it Ray would start the unused server for Ray's client, which takes a second of a core and a fixed
port. It hides the groups of other commands, which take 0.7 s to load, and starts no API server, which takes another
second even without a dashboard. It waits `PATIENCE_S` for its raylet: Ray waits 30 s, too short on a busy machine; for
a part that has died it waits as long as Ray itself. In place of its two agents, which would load libraries for a second
of a core and serve nothing, the raylet has idle processes, and the ports that an agent would have told it. And Ray's
workers here are forked by `worker_server.py`, which listens at SOCKET.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_RAYS_OWN_PATIENCE_S = 30.0
_HIDDEN = ("grpc", "ray.util.state.state_cli", "ray.dashboard.modules.job.cli", "ray.serve.scripts")
_AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
"""Of metrics and job submission, and of environments of actors that differ from their node's."""
_NO_PORT = -1
_HERE = Path(__file__).parent


def main() -> None:
    """Start Ray, and stay with it."""
    began, patience_s = time.monotonic(), float(sys.argv[1])
    _start_worker_server(sys.argv[2])
    sys.argv = ["ray", *sys.argv[3:]]
    sys.modules.update(dict.fromkeys(_HIDDEN))  # type: ignore[arg-type]  # None: not to be had
    from ray import _raylet
    from ray._private import services
    from ray._private.parameter import RayParams
    from ray.scripts import scripts

    get_node = services.get_node

    def get_node_patiently(*arguments: Any) -> Any:
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                waited_s = time.monotonic() - began
                if waited_s > patience_s or (waited_s > _RAYS_OWN_PATIENCE_S and _a_child_has_died()):
                    raise
                time.sleep(0.1)

    start_raylet = services.start_raylet

    def start_raylet_with_ports(*arguments: Any, **settings: Any) -> Any:
        given = inspect.signature(start_raylet).bind(*arguments, **settings).arguments
        for name in ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN", "RUNTIME_ENV_AGENT"):
            port_name = getattr(_raylet, f"{name}_PORT_NAME")
            _raylet.persist_port(given["session_dir"], given["node_id"], port_name, _NO_PORT)  # type: ignore[attr-defined]  # its stub lacks it
        return start_raylet(*arguments, **settings)

    start_ray_process = services.start_ray_process

    def start_without_agents(command: list[str], *arguments: Any, **settings: Any) -> Any:
        return start_ray_process([_with_idle_agent(word) for word in command], *arguments, **settings)

    services.start_ray_process = start_without_agents
    services.get_node = get_node_patiently
    services.start_raylet = start_raylet_with_ports
    services.start_api_server = lambda *_, **__: (None, None)
    worker = functools.partialmethod(RayParams.__init__, setup_worker_path=str(_HERE / "worker.py"))
    RayParams.__init__ = worker
    scripts.main()


def _with_idle_agent(word: str) -> str:
    """A word of a raylet's command line; where it says what an agent is, an idle one."""
    name = word.partition("=")[0]
    idle = subprocess.list2cmdline([sys.executable, "-S", "-E", str(_HERE / "idle_agent.py")])
    return f"{name}={idle}" if name in _AGENTS else word


def _start_worker_server(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()  # from here on who asks for a worker waits for the server's imports
        command = [sys.executable, "-P", str(_HERE / "worker_server.py"), str(listener.fileno()), str(os.getpid())]
        subprocess.Popen(command, pass_fds=[listener.fileno()])  # noqa: S603  (our own script)
    os.environ["ROLLPACKER_WORKER_SERVER"] = path


def _a_child_has_died() -> bool:
    return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


if __name__ == "__main__":
    main()
