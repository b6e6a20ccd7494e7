"""One local Ray per run: started with it, ended with it, never met by another run.

Free ports from the operating system, a token of this process's own, a short private folder (an AF_UNIX path holds 107
bytes), no dashboard, no usage report, and a guardian that ends it all when this process ends (see `guardian.py`).
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from rollpacker.core.errors import WorldError
from rollpacker.runtime.blocking import in_daemon_thread

_MEBIBYTE = 1 << 20
_POLL_S = 0.05
_LOG_TAIL_CHARS = 2000

_RAY_START = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; sys.exit(main())"
"""The `ray` command of this interpreter, whatever PATH says."""


class RayCluster:
    """`async with RayCluster(...)`: inside, `ray` is connected; outside, nothing of it is left."""

    def __init__(
        self, *, num_cpus: int, num_gpus: int, object_store_mb: int, log: Path, start_deadline_s: float
    ) -> None:
        self._num_cpus = num_cpus
        self._num_gpus = num_gpus
        self._object_store_mb = object_store_mb
        self._log = log
        self._start_deadline_s = start_deadline_s
        self._guardian: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        try:
            await in_daemon_thread(self._start)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def _start(self) -> None:
        deadline = time.monotonic() + self._start_deadline_s
        temp_dir = Path(tempfile.mkdtemp(prefix="rollpacker-", dir="/tmp"))
        token_file = temp_dir / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(32))
        port = _free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "PYTHONUNBUFFERED": "1",
        }
        options = {
            "--node-ip-address": "127.0.0.1",
            "--port": port,
            "--num-cpus": self._num_cpus,
            "--num-gpus": self._num_gpus,
            "--object-store-memory": self._object_store_mb * _MEBIBYTE,
            "--temp-dir": temp_dir / "ray",
            "--dashboard-agent-listen-port": 0,
            "--include-dashboard": "false",
            "--include-log-monitor": "false",  # actors write logs of their own
            "--log-style": "record",
        }
        if find_spec("grpc"):  # then Ray starts its client server, by default on a port that others may have
            options["--ray-client-server-port"] = _free_port()
        command = [sys.executable, "-c", _RAY_START, "start", "--head", "--block", "--disable-usage-stats"]
        command += ["--no-monitor", *(str(part) for option in options.items() for part in option)]
        guardian = str(Path(__file__).with_name("guardian.py"))
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._guardian = subprocess.Popen(  # noqa: S603  (our own command line)
                [sys.executable, "-S", "-E", guardian, str(temp_dir), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._wait_for_port(port, deadline)
        self._connect(port, token_file)

    def _wait_for_port(self, port: int, deadline: float) -> None:
        assert self._guardian is not None
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                pass
            else:
                return
            if self._guardian.poll() is not None or time.monotonic() > deadline:
                tail = self._log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
                raise WorldError(
                    f"Ray did not start within {self._start_deadline_s:g} s.",
                    f"The end of {self._log}:\n{tail}",
                    "Is there room in /tmp and in /dev/shm? backend.deadlines.start_s gives it more time.",
                )
            time.sleep(_POLL_S)

    def _connect(self, port: int, token_file: Path) -> None:
        import ray

        _authenticate(token_file)
        try:
            ray.init(address=f"127.0.0.1:{port}", logging_level="ERROR", log_to_driver=False)
        except ConnectionError as error:
            raise WorldError(
                f"Ray started but did not let this process in: {error}",
                f"Its log is {self._log}.",
                "Is the machine overloaded or out of memory? Start the run again with run.resume=auto.",
            ) from error

    async def _stop(self) -> None:
        import ray

        if ray.is_initialized():  # not so while it still connects: that ends with the cluster
            await in_daemon_thread(ray.shutdown)
        _authenticate(None)
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.close()
            await in_daemon_thread(self._guardian.wait)
            self._guardian = None


def _authenticate(token_file: Path | None) -> None:
    """Have this process use a cluster's token, or none.

    Ray keeps what it once read of these variables, so it is told to read them again; there is no public call for it
    (Ray 2.60: `ray._private.authentication_test_utils` does the same).
    """
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # its stub lacks both

    if token_file is None:
        os.environ.pop("RAY_AUTH_MODE", None)
        os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
    else:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token_file)
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
