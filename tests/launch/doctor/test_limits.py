from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rollpacker.launch.doctor.node import Limits, check_limits, gather_limits

GIGABYTE = 10**9
WELL = Limits(
    num_files=65536,
    num_files_possible=65536,
    locked_bytes=None,
    has_infiniband=True,
    shared_bytes_free=64 * GIGABYTE,
    memory_bytes=None,
)


def test_a_well_kept_node_has_no_finding_but_ok() -> None:
    assert {finding.level for finding in check_limits(WELL, 256)} == {"ok"}


@pytest.mark.parametrize(
    ("limits", "store_mb", "judged", "words", "remedy"),
    [
        (replace(WELL, num_files=1024), 256, ("open files", "warning"), "only 1024", "cluster.setup"),
        (
            replace(WELL, num_files=1024, num_files_possible=4096),
            256,
            ("open files", "warning"),
            "only 1024",
            "hard limit",
        ),
        (
            replace(WELL, shared_bytes_free=64 << 20),
            256,
            ("shared memory", "problem"),
            "only 64 MB free",
            "bind the host",
        ),
        (WELL, 100_000, ("shared memory", "problem"), "object_store_mb=100000", "Lower backend.object_store_mb"),
        (replace(WELL, memory_bytes=2 << 30), 256, ("memory", "problem"), "only 2,048 MB", "memory_gb_per_node"),
        (replace(WELL, locked_bytes=64 << 10), 256, ("locked memory", "warning"), "only 64 KiB", "LimitMEMLOCK"),
    ],
)
def test_each_limit_that_is_too_low_is_found_and_nothing_else(
    limits: Limits, store_mb: int, judged: tuple[str, str], words: str, remedy: str
) -> None:
    (found,) = (finding for finding in check_limits(limits, store_mb) if finding.level != "ok")

    assert (found.subject, found.level) == judged
    assert words in found.text
    assert remedy in found.remedy


def test_locked_memory_matters_only_where_there_is_rdma() -> None:
    assert {finding.level for finding in check_limits(replace(WELL, locked_bytes=0, has_infiniband=False), 256)} == {
        "ok"
    }


def test_this_process_is_looked_at_and_slurms_limit_counts() -> None:
    limits = gather_limits({"SLURM_MEM_PER_NODE": "64"})

    assert limits.memory_bytes == 64 << 20
    assert limits.shared_bytes_free == pytest.approx(os.statvfs("/dev/shm").f_bavail * 4096, rel=0.5)  # noqa: S108
