from __future__ import annotations

import pytest

from rollpacker.launch.submission_environment import submission_environment


@pytest.mark.parametrize("script", ["#SBATCH --nodes=1\n", "#SBATCH --gpus-per-node=2\n", "#SBATCH --gres=gpu:2\n"])
def test_gpus_of_the_shell_reach_no_job_whether_it_asks_for_some_or_for_none(script: str) -> None:
    words = ("GPUS", "GPUS_PER_NODE", "GPUS_PER_SOCKET", "GPUS_PER_TASK")
    shell = {f"SBATCH_{word}": "4" for word in words} | {"SBATCH_GRES": "lustre:1,gpu:h800:4"}

    assert submission_environment(shell, script) == {}


def test_other_resources_of_the_shell_reach_a_job() -> None:
    shell = {"SBATCH_GRES": "lustre:1,gpufs:2"}

    assert submission_environment(shell, "#SBATCH --gpus-per-node=2\n") == shell


def test_a_login_to_slurm_by_variables_reaches_sbatch_and_no_other_job_does() -> None:
    login = dict.fromkeys(("SLURM_JWT", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"), "x")

    assert submission_environment({**login, "SLURM_JOB_ID": "7"}, "#SBATCH --nodes=1\n") == login
