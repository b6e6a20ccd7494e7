"""The requirements of a mini cluster: programs, permissions, ports, and an environment without any other Slurm."""

import os
import random
import shutil
import socket
import subprocess

from slurm.mini_configuration import ClusterShape, Layout

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "setpriv", "unshare", "mount", "hostname")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb")
_FIRST_PORT, _LAST_PORT = 10_000, 32_000
"""Below the ports that Linux gives to outgoing connections, which could take one before its daemon does."""


class ClusterUnavailableError(RuntimeError):
    """This machine, or this user, cannot run a mini cluster."""


def require_available(shape: ClusterShape) -> None:
    """Raise ClusterUnavailableError, saying why, if a cluster of this shape cannot run here."""
    programs = _PROGRAMS + (_ACCOUNTING_PROGRAMS if shape.accounting else ())
    if missing := [program for program in programs if shutil.which(program, path=search_path()) is None]:
        raise ClusterUnavailableError(
            f"This machine has no {', '.join(missing)}. A mini cluster runs Slurm's real daemons. "
            "Install them, on Debian or Ubuntu: slurm/install_packages.sh"
        )
    if os.geteuid() != 0:
        raise ClusterUnavailableError(
            f"This is user {os.geteuid()}. A mini cluster makes namespaces and device files, which only root may. "
            "Run it as root, for example with sudo, or in a container that allows root to make namespaces."
        )
    attempt = ["unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "true"]
    if (refused := subprocess.run(attempt, capture_output=True, text=True, check=False)).returncode:
        raise ClusterUnavailableError(
            f"This root may not make namespaces ({refused.stderr.strip()}). Each node of a mini cluster lives in some. "
            "Give the container the capability SYS_ADMIN, or run on the machine itself."
        )


def environment_of(layout: Layout) -> dict[str, str]:
    """Return this process's environment, where Slurm's variables are all about the mini cluster."""
    about_slurm = ("SLURM", "SRUN_", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "MUNGE_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(about_slurm)}
    return own | {
        "PATH": search_path(),
        "SLURM_CONF": str(layout.configuration),
        "MYSQL_UNIX_PORT": str(layout.database_socket),
    }


def free_ports(count: int) -> list[int]:
    """Choose free ports at random, so that clusters that start together choose different ones."""
    ports: list[int] = []
    chance = random.SystemRandom()  # tests seed the other generator, which would give the same ports again
    while len(ports) < count:
        port = chance.randint(_FIRST_PORT, _LAST_PORT)
        if port not in ports and _is_free(port):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def search_path() -> str:
    """Return where programs are, the daemons' folders included, which the path of an ordinary user lacks."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
