"""Ray on one node: `ray start --block` under a guardian, isolated from every other Ray.

It gets free ports from the operating system, the token of this attempt, a short private folder, and the resources of
the run instead of the machine's; no dashboard, no usage report. The guardian ends all of it when this process ends,
however it ends (see `guardian.py`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.ids import WorkerId
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.runtime.placing.planning import cluster_size
from rollpacker.runtime.ray.node_address import JOINABLE_LOOPBACK, LOOPBACK, free_port, node_address
from rollpacker.runtime.ray.private_folder import PrivateFolder, private_folder

_LOG_TAIL_LINES = 15
_LOG_NOISE = "[state-dump]"
"""Raylets write hundreds of such lines."""
_PINS_PER_NODE = 10_000
"""Bundles that may be pinned to a node: more than it will ever have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """One node and what Ray may use there."""

    pin: str
    """The resource that only this node has; an actor that reserves one unit of it is placed there."""
    name: str
    address: str
    num_cpus: int
    num_gpus: int
    memory_bytes: int | None
    """None where it is not limited."""
    object_store_mb: int


def pin_of(index: int) -> str:
    """Name the pin of a node of the run's own allocation."""
    return f"node-{index}"


def pin_of_worker(worker: WorkerId) -> str:
    """Name the pin of a rollout worker's node."""
    return f"elastic-{worker}"


class RayNode:
    """Starts, watches and ends Ray on this node."""

    def __init__(self, offer: NodeOffer, *, grace_s: float, folder: PrivateFolder, log: Path) -> None:
        """Prepare.

        Args:
            offer: This node.
            grace_s: How long Ray's own parts may take to start.
            folder: For Ray's session; `stop` removes it.
            log: For the output of Ray itself.
        """
        self.offer = offer
        self.log = log
        self.folder = folder.path
        self._patience_s = grace_s
        self._folder = folder
        self._guardian: subprocess.Popen[bytes] | None = None

    def start_head(self, token_file: Path) -> str:
        """Start a Ray that requires this token; returns the address at which its head will listen."""
        port = free_port(self.offer.address)
        self._start(["--head", "--no-monitor"], {"--port": port, "--include-dashboard": "false"}, token_file)
        return f"{self.offer.address}:{port}"

    def join(self, head_address: str, token_file: Path) -> None:
        """Join the Ray whose head listens at this address."""
        self._start([], {"--address": head_address}, token_file)

    @property
    def is_running(self) -> bool:
        return self._guardian is not None and self._guardian.poll() is None

    def stop(self) -> None:
        """End every process of Ray on this node and remove its folder; returns when both have happened."""
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.close()
            self._guardian.wait()
            self._guardian = None
        self._folder.remove()  # the guardian has emptied it, unless it never started

    def _start(self, flags: list[str], options: dict[str, object], token_file: Path) -> None:
        offer = self.offer
        options |= {
            "--node-ip-address": offer.address,
            "--node-name": offer.name,
            "--num-cpus": offer.num_cpus,
            "--num-gpus": offer.num_gpus,
            "--resources": json.dumps({offer.pin: _PINS_PER_NODE}),
            "--object-store-memory": offer.object_store_mb << 20,
            "--temp-dir": self._folder.sessions,
            "--dashboard-agent-listen-port": 0,
            "--include-log-monitor": "false",  # actors write logs of their own
            "--log-style": "record",
        }
        if offer.memory_bytes is not None:
            options["--memory"] = offer.memory_bytes - (offer.object_store_mb << 20)
        start = str(Path(__file__).with_name("start.py"))
        server = str(self._folder.temporary_files / "workers")
        command = [
            sys.executable,
            "-P",
            start,
            str(self._patience_s),
            server,
            "start",
            "--block",
            "--disable-usage-stats",
        ]
        command += flags
        command += [str(part) for option in options.items() for part in option]
        guardian = str(Path(__file__).with_name("guardian.py"))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._guardian = subprocess.Popen(  # noqa: S603  (our own command line)
                [sys.executable, "-S", "-E", guardian, str(self.folder), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(token_file),
                start_new_session=True,
            )

    def _environment(self, token_file: Path) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        own = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_agent_register_timeout_ms": f"{1000 * self._patience_s:.0f}",
            "RAY_worker_register_timeout_seconds": f"{self._patience_s:.0f}",
            # Ray lets the first driver in when a worker per core has started, or never, if one of them took too long
            "RAY_prestart_worker_first_driver": "0",
            "RAY_health_check_period_ms": "1000",  # by default, a node that is gone is noticed after 15 s
            "RAY_worker_niceness": "0",  # by default 15: actors starve beside whatever else a node does
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self._folder.temporary_files),
        }
        if self.offer.address == LOOPBACK:
            # Ray accepts the loopback as an address only where a cluster cannot have several nodes
            own["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            own |= {name: inherited.get(name, "lo") for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
            own["VLLM_HOST_IP"] = inherited.get("VLLM_HOST_IP", LOOPBACK)
        if self.offer.memory_bytes is not None:
            # Slurm limits the job's memory; Ray would watch the machine's, and end our actors because of other jobs
            own["RAY_memory_monitor_refresh_ms"] = "0"
        return inherited | own


def node_here(config: RunConfig, allocation: Allocation | None, log: Path, worker: WorkerId | None = None) -> RayNode:
    """Prepare this node of an allocation, or this machine alone; or as that of a rollout worker.

    One of environments offers nothing to other actors; that of a worker offers GPUs, and no core that an actor could
    stray to.
    """
    settings = config.cluster or ClusterSection(name="none")
    name, pin = allocation.name if allocation else socket.gethostname(), pin_of(allocation.rank if allocation else 0)
    size = ClusterSize(num_nodes=1, num_cpus=0, num_gpus=0)
    if worker is not None:
        name, pin = f"{allocation.node_name if allocation else name}-{worker}", pin_of_worker(worker)
        size = replace(size, num_gpus=len(allocation.gpus) if allocation else 0)
    elif allocation is None or not allocation.is_of_environments:
        size = cluster_size(config, allocation)
    num_nodes = len(allocation.node_names) if allocation else 1
    offer = NodeOffer(
        pin=pin,
        name=name,
        address=_address(config, allocation, is_alone=num_nodes == 1 and not config.elastic.is_on),
        num_cpus=size.num_cpus,
        num_gpus=size.num_gpus,
        memory_bytes=allocation.memory_bytes if allocation else None,
        object_store_mb=config.backend.object_store_mb,
    )
    folder = private_folder(settings.scratch, os.environ)
    return RayNode(offer, grace_s=config.backend.deadlines.start_s, folder=folder, log=log)


def _address(config: RunConfig, allocation: Allocation | None, *, is_alone: bool) -> str:
    """Where other nodes reach this one; `is_alone` where there will be none."""
    interface = config.cluster.network_interface if config.cluster else None
    if allocation is None and not is_alone and interface is None:
        return JOINABLE_LOOPBACK
    return node_address(allocation.node_name if allocation else socket.gethostname(), interface, is_alone=is_alone)


def log_tail(log: Path) -> str:
    """The end of a log, for a message."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return f"{log} does not exist."
    telling = [line for line in lines if line.strip() and _LOG_NOISE not in line]
    return "\n".join((f"The end of {log}:", *telling[-_LOG_TAIL_LINES:]))
