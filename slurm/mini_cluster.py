"""A real Slurm cluster on one machine, for tests and experiments.

slurmctld, one slurmd per node, munge and, where asked for, slurmdbd with MariaDB: all real, started by hand, without
systemd and without touching a Slurm that the machine may already have. Each node has its own host name, /etc/hosts,
/dev/shm, /proc and process ids, and a folder that its tasks know as SLURM_TMPDIR. The nodes share the loopback and all
other files.

    partition   may take            a job in it, when `main` needs its place
    main        any time            stays
    short       5 minutes at most   stays
    low         any time            is sent back to the queue after a grace time
    lowcancel   any time            is cancelled after a grace time

Whatever ends the owner, `kill -9` included, ends every daemon and every job, and removes the cluster's folder.

As a command, from the repository's root, as root: python3 -m slurm.mini_cluster start --nodes 2
"""

import argparse
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self

from slurm.mini_configuration import (
    ClusterShape,
    Layout,
    Ports,
    gres_conf,
    hosts_file,
    slurm_conf,
    slurmdbd_conf,
    task_prolog,
)
from slurm.mini_daemons import Daemon, DaemonError, FolderKeeper, Process, start_daemon, wait_until
from slurm.mini_machine import ClusterUnavailableError, environment_of, free_ports, require_available

PREEMPTIBLE_PARTITIONS = {"REQUEUE": "low", "CANCEL": "lowcancel"}
"""The partition of preemptible jobs, by what preemption does to them."""

_START_TIMEOUT_S = 60
"""Of each daemon. All are ready within 3 s on an idle machine of two cores."""
_COMMAND_TIMEOUT_S = 120
_MAX_FIRST_JOB = 9_000_000
"""Seven digits, as on clusters that are in use; Slurm itself ends at 67 million (MaxJobId)."""
_SHORT_FOLDER = Path("/tmp")  # noqa: S108 - made by mkdtemp, and a socket's path may not be longer than 107 bytes


