from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.runtime.job.memory import cgroup_memory, job_memory

NODE = {"SLURM_CPUS_ON_NODE": "8", "SLURM_GPUS_ON_NODE": "4"}


@pytest.mark.parametrize(
    ("variables", "memory_mb"),
    [
        ({"SLURM_MEM_PER_NODE": "3000"}, 3000),
        ({"SLURM_MEM_PER_CPU": "500"}, 8 * 500),
        ({"SLURM_MEM_PER_GPU": "700"}, 4 * 700),
        ({"SLURM_MEM_PER_NODE": "0"}, None),  # all of it
        ({}, None),
    ],
    ids=str,
)
def test_memory_is_given_by_node_by_cpu_or_by_gpu(
    variables: dict[str, str], memory_mb: int | None, tmp_path: Path
) -> None:
    given = job_memory(NODE | variables, membership=tmp_path / "membership", root=tmp_path)

    assert given == (memory_mb and memory_mb << 20)


@pytest.mark.parametrize(
    ("variables", "limit_mb", "memory_mb"),
    [
        ({}, 2400, 2400),  # DefMemPerGPU
        ({"SLURM_MEM_PER_NODE": "0"}, 2400, 2400),
        ({"SLURM_MEM_PER_NODE": "3000"}, 2400, 2400),
        ({"SLURM_MEM_PER_NODE": "2000"}, 2400, 2000),
    ],
    ids=str,
)
def test_the_smaller_of_what_slurm_gave_and_what_the_control_group_allows_counts(
    variables: dict[str, str], limit_mb: int, memory_mb: int, tmp_path: Path
) -> None:
    (tmp_path / "membership").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job/memory.max").write_text(f"{limit_mb << 20}\n")

    assert job_memory(NODE | variables, membership=tmp_path / "membership", root=tmp_path) == memory_mb << 20


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
