"""The batch scripts that are pinned as files, one per kind of job.

Rewritten by: python -m tests.launch.golden_scripts
"""

from pathlib import Path

from rollpacker.config.compose import compose
from rollpacker.launch.container import container_command
from rollpacker.launch.elastic_script import elastic_script, end_of_array, porter
from rollpacker.launch.sbatch_script import job_word, sbatch_text
from rollpacker.launch.shape import job_shape

FOLDER = Path(__file__).parent / "golden"
E2E = ["experiment=e2e", "cluster=h800", "model.path=/shared/models/qwen", "data.path=/shared/prompts.jsonl"]
ELASTIC = [
    *E2E,
    "elastic=slurm",
    "elastic.max_workers=8",
    "elastic.job.partition=spare",
    "elastic.job.least_time_min=30",
]
_SWEEP = Path("/shared/runs/sweep")
_PYTHON = ["/shared/venv/bin/python"]


def golden_scripts() -> dict[str, str]:
    """Every pinned script by the name of its file."""
    return {
        "one-node.sh": _text("backend=sim", "model=qwen2.5-7b", "cluster=slurm", "cluster.requeue=false"),
        "eight-nodes.sh": _text(*E2E, "model=qwen2.5-32b", "cluster.time_limit_min=1440", "cluster.account=tail"),
        "container.sh": _container(),
        "array.sh": _text(*E2E, "cluster.partition=gpu", num_jobs=6, array_parallelism=2),
        "preemptible.sh": _text(
            *E2E,
            "cluster.partition=spare",
            "cluster.qos=low",
            "cluster.constraint='h800&ib'",
            "cluster.gpu_type=h800",
            "cluster.signal=USR2",
            "cluster.signal_lead_s=300",
            "cluster.setup=['module load cuda']",
            "cluster.environment={NCCL_SOCKET_IFNAME: ib0}",
            "cluster.sbatch={reservation: night shift, get-user-env: ''}",
        ),
        "environment-nodes.sh": _environment_nodes(),
        "elastic-run.sh": _text(*ELASTIC, before=porter(_SWEEP, job_word(is_array=False), 30), after=end_of_array()),
        "elastic-workers.sh": _workers(),
    }


def _workers() -> str:
    config = compose([*ELASTIC, "run.dir=/shared/runs/sweep", "elastic.job.sbatch={licenses: 'elastic:1'}"])
    return elastic_script(config, job_id="4711", name="workers-sweep", folder=_SWEEP, python=_PYTHON)


def _environment_nodes() -> str:
    overrides = [*E2E, "cluster.partition=gpu", "cluster.constraint=h800", "cluster.time_limit_min=1440"]
    gym = ["environment=gym", "environment.env=my_env.py:Maze", "reward=environment", "reward.function=null"]
    job = [
        "num_nodes=4",
        "partition=cpu",
        "account=sandboxes",
        "memory_gb_per_node=64",
        "sbatch={licenses: 'x:8'}",
    ]
    return _text(*overrides, *gym, *(f"cluster.environment_nodes.{word}" for word in job))


def _container() -> str:
    overrides = [*E2E, "cluster.container.image=/shared/rollpacker.sif", "cluster.container.binds=[/data:/data:ro]"]
    cluster = compose(overrides).cluster
    assert cluster is not None
    python = container_command(
        cluster.container,
        has_gpus=True,
        write_paths=[_SWEEP],
        read_paths=[Path("/shared/models/qwen"), Path("/shared/prompts.jsonl")],
        scratch=cluster.scratch,
    )
    return _text(*overrides, python=python)


def _text(
    *overrides: str,
    python: "tuple[str, ...] | list[str]" = _PYTHON,
    num_jobs: int = 1,
    array_parallelism: int | None = None,
    before: "tuple[str, ...] | list[str]" = (),
    after: "tuple[str, ...] | list[str]" = (),
) -> str:
    return sbatch_text(
        job_shape(compose(list(overrides))),
        name="rollpacker-sweep",
        folder=_SWEEP / ".submitit",
        python=python,
        of_environments=python,
        num_jobs=num_jobs,
        array_parallelism=array_parallelism,
        before=before,
        after=after,
    )


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in golden_scripts().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
