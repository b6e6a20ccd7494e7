from pathlib import Path

import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.runtime.job.allocation import current_allocation

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
    assert allocation.key == "7.0.3"
    assert (allocation.num_nodes, allocation.num_cpus, allocation.gpus) == (2, 6, ("0", "2"))
    assert allocation.memory_bytes == 3000 << 20
    assert allocation.end_time == pytest.approx(1760000000)
    assert allocation.requeue_file == Path("/shared/7.requeue")
    assert allocation.grace_s == pytest.approx(15)


def test_what_slurm_does_not_limit_is_unknown():
    allocation = current_allocation(STEP | {"ROLLPACKER_JOB_END": "", "ROLLPACKER_GRACE_S": "0"})
    assert allocation is not None
    assert allocation.grace_s is None
    assert (allocation.memory_bytes, allocation.end_time, allocation.requeue_file) == (None, None, None)
    assert (allocation.num_cpus, allocation.gpus) == (8, ())


def test_a_step_with_several_tasks_on_a_node_is_refused():
    with pytest.raises(ConfigError, match="ntasks-per-node=1"):
        current_allocation(STEP | {"SLURM_STEP_NUM_TASKS": "4"})
