"""What an actor is told of its node's GPUs, and what their names tell."""

import os
import socket

import pytest

from rollpacker.launch.doctor.node import check_mps
from rollpacker.runtime.placing.host import has_mps_daemon, memory_in_name, names_of_gpus


@pytest.mark.parametrize(
    ("visible", "named"),
    [
        (None, "0,2"),  # GPUs that are not real
        ("", "0,2"),
        ("0,1,2", "0,2"),
        ("4,5,6,7", "4,6"),  # as Slurm may number those of a job
        ("GPU-a1, GPU-b2,GPU-c3", "GPU-a1,GPU-c3"),
    ],
)
def test_the_runs_first_gpu_is_the_first_one_that_the_node_has(visible, named):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert names_of_gpus((0, 2), environment) == named
    assert names_of_gpus((), environment) == ""


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [("NVIDIA H100 80GB HBM3", 80e9), ("NVIDIA A100-SXM4-40GB", 40e9), ("NVIDIA H200", None), ("Tesla T4", None)],
)
def test_some_names_say_how_much_memory_a_gpu_has(name, num_bytes):
    assert memory_in_name(name) == num_bytes


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_daemon_of_mps_is_one_that_listens(tmp_path, kind):
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert not has_mps_daemon(environment)
    assert "nvidia-cuda-mps-control -d" in str(check_mps(environment))
    with socket.socket(socket.AF_UNIX, kind) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        assert has_mps_daemon(environment)
        assert check_mps(environment).level == "ok"
    assert not has_mps_daemon(environment)  # what a daemon that was killed leaves


def test_a_pipe_of_mps_has_a_reader(tmp_path):
    os.mkfifo(tmp_path / "control")
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert not has_mps_daemon(environment)
    reader = os.open(tmp_path / "control", os.O_RDONLY | os.O_NONBLOCK)
    assert has_mps_daemon(environment)
    os.close(reader)
