"""What is left of a mini cluster."""

from pathlib import Path

from slurm.mini_daemons import wait_until


def require_nothing_left(folder: Path) -> None:
    """Wait until neither a cluster's folder nor a process that knows it is there, which the end of its owner brings."""
    wait_until(lambda: not folder.exists(), what="the folder's removal", timeout_s=120)
    wait_until(lambda: not processes_that_mention(folder), what="the end of every process", timeout_s=120)


def processes_that_mention(folder: Path) -> list[int]:
    """List the processes whose command or environment names a folder: all of a cluster's daemons and jobs do."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:  # it has just ended
            continue
        if str(folder).encode() in said:
            found.append(int(process.name))
    return found
