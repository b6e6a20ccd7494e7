"""What is said of a sweep before it is submitted to a Slurm that answers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.words import replaced
from rollpacker.launch import validation
from rollpacker.launch.file_systems import FileSystem
from tests.cli.inputs import write_model, write_prompts
from tests.launch.commands import install_command

WORDS = [
    *("backend=sim", "model=qwen2.5-7b", "cluster=slurm", "hydra/launcher=slurm", "run.dir=sweep/${run.seed}"),
    *("run.seed=0,1,2", "cluster.has_shared_files=true"),
]
PARTITION = "PartitionName={} Default={} State=UP MaxTime={} Nodes=n1 MaxNodes=UNLIMITED AllowQos=ALL"
NODE = "NodeName=n1 CPUTot=64 RealMemory=256000 State=IDLE Partitions=main,short"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory on a cluster whose partitions are main, the default, and short."""
    monkeypatch.chdir(tmp_path)
    for name in ("SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SLURM_CLUSTERS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("sbatch", "squeue"):
        install_command(tmp_path, name, "exit 1", monkeypatch)
    _set_up(monkeypatch)
    return tmp_path


def _set_up(monkeypatch: pytest.MonkeyPatch, *settings: str, default: str = "YES") -> None:
    """Have scontrol tell of a cluster with these settings."""
    partitions = "\n".join(
        [PARTITION.format("main", default, "UNLIMITED"), PARTITION.format("short", "NO", "00:05:00")]
    )
    config = "\n".join(["ClusterName = test", *settings])
    script = f"case $* in *config) echo '{config}';; *partition*) echo '{partitions}';; *) echo '{NODE}';; esac"
    install_command(Path.cwd(), "scontrol", script, monkeypatch)


def _check(*words: str) -> int:
    return main(["check", "-m", *replaced(WORDS, words)])


def test_a_partition_and_a_limit_that_variables_name_are_compared_with_the_cluster(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _check("cluster.time_limit_min=10") == 0
    monkeypatch.setenv("SBATCH_PARTITION", "short")
    assert _check("cluster.time_limit_min=10") == 2
    assert "cluster.time_limit_min=10 is more than partition `short` allows." in capsys.readouterr().err
    _set_up(monkeypatch, default="NO")
    assert _check("cluster.time_limit_min=5") == 0
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    assert _check() == 2
    assert "SBATCH_TIMELIMIT=1 is no longer than cluster.signal_lead_s=120." in capsys.readouterr().err


def test_a_partition_that_slurm_will_choose_is_noted(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _set_up(monkeypatch, "JobSubmitPlugins = lua", default="NO")
    assert _check() == 0
    assert "cluster.partition=null leaves the choice to Slurm's JobSubmitPlugins=lua" in _words(capsys)
    assert _check("cluster.partition=main") == 0
    assert "JobSubmitPlugins" not in _words(capsys)
    monkeypatch.setenv("SBATCH_PARTITION", "main")
    assert _check() == 0
    assert "JobSubmitPlugins" not in _words(capsys)


def _words(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize(("largest", "is_enough"), [(0, False), (2, False), (3, True)])
def test_a_sweep_that_is_larger_than_an_array_of_slurms_is_refused(
    largest: int, is_enough: bool, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _set_up(monkeypatch, f"MaxArraySize = {largest}")
    assert _check() == (0 if is_enough else 2)
    assert ("3 points share an array of jobs." in capsys.readouterr().err) != is_enough


@pytest.mark.parametrize(("largest", "code"), [(0, 2), (7, 2), (8, 0)])
def test_an_array_of_workers_that_is_larger_than_slurm_takes_is_refused(
    largest: int, code: int, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(here / "model", max_position_embeddings=40_000)
    write_prompts(here / "prompts.jsonl", ("math",) * 128)
    _set_up(monkeypatch, f"MaxArraySize = {largest}")
    real = ["backend=ray", "model=huggingface", "model.path=model", "data.path=prompts.jsonl", "run.seed=0"]
    cpus = ["cluster.cpus_per_node=8", "elastic.job.cpus_per_worker=1"]
    assert _check(*real, *cpus, "elastic=slurm", "elastic.max_workers=2") == code
    assert ("The rollout workers of a run are an array of 8 jobs." in _words(capsys)) == (code == 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend this process another user's rights")
@pytest.mark.parametrize("name", [".submitit", "multirun.yaml", None])
def test_a_folder_into_which_another_user_alone_writes_or_has_launched_is_refused(
    name: str | None, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _check("hydra.launcher.executor=local") == 0  # loads modules, which the other user may not read
    with tempfile.TemporaryDirectory() as project:  # pytest's own folders are closed to others
        Path(project).chmod(0o777 if name else 0o755)
        if name:
            (Path(project) / name).touch(mode=0o600)
        else:
            for point in "012":
                (Path(project) / point).mkdir()
                (Path(project) / point).chmod(0o777)
        os.seteuid(65534)
        try:
            code = _check(f"run.dir={project}/${{run.seed}}", "hydra.launcher.executor=local")
        finally:
            os.seteuid(0)
    assert code == 2
    told = _words(capsys)
    why = "is another user's" if name == "multirun.yaml" else "does not let you write"
    assert f"{project}{f'/{name}' if name else ''} {why}." in told
    assert f"Choose a run.dir one folder deeper: run.dir={project}/NAME/..." in told


@pytest.mark.parametrize(("kind", "code"), [("ext4", 2), ("overlay", 0), ("nfs4", 0)])
def test_a_folder_is_refused_only_where_its_file_system_is_known_not_to_be_shared(
    kind: str, code: int, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(validation, "file_system_of", lambda _: FileSystem(kind=kind, mount_point="/x"))
    assert _check("cluster.has_shared_files=false") == code
    assert (f"run.dir=sweep/0 lies on {kind} at /x" in _words(capsys)) == (kind != "nfs4")
