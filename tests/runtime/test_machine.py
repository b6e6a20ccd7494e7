"""What an actor is told of its node's GPUs, and what their names tell."""

import pytest

from rollpacker.runtime.machine import memory_in_name, names_of_gpus


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
