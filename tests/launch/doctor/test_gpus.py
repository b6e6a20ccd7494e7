from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.launch.doctor.node import Gpus, check_gpus, check_mps, gather_gpus
from rollpacker.launch.sbatch_script import job_environment
from tests.launch.commands import install_command

WELL = Gpus(visible=("0", "1"), num_given=2, names=("H800", "H800"), complaint="", num_strangers=0)
NONE = Gpus(visible=None, num_given=None, names=None, complaint="", num_strangers=0)


@pytest.mark.parametrize(
    ("gpus", "num_needed", "level", "words"),
    [
        (WELL, 2, "ok", "2 (H800)"),
        (replace(WELL, visible=None, num_given=None), 2, "ok", "2 (H800)"),
        (NONE, 0, "ok", "none here"),
        (NONE, 8, "problem", "0 on this node, and cluster.gpus_per_node=8"),
        (WELL, 8, "problem", "2 on this node, and cluster.gpus_per_node=8"),
        (replace(WELL, visible=None), 2, "problem", "CUDA_VISIBLE_DEVICES is not set"),
        (replace(WELL, visible=()), 2, "problem", "CUDA_VISIBLE_DEVICES names 0"),
        (replace(WELL, names=None), 2, "warning", "there is no nvidia-smi"),
        (replace(WELL, names=("H800",)), 2, "problem", "nvidia-smi lists 1"),
        (replace(WELL, names=(), complaint="No devices were found"), 2, "problem", "No devices were found"),
        (replace(WELL, num_strangers=3), 2, "warning", "3 processes compute"),
    ],
)
def test_gpus_are_judged_by_what_slurm_gave_and_the_driver_shows(
    gpus: Gpus, num_needed: int, level: str, words: str
) -> None:
    found = check_gpus(gpus, num_needed)

    assert found.level == level
    assert words in found.text
    assert bool(found.remedy) == (level != "ok")


def test_a_node_is_asked_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_command(
        tmp_path, "nvidia-smi", '[[ $1 == *name ]] && printf "NVIDIA H800\\nNVIDIA H800\\n"; exit 0', monkeypatch
    )

    assert gather_gpus({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"}) == replace(
        WELL, names=("NVIDIA H800", "NVIDIA H800")
    )


def test_a_driver_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_command(tmp_path, "nvidia-smi", "echo 'Failed to initialize NVML: Driver mismatch'; exit 18", monkeypatch)

    assert gather_gpus({}).complaint == "Failed to initialize NVML: Driver mismatch"


def test_where_there_is_no_driver_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert gather_gpus({}) == NONE


def test_the_setup_that_starts_mps_has_its_daemon_in_a_step_that_stays_and_that_ranks_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = check_mps({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}).remedy
    lines = advice[advice.index("setup:") :]
    assert max(map(len, lines.splitlines())) <= 54, "wrapped by `rollpacker doctor` in 80 columns"
    cluster = ClusterSection(name="slurm", **yaml.safe_load(lines))
    for name in ("squeue", "scontrol"):
        install_command(tmp_path, name, "true", monkeypatch)
    install_command(tmp_path, "srun", 'echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY: $*"', monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    script = [*job_environment(cluster, "7"), "wait", "srun the ranks"]
    done = subprocess.run(["bash"], input="\n".join(script), capture_output=True, text=True, check=True)

    folder = "/dev/shm/mps-7"  # noqa: S108  the node's, in an image too
    assert done.stdout.splitlines() == [
        f"{folder} {folder}: --overlap --ntasks-per-node=1 nvidia-cuda-mps-control -f",
        f"{folder} {folder}: the ranks",
    ]
