from __future__ import annotations

import pytest

from rollpacker.config.compose import compose
from rollpacker.launch.shape import job_shape
from rollpacker.launch.submission_environment import as_submitted, submission_environment
from tests.launch.golden_scripts import FOLDER


@pytest.mark.parametrize("script", ["#SBATCH --nodes=1\n", "#SBATCH --gpus-per-node=2\n", "#SBATCH --gres=gpu:2\n"])
def test_gpus_of_the_shell_reach_no_job_whether_it_asks_for_some_or_for_none(script: str) -> None:
    words = ("GPUS", "GPUS_PER_NODE", "GPUS_PER_SOCKET", "GPUS_PER_TASK", "TRES_PER_TASK")
    shell = {f"SBATCH_{word}": "4" for word in words} | {"SBATCH_GRES": "lustre:1,gpu:h800:4"}

    assert submission_environment(shell, script) == {}


def test_other_resources_of_the_shell_reach_a_job() -> None:
    shell = {"SBATCH_GRES": "lustre:1,gpufs:2"}

    assert submission_environment(shell, "#SBATCH --gpus-per-node=2\n") == shell


def test_a_login_to_slurm_by_variables_reaches_sbatch_and_no_other_job_does() -> None:
    login = dict.fromkeys(("SLURM_JWT", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"), "x")

    assert submission_environment({**login, "SLURM_JOB_ID": "7"}, "#SBATCH --nodes=1\n") == login


def test_a_job_submitted_from_within_a_job_or_an_image_learns_nothing_of_it() -> None:
    mine = {"SLURM_CONF": "c", "SBATCH_ACCOUNT": "a", "HOME": "h", "APPTAINER_CACHEDIR": "d"}
    job = {"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "2"}
    image = {"APPTAINER_CONTAINER": "/shared/x.sif", "APPTAINER_BIND": "/x"}
    assert submission_environment(mine | job | image, "") == mine
    assert submission_environment({"APPTAINER_BIND": "/x"}, "") == {"APPTAINER_BIND": "/x"}  # the user's own, outside


@pytest.mark.parametrize("name", ["eight-nodes.sh", "elastic-workers.sh", "preemptible.sh"])
def test_what_a_script_asks_for_wins_over_sbatchs_variables_and_what_it_leaves_open_stays_a_sites(name: str) -> None:
    script = (FOLDER / name).read_text()
    words = "ARRAY_INX CPUS_PER_GPU ERROR GPUS JOB_NAME NO_REQUEUE OPEN_MODE OUTPUT REQUEUE SIGNAL WAIT"
    overruling = [f"SBATCH_{word}" for word in words.split()]
    for option, variable in (
        ("account", "SBATCH_ACCOUNT"),
        ("constraint", "SBATCH_CONSTRAINT"),
        ("exclusive", "SBATCH_EXCLUSIVE"),
        ("mem", "SBATCH_MEM_PER_CPU"),
        ("partition", "SBATCH_PARTITION"),
        ("qos", "SBATCH_QOS"),
        ("reservation", "SBATCH_RESERVATION"),
        ("time", "SBATCH_TIMELIMIT"),
    ):
        kept = submission_environment(dict.fromkeys([*overruling, variable], "1"), script)
        assert list(kept) == ([] if f"#SBATCH --{option}" in script else [variable])


SHELL = {"SBATCH_PARTITION": "short", "SBATCH_TIMELIMIT": "1:30:00", "SBATCH_QOS": "tail", "SBATCH_CONSTRAINT": "ib"}


def test_what_variables_say_of_a_job_stands_in_its_shape_under_their_names() -> None:
    shape = as_submitted(job_shape(compose(["backend=sim", "model=qwen2.5-7b", "cluster=slurm"])), SHELL)
    cluster = shape.cluster
    asked = (cluster.partition, cluster.time_limit_min, cluster.qos, cluster.constraint)
    assert asked == ("short", 90, "tail", "ib")
    assert shape.key("partition") == "SBATCH_PARTITION"
    assert shape.key("time_limit_min") == "SBATCH_TIMELIMIT"


@pytest.mark.parametrize(
    ("text", "key"),
    [(text, "SBATCH_TIMELIMIT") for text in ("UNLIMITED", "0", "soon")] + [("", "cluster.time_limit_min")],
)
def test_a_variable_with_no_time_limit_sets_none_under_its_name(text: str, key: str) -> None:
    shape = job_shape(compose(["backend=sim", "model=qwen2.5-7b", "cluster=slurm"]))
    submitted = as_submitted(shape, {"SBATCH_TIMELIMIT": text})
    assert submitted.cluster.time_limit_min is None
    assert submitted.key("time_limit_min") == key


def test_keys_come_before_variables_also_where_only_nodes_of_environments_have_them() -> None:
    words = [
        *("backend=ray", "model.path=m", "data.path=p", "environment=gym", "environment.env=e.py:E", "cluster=slurm"),
        *("reward=environment", "reward.function=null", "cluster.environment_nodes.num_nodes=1"),
        *("cluster.environment_nodes.partition=cpu", "cluster.time_limit_min=20"),
    ]
    shape = as_submitted(job_shape(compose(words)), SHELL)
    assert (shape.cluster.partition, shape.cluster.time_limit_min, shape.cluster.qos) == (None, 20, "tail")
    assert shape.beside is not None
    assert (shape.beside.cluster.qos, shape.beside.key("qos")) == ("tail", "SBATCH_QOS")
