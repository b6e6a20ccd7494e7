"""What an actor is told of its node's GPUs, and what their names tell."""

import os
import socket
from pathlib import Path

import pytest

from rollpacker.launch.doctor.node import check_mps
from rollpacker.runtime.placing import host
from rollpacker.runtime.placing.host import (
    gpu_memory,
    gpu_memory_now,
    hardware_name,
    has_mps_daemon,
    memory_in_name,
    names_of_gpus,
    visible_gpus,
)


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


def driver_with(folder: Path, *names: str) -> Path:
    """NVIDIA's folder in /proc on a machine of these GPUs."""
    for index, name in enumerate(names):
        gpu = folder / f"0000:{index:02x}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 42\n")
    return folder


@pytest.mark.parametrize(
    ("visible", "number"),
    [
        (None, 2),  # outside of Slurm nobody sets it: the driver's count
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),  # Slurm's, for a job without GPUs
        ("1", 1),
        ("0,1,5", 3),
        ("0,-1,1", 1),  # CUDA reads up to what names none
        ("GPU-a1, MIG-b2", 2),
    ],
)
def test_gpus_are_counted_by_the_variable_and_without_it_by_the_driver(tmp_path, visible, number):
    driver = driver_with(tmp_path / "gpus", "NVIDIA A10", "NVIDIA A10")
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpus(environment, driver) == number


def test_without_a_driver_there_are_no_gpus(tmp_path):
    assert visible_gpus({}, tmp_path / "nowhere") == 0


def test_where_a_sandbox_hides_the_drivers_folder_nvidia_smi_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "DRIVER_GPUS", tmp_path / "hidden")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA H200; echo NVIDIA H200\n")
    (tmp_path / "nvidia-smi").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    host._ask_driver.cache_clear()
    assert visible_gpus({}) == 2
    assert hardware_name(has_gpus=True) == "2 x NVIDIA H200"
    host._ask_driver.cache_clear()


@pytest.mark.parametrize(
    ("models", "visible", "name"),
    [
        (["NVIDIA H100"] * 8, None, "8 x NVIDIA H100"),
        (["NVIDIA H100"] * 8, "3", "1 x NVIDIA H100"),
        (["NVIDIA H100"] * 8, "GPU-a1,GPU-b2", "2 x NVIDIA H100"),
        (["NVIDIA A10", "NVIDIA H100", "NVIDIA H100"], "1,2", "2 x NVIDIA H100"),
        (["NVIDIA A10", "NVIDIA H100"], None, "1 x NVIDIA A10, 1 x NVIDIA H100"),
        (["NVIDIA A10", "NVIDIA H100"], "GPU-a1", "1 x GPU of unknown name"),
        (["NVIDIA H100"], "2,3", "2 x NVIDIA H100"),
    ],
)
def test_a_machine_is_named_by_the_gpus_that_this_process_may_use(tmp_path, monkeypatch, models, visible, name):
    monkeypatch.setattr(host, "DRIVER_GPUS", driver_with(tmp_path / "gpus", *models))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware_name(has_gpus=True) == name


def test_memory_comes_from_the_name_or_else_from_the_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "DRIVER_GPUS", driver_with(tmp_path / "named", *["NVIDIA H100 80GB HBM3"] * 2))
    assert gpu_memory() == 80e9
    monkeypatch.setattr(host, "DRIVER_GPUS", driver_with(tmp_path / "nameless", "NVIDIA H200", "NVIDIA H200"))
    for answer, expected in (("echo 143771; echo 143771", 143771 * 2**20), ("exit 9", None), ("echo soon", None)):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "nvidia-smi").chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        host._ask_driver.cache_clear()
        assert gpu_memory() == expected
    host._ask_driver.cache_clear()


@pytest.mark.parametrize(
    ("visible", "free_gib"),
    [(None, [30, 78]), ("1", [78]), ("GPU-b2,0", [78, 30]), ("MIG-c3", [None]), ("", [])],
)
def test_the_memory_that_is_free_now_is_the_driver_s_of_the_gpus_that_are_visible(
    tmp_path, monkeypatch, visible, free_gib
):
    monkeypatch.setattr(host, "DRIVER_GPUS", driver_with(tmp_path / "gpus", "NVIDIA H100", "NVIDIA H100"))
    answer = "#!/bin/sh\necho GPU-a1, 30720, 81920; echo GPU-b2, 79872, 81920\n"
    (tmp_path / "nvidia-smi").write_text(answer)
    (tmp_path / "nvidia-smi").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [memory and memory.free / 2**30 for memory in gpu_memory_now(environment)] == free_gib
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU-a1, [N/A], [N/A]; echo no\n")
    assert set(gpu_memory_now(environment)) <= {None}


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("NVIDIA H100 80GB HBM3", 80e9),
        ("NVIDIA A100-SXM4-40GB", 40e9),
        ("NVIDIA H200", None),
        ("Tesla T4", None),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_some_names_say_how_much_memory_a_gpu_has(name, num_bytes):
    assert memory_in_name(name) == num_bytes


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_daemon_of_mps_is_one_that_listens(tmp_path, kind):
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert not has_mps_daemon(environment)
    assert "nvidia-cuda-mps-control -f" in str(check_mps(environment))
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
