from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.launch.doctor.node import Limits, check_limits, gather_limits
from rollpacker.runtime.placing.host import cgroup_memory

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


@pytest.mark.parametrize(
    ("files", "membership", "limit"),
    [
        ({"job/memory.max": "3000\n", "memory.max": "max\n"}, "0::/job/step\n", 3000),
        ({"job/memory.max": "3000\n", "job/step/memory.max": "2000\n"}, "0::/job/step\n", 2000),
        ({"memory/job/memory.limit_in_bytes": "5000\n"}, "9:cpu,memory:/job\n0::/\n", 5000),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "9:memory:/\n", None),
        ({}, "0::/job\n", None),
    ],
)
def test_the_tightest_control_group_counts(
    files: dict[str, str], membership: str, limit: int | None, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(content)
    (tmp_path / "membership").write_text(membership)

    assert cgroup_memory(tmp_path / "membership", tmp_path / "cgroup") == limit


def test_this_process_is_looked_at_and_slurms_limit_counts() -> None:
    limits = gather_limits({"SLURM_MEM_PER_NODE": "64"})

    assert limits.memory_bytes == 64 << 20
    assert limits.shared_bytes_free == pytest.approx(os.statvfs("/dev/shm").f_bavail * 4096, rel=0.5)  # noqa: S108
