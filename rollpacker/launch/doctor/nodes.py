"""Checks of the nodes of an allocation: the same files, the same time, and the limits of each.

One task per node is started within the allocation, beside what runs there.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from rollpacker.launch.doctor.files import TRIAL_PREFIX
from rollpacker.launch.doctor.findings import Finding, fine, problem, warning
from rollpacker.launch.doctor.node import check_gpus, check_limits
from rollpacker.launch.doctor.node_report import PROOF, NodeReport
from rollpacker.launch.file_systems import existing_part
from rollpacker.processes.programs import run_program

_DEADLINE_S = 120.0
"""Python starts slowly on a cold shared file system."""

_LARGEST_SKEW_S = 2.0
"""Between nodes; a time service keeps them within milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSeen:
    """The reports of the nodes."""

    num_nodes: int
    """Of the allocation."""
    reports: tuple[NodeReport, ...]
    proof: str
    """The content that each should have read; empty where none could be written, of which the check of files tells."""
    asked_at: float
    answered_at: float
    """By this machine's clock, in seconds since the epoch."""
    complaint: str
    """The error of srun; empty without one."""


def ask_nodes(run_dir: Path, num_nodes: int) -> NodesSeen:
    """Start one task on each node of the allocation that this process is in."""
    folder, proof = _write_proof(existing_part(run_dir))
    words = [
        "srun",
        "--overlap",
        f"--nodes={num_nodes}",
        "--ntasks-per-node=1",
        f"--ntasks={num_nodes}",
        "--immediate=60",
    ]
    words += [sys.executable, "-P", "-m", "rollpacker.launch.doctor.node_report", str(folder)]
    asked_at = time.time()
    try:
        outcome = run_program(words, deadline_s=_DEADLINE_S)
        lines, complaint = outcome.output.splitlines(), "" if outcome.is_success else outcome.complaint
    except FileNotFoundError:
        lines, complaint = [], "there is no command `srun` here"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return NodesSeen(
        num_nodes=num_nodes,
        reports=tuple(sorted(_reports(lines), key=lambda each: each.node)),
        proof=proof,
        asked_at=asked_at,
        answered_at=time.time(),
        complaint=complaint,
    )


def _write_proof(parent: Path) -> tuple[Path, str]:
    """Make a folder with a file that every node should see; a folder that is not there where this is impossible."""
    name, proof = f"{TRIAL_PREFIX}{secrets.token_hex(8)}", secrets.token_hex(8)
    folder = parent / name
    try:
        folder.mkdir(mode=0o700)
        (folder / PROOF).write_text(proof)
    except OSError:
        return folder, ""
    return folder, proof


def _reports(lines: Iterable[str]) -> Iterator[NodeReport]:
    """Read what the nodes print; other lines are those of a task prolog."""
    for line in lines:
        with suppress(ValidationError):
            yield NodeReport.from_json(line)


def check_nodes(seen: NodesSeen, *, object_store_mb: int, gpus_per_node: int) -> Iterator[Finding]:
    """Check the reports, together and each."""
    yield check_answers(seen)
    if seen.reports and seen.proof:
        yield check_shared_files(seen)
    if seen.reports:
        yield check_clocks(seen)
    yield from merged(
        {
            report.node: (*check_limits(report.limits, object_store_mb), check_gpus(report.gpus, gpus_per_node))
            for report in seen.reports
        }
    )


def merged(findings: Mapping[str, Sequence[Finding]]) -> Iterator[Finding]:
    """Report once what is the same on several nodes; subjects keep their order."""
    nodes_of: dict[Finding, list[str]] = {}
    for same_subject in zip(*findings.values(), strict=True):
        for node, finding in zip(findings, same_subject, strict=True):
            nodes_of.setdefault(finding, []).append(node)
    for finding, nodes in nodes_of.items():
        where = "each node" if 1 < len(nodes) == len(findings) else ", ".join(nodes)
        yield replace(finding, text=f"{where}: {finding.text}")


def check_answers(seen: NodesSeen) -> Finding:
    """Check whether every node runs this Python and RollPacker."""
    names = ", ".join(report.node for report in seen.reports)
    versions = {report.version for report in seen.reports}
    if len(seen.reports) < seen.num_nodes:
        said = next((line for line in seen.complaint.splitlines() if "rror" in line), seen.complaint) or "nothing"
        return problem(
            "nodes",
            f"{len(seen.reports)} of {seen.num_nodes} answer ({names or 'none'}); srun says: {said}",
            f"Each needs {sys.executable} at this path: install into a shared folder, or run in an image.",
        )
    if len(versions) > 1:
        return problem(
            "nodes",
            f"they have RollPacker {' and '.join(sorted(versions))}",
            "Install the same one on all, in a shared folder.",
        )
    return fine("nodes", f"{names} run RollPacker {versions.pop()}")


def check_shared_files(seen: NodesSeen) -> Finding:
    """Check whether every node sees the files of the others."""
    blind = [report.node for report in seen.reports if report.proof != seen.proof]
    mute = [report.node for report in seen.reports if report.proof == seen.proof and not report.can_write]
    remedy = "Choose a run.dir on a file system that all nodes mount, at the same path, for writing."
    if blind:
        return problem("shared files", f"{', '.join(blind)} cannot see a file that was just written to run.dir", remedy)
    if mute:
        return problem("shared files", f"{', '.join(mute)} cannot write to run.dir", remedy)
    return fine("shared files", f"run.dir is seen and written by all {seen.num_nodes} nodes")


def check_clocks(seen: NodesSeen) -> Finding:
    """Check the nodes' clocks: each was read between the start of the tasks and their end."""
    skews = {
        report.node: min(0.0, report.time - seen.asked_at) or max(0.0, report.time - seen.answered_at)
        for report in seen.reports
    }
    wrong = [f"{node} by {skew_s:+.0f} s" for node, skew_s in skews.items() if abs(skew_s) > _LARGEST_SKEW_S]
    if wrong:
        return warning(
            "clocks", f"differ from this machine's: {', '.join(wrong)}", "Ask for a time service (chrony) on all nodes."
        )
    return fine("clocks", "of the nodes agree")
