"""Preemption: whether others may take the nodes of a job, in which way, and how long after the first signal.

    PreemptType=preempt/partition_prio     as the partition of the job says
    PreemptType=preempt/qos                as the QOS of the job says, which accounting tells; not as the partition says

Source: Slurm's preempt_partition_prio.c and preempt_qos.c. Nothing is guessed: a QOS that is not known has no grace
time. Pure but for `read_qos`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import WorldError
from rollpacker.launch.site import Partition, Site
from rollpacker.launch.slurm_commands import ask_slurm

_FIELDS = "Name,GraceTime,PreemptMode,Preempt"
_ROW = re.compile(r"^([^|\n]+)\|(?:(\d+)-)?(\d+):(\d+):(\d+)\|([^|\n]*)\|([^|\n]*)$", re.MULTILINE)
"""These fields, with a time of [days-]hours:minutes:seconds."""

_NO_MODES = frozenset({"GANG", "PRIORITY", "WITHIN"})
"""Words in a PreemptMode that say which jobs are preempted, or that they take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service."""

    grace_time_s: int
    """Between the first signal of a preemption and the kill."""
    preempt_modes: frozenset[str]
    """What happens to its jobs; CLUSTER: what the cluster's PreemptMode says."""
    preempted: frozenset[str]
    """The names of those whose jobs make room for its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """How a job loses its nodes."""

    jobs: str
    """Which jobs: a partition's, or those with a QOS."""
    mode: str
    """REQUEUE, CANCEL or SUSPEND, or why it is not known."""
    grace_s: int | None
    """Between the first signal and the kill; None where it is not known."""

    @property
    def is_in_place(self) -> bool:
        """Whether a job is stopped, and keeps what it holds."""
        return self.grace_s is not None and self.mode not in {"REQUEUE", "CANCEL"}

    def after(self, signal: str) -> str:
        """Say what its jobs lose, and how long after this signal."""
        time = "some time" if self.grace_s is None else f"{self.grace_s} s"
        return f"jobs of {self.jobs} lose their nodes ({self.mode}) {time} after SIG{signal}"


def notice_of(site: Site, cluster: ClusterSection) -> tuple[str, bool]:
    """The signal that precedes a preemption, and whether it ends the mount of the job's image, one that is one file."""
    signal, image = cluster.signal if site.signals_before_preempting else "TERM", cluster.container.image
    return signal, signal == "TERM" and image is not None and not image.is_dir()


def preempts_by_qos(site: Site) -> bool:
    """Whether the QOS of a job decides, and not its partition."""
    return site.settings.get("PreemptType", "").removeprefix("preempt/") == "qos"


def read_qos(site: Site) -> Mapping[str, Qos]:
    """Ask accounting for all QOS, by their names; none where it does not answer, or where the partition decides."""
    if not preempts_by_qos(site):
        return {}
    try:
        return parse_qos(ask_slurm("sacctmgr", "--noheader", "--parsable2", "show", "qos", f"format={_FIELDS}"))
    except WorldError:
        return {}


def parse_qos(text: str) -> Mapping[str, Qos]:
    """Parse the fields of `sacctmgr --parsable2 show qos`."""
    return {
        name.lower(): Qos(
            grace_time_s=((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds),
            preempt_modes=frozenset(mode.upper().split(",")),
            preempted=frozenset(preempted.lower().split(",")),
        )
        for name, days, hours, minutes, seconds, mode, preempted in _ROW.findall(text)
    }


def preemption_of(site: Site, partition: Partition, qos: Mapping[str, Qos], name: str | None) -> Preemption | None:
    """How jobs of a partition lose their nodes; None where they keep them.

    Args:
        site: The cluster.
        partition: Of the job.
        qos: What accounting tells; empty where it tells nothing.
        name: The QOS of the job; None where it is not known.
    """
    if not preempts_by_qos(site):
        if not site.may_preempt(partition):
            return None
        return Preemption(jobs=partition.name, mode=partition.preempt_mode, grace_s=partition.grace_time_s)
    clusters = frozenset(site.settings.get("PreemptMode", "").upper().split(","))
    if "OFF" in clusters:
        return None
    own = qos.get(name.lower()) if name is not None else None
    if own is None:
        unknown = "of which sacctmgr says nothing" if name is not None or not qos else "which no key names"
        return Preemption(jobs=partition.name, mode=f"as their QOS says, {unknown}", grace_s=None)
    assert name is not None
    modes = clusters if "CLUSTER" in own.preempt_modes else own.preempt_modes
    if not any(name.lower() in other.preempted for other in qos.values()) and "WITHIN" not in clusters | modes:
        return None
    mode = ",".join(sorted((modes - _NO_MODES) or (clusters - _NO_MODES)))
    return Preemption(jobs=f"{partition.name} with qos={name}", mode=mode, grace_s=own.grace_time_s)