class MiniCluster:
    """A cluster that runs within a `with` statement."""

    def __init__(self, shape: ClusterShape | None = None) -> None:
        self.shape = shape or ClusterShape()
        self.environment: Mapping[str, str] = {}
        """The environment in which Slurm's commands find this cluster only."""
        self._services: list[Daemon] = []
        self._nodes: dict[str, Daemon] = {}
        self.num_crashes = 0
        """Of slurmd, by itself, that `reset` has found."""

    def __enter__(self) -> Self:
        require_available(self.shape)
        self._layout = Layout(root=Path(tempfile.mkdtemp(prefix="mini-", dir=_SHORT_FOLDER)))
        self._keeper = FolderKeeper(self._layout.root)
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def logs(self) -> Path:
        """The folder with the logs of all daemons."""
        return self._layout.logs

    def run(
        self,
        *command: str | Path,
        check: bool = True,
        timeout_s: float = _COMMAND_TIMEOUT_S,
        cwd: Path | None = None,
        text: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command against this cluster, `text` being its input.

        Raises:
            DaemonError: the command failed, unless `check` is false.
        """
        done = subprocess.run(
            command,
            env=self.environment,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            cwd=cwd,
        )
        if check and done.returncode:
            raise DaemonError(f"{command} ended with code {done.returncode} and said:\n{done.stdout}{done.stderr}")
        return done

    def submit(self, *options: str | Path, script: str, cwd: Path | None = None) -> str:
        """Submit a shell script by sbatch and return the job's id."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        return self.run("sbatch", "--parsable", *options, text=text, cwd=cwd).stdout.strip()

    def job(self, job_id: str) -> dict[str, str]:
        """Return what `scontrol show job` says of one job. Slurm forgets a job 300 s after its end."""
        words = self.run("scontrol", "--oneliner", "show", "job", job_id).stdout.splitlines()[0].split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_state(self, job_id: str, states: Collection[str], *, timeout_s: float = 120) -> str:
        """Wait until a job is in one of `states`, such as RUNNING or COMPLETED, and return which."""
        last = ""

        def has_come() -> bool:
            nonlocal last
            last = self.job(job_id)["JobState"]
            return last in states

        try:
            wait_until(
                has_come, what=f"job {job_id} {' or '.join(states)}", timeout_s=timeout_s, daemons=self._services
            )
        except DaemonError as error:
            raise DaemonError(f"{error}\nThe job is {last}: {self.job(job_id)}") from error
        return last

    def wait_until_idle(self, *, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait until every node is idle."""
        idle = f"idle {self.shape.nodes}"
        query = ("sinfo", "--noheader", "--partition=main", "--format=%t %D")
        wait_until(
            lambda: self.run(*query, check=False).stdout.strip() == idle,
            what="every node idle",
            timeout_s=timeout_s,
            daemons=[*self._services, *self._nodes.values()],
        )

    def processes_on(self, node: str) -> list[Process]:
        """List the processes of jobs on a node, which are all but Slurm's own, parents before children."""
        own = {"slurmd", "slurmstepd", "slurmstepd:"}  # the last one by the title that it gives itself
        return [
            process for process in self._nodes[node].descendants() if Path(process.command.split()[0]).name not in own
        ]

    def scratch(self, node: str) -> Path:
        """Return SLURM_TMPDIR of a node's tasks, in place of its own disk."""
        return self._layout.scratch(node)

    def kill_node(self, node: str) -> None:
        """Kill a node at once, with all that runs on it. Slurm detects it by itself."""
        self._nodes.pop(node).kill()

    def start_node(self, node: str) -> None:
        """Start a node, also one that died before, and wait until it listens to Slurm."""
        layout = self._layout
        for folder in (layout.spool(node), layout.scratch(node)):
            folder.mkdir(exist_ok=True)
        become_the_node = (
            f"mount --bind {layout.hosts} /etc/hosts; hostname {node}; "
            "mount -t tmpfs -o size=4g,mode=1777 tmpfs /dev/shm; "
            # bash stays as process 1, because slurmd would not collect the orphans that it is given there
            f"slurmd -D -N {node} & wait $!"
        )
        self._nodes[node] = start_daemon(
            node,
            ["bash", "-ec", become_the_node],
            environment=self.environment,
            log=layout.logs / f"{node}.out",
            own_host=True,
        )
        address = (self.shape.address(node), self._ports.nodes[self.shape.node_names.index(node)])
        wait_until(
            lambda: _is_listening(address),
            what=f"{node}'s slurmd",
            timeout_s=_START_TIMEOUT_S,
            daemons=[self._nodes[node]],
        )

    def reset(self) -> None:
        """Reset the cluster to its state at the start: no job, nothing that a job left, every node up."""
        for node in [node for node, daemon in self._nodes.items() if daemon.has_crashed]:
            self.num_crashes += 1
            self.kill_node(node)
            self.start_node(node)  # at once: Slurm has a job there until its node says that it is over
        self.run("scancel", "--user=root", "--state=PENDING")
        self.run("scancel", "--user=root", "--full", "--signal=KILL", check=False)
        self.run("scancel", "--user=root")
        wait_until(
            lambda: not self.run("squeue", "--noheader").stdout.strip(), what="no job", timeout_s=_START_TIMEOUT_S
        )
        for node in self.shape.node_names:
            if node in self._nodes and self.processes_on(node):
                self.kill_node(node)
            for left in self.scratch(node).iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            if node not in self._nodes:
                self.start_node(node)
        self.wait_until_idle()

    def _start(self) -> None:
        controller, accounting, *nodes = free_ports(2 + self.shape.nodes)
        self._ports = Ports(controller=controller, accounting=accounting, nodes=tuple(nodes))
        self._write_files()
        self.environment = environment_of(self._layout)
        self._start_munge()
        if self.shape.accounting:
            self._start_accounting()
        self._start_service("slurmctld", "-D", "-i", "-c")
        for node in self.shape.node_names:
            self.start_node(node)
        self.wait_until_idle()

    def _stop(self) -> None:
        for daemon in [*self._nodes.values(), *reversed(self._services)]:
            daemon.kill()
        self._nodes.clear()
        self._services.clear()
        self._keeper.remove()

    def _write_files(self) -> None:
        layout, shape, ports = self._layout, self.shape, self._ports
        layout.root.chmod(0o755)
        layout.private.mkdir(mode=0o700)
        for folder in ("log", "state", "spool", "dev", "private/db/mysql"):
            (layout.root / folder).mkdir(parents=True)
        null = Path(os.devnull).stat().st_rdev
        for gpu in range(shape.gpus):
            os.mknod(layout.device(gpu), 0o666 | stat.S_IFCHR, null)  # Slurm takes no ordinary file
        full_name = socket.gethostname()
        hostname = full_name.split(".")[0]
        # an earlier cluster's numbers of jobs are in the folders of runs
        first_job = f"FirstJobId={1 + secrets.randbelow(_MAX_FIRST_JOB)}\n"
        conf = slurm_conf(shape, layout=layout, ports=ports, hostname=hostname)
        (layout.root / "slurm.conf").write_text(f"{conf}{first_job}")
        (layout.root / "gres.conf").write_text(gres_conf(shape, layout=layout))
        layout.task_prolog.write_text(task_prolog(layout=layout))
        layout.task_prolog.chmod(0o755)
        layout.hosts.write_text(
            hosts_file(shape, hostnames=f"{full_name} {hostname}", own=Path("/etc/hosts").read_text())
        )
        for name, content in (
            ("slurmdbd.conf", slurmdbd_conf(layout=layout, ports=ports).encode()),
            ("private/munge.key", os.urandom(128)),
        ):
            (layout.root / name).touch(mode=0o600)
            (layout.root / name).write_bytes(content)

    def _start_munge(self) -> None:
        layout = self._layout
        self._start_service(
            "munged",
            "--foreground",
            "--force",  # the socket's folder lies in one that everybody may write to
            f"--socket={layout.munge_socket}",
            f"--key-file={layout.private}/munge.key",
            f"--seed-file={layout.private}/munge.seed",
            f"--pid-file={layout.root}/munged.pid",
            f"--log-file={layout.logs}/munged.log",
        )
        wait_until(
            layout.munge_socket.exists, what="munge's socket", timeout_s=_START_TIMEOUT_S, daemons=self._services
        )

    def _start_accounting(self) -> None:
        """Start slurmdbd and its database, which has no users and is reached only by a socket in a folder of root."""
        layout = self._layout
        self._start_service(
            "mariadbd",
            "--no-defaults",
            "--user=root",
            "--skip-grant-tables",
            "--skip-networking",
            f"--datadir={layout.private}/db",
            f"--socket={layout.database_socket}",
            f"--pid-file={layout.private}/sql.pid",
            "--innodb-stats-persistent=0",
            "--innodb-log-file-size=16M",
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-lock-wait-timeout=900",
        )
        self._wait_for(
            "mariadb", "--no-defaults", f"--socket={layout.database_socket}", "--execute=create database slurm"
        )
        self._start_service("slurmdbd", "-D")
        self._wait_for("sacctmgr", "--immediate", "add", "cluster", "mini")

    def _start_service(self, *command: str) -> None:
        """Start a daemon that knows the cluster's names: slurmctld waits 10 s for unknown ones."""
        name, layout = command[0], self._layout
        knowing_names = ["sh", "-c", f'mount --bind {layout.hosts} /etc/hosts && exec "$@"', name, *command]
        log = layout.logs / f"{name}.out"
        self._services.append(start_daemon(name, knowing_names, environment=self.environment, log=log))

    def _wait_for(self, *command: str) -> None:
        """Repeat a command until it succeeds."""
        wait_until(
            lambda: self.run(*command, check=False).returncode == 0,
            what=" ".join(command),
            timeout_s=_START_TIMEOUT_S,
            daemons=self._services,
        )


def _is_listening(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def main() -> None:
    """Run a cluster in the foreground until Ctrl-C or SIGTERM, having printed how to use it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with MiniCluster(_shape_from_arguments()) as cluster:
            print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        pass
    except (ClusterUnavailableError, DaemonError) as error:
        sys.exit(f"error: {error}")


def _shape_from_arguments() -> ClusterShape:
    """Read one option per field of the shape, such as --nodes 4 and --no-accounting."""
    parser = argparse.ArgumentParser(prog="python3 -m slurm.mini_cluster", description=__doc__.splitlines()[0])
    start = parser.add_subparsers(required=True).add_parser("start", help="start a cluster, and stop it on Ctrl-C")
    for field in fields(ClusterShape):
        option = "--" + field.name.replace("_", "-")
        if field.type is bool:
            start.add_argument(option, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            start.add_argument(option, type=int, default=field.default, metavar="N", help=f"default {field.default}")
    try:
        return ClusterShape(**vars(parser.parse_args()))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
