import math
from pathlib import Path

import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.runtime.job.allocation import current_allocation
from rollpacker.runtime.job.memory import cgroup_memory

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1",
    "SLURMD_NODENAME": "node2",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_CPUS_ON_NODE": "8",
}


def test_a_process_outside_slurm_has_no_allocation():
    assert current_allocation({}) is None


def test_the_shell_of_a_batch_script_has_none_either():
    assert current_allocation({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}) is None


def test_a_task_knows_its_rank_and_what_it_may_use():
    allocation = current_allocation(
        STEP
        | {
            "SLURM_RESTART_COUNT": "3",
            "SLURM_STEP_LAUNCHER_PORT": "36207",
            "SLURM_CPUS_PER_TASK": "6",
            "SLURM_MEM_PER_NODE": "3000",
            "CUDA_VISIBLE_DEVICES": "0,2",
            "ROLLPACKER_JOB_END": "1760000000",
            "ROLLPACKER_REQUEUE_FILE": "/shared/7.requeue",
            "ROLLPACKER_GRACE_S": "15",
        }
    )
    assert allocation is not None
    assert not allocation.is_head
    assert allocation.node_names == ("node1", "node2")
    assert allocation.key == "7.0.3.36207"
    assert (allocation.num_nodes, allocation.num_cpus, allocation.gpus) == (2, 6, ("0", "2"))
    assert allocation.memory_bytes == min(3000 << 20, cgroup_memory() or math.inf)
    assert allocation.end_time == pytest.approx(1760000000)
    assert allocation.requeue_file == Path("/shared/7.requeue")
    assert allocation.grace_s == pytest.approx(15)


TWO_COMPONENTS = {
    "SLURM_HET_SIZE": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "cpu7,gpu[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "gpu[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu7,gpu2",
    "SLURM_MEM_PER_NODE": "1000",
    "SLURM_MEM_PER_NODE_HET_GROUP_0": "1000",
    "SLURM_MEM_PER_CPU_HET_GROUP_1": "250",
}


@pytest.mark.parametrize(
    ("rank", "node", "name", "memory_mb", "is_of_environments"),
    [(1, "gpu2", "gpu2", 1000, False), (2, "cpu7", "cpu7-environments", 2000, True)],
)
def test_nodes_of_environments_follow_those_of_the_run_even_where_both_share_one(
    rank, node, name, memory_mb, is_of_environments
):
    own = {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": node, "SLURM_STEP_LAUNCHER_PORT": str(36207 + rank)}
    allocation = current_allocation(STEP | TWO_COMPONENTS | own)
    assert allocation is not None
    assert allocation.node_names == ("gpu1", "gpu2", "cpu7-environments", "gpu2-environments")
    assert (allocation.num_nodes, allocation.num_environment_nodes) == (2, 2)
    assert (allocation.name, allocation.node_name) == (name, node)
    assert allocation.memory_bytes == min(memory_mb << 20, cgroup_memory() or math.inf)
    assert allocation.is_of_environments is is_of_environments
    assert allocation.key == "7.0.0"  # srun has a port of its own for each component


def test_a_job_whose_number_comes_again_is_another_one():
    first, second = (current_allocation(STEP | {"SLURM_STEP_LAUNCHER_PORT": port}) for port in ("36207", "41245"))
    assert first is not None
    assert second is not None
    assert first.key != second.key


def test_what_slurm_does_not_limit_is_unknown():
    allocation = current_allocation(STEP | {"ROLLPACKER_JOB_END": "", "ROLLPACKER_GRACE_S": "0"})
    assert allocation is not None
    assert allocation.grace_s is None
    assert (allocation.memory_bytes, allocation.end_time, allocation.requeue_file) == (cgroup_memory(), None, None)
    assert (allocation.num_cpus, allocation.gpus) == (8, ())


def test_a_step_with_several_tasks_on_a_node_is_refused():
    with pytest.raises(ConfigError, match="ntasks-per-node=1"):
        current_allocation(STEP | {"SLURM_STEP_NUM_TASKS": "4"})
