from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from tests.launch.commands import install_command

RECORDED = Path(__file__).parents[1] / "launch" / "recorded"


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine by itself, outside any job."""
    (work := tmp_path / "work").mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("SLURM_JOB_ID", "SLURM_PROCID", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return work


def _a_slurm(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol = (
        f"case $* in *config*) n=config;; *partition*) n=partition;; *node*) n=node;; esac; cat {RECORDED}/$n-24.11.txt"
    )
    accounting = "echo 'normal|00:00:00|cluster|spot'"
    for name, script in (("scontrol", scontrol), ("sbatch", "true"), ("squeue", "true"), ("sacctmgr", accounting)):
        install_command(workdir.parent / "bin", name, script, monkeypatch)


def _plain(text: str) -> str:
    return " ".join(text.split())


def test_on_a_login_node_it_looks_at_slurm_and_at_what_would_be_submitted(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _a_slurm(workdir, monkeypatch)

    workers = ["elastic=slurm", "elastic.job.partition=gpu"]
    code = main(["doctor", "cluster=h800", "cluster.has_shared_files=true", "run.dir=runs/x", *workers])

    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    text = _plain(printed.out)
    assert "ok Slurm 24.11.5, cluster h800: 3 nodes, 2 partitions" in text
    assert "ok preemption jobs of gpu lose their nodes (as their QOS says, which no key names) some time" in text
    assert "ok workers: accounts sacct has their hours" in text
    assert f"ok run.dir {workdir} on" in text
    assert "shared memory" not in text, "a login node's memory says nothing about a node's"
    assert text.endswith("checks: no problem, 0 warnings.")
    assert list(workdir.iterdir()) == []


def test_a_problem_comes_with_its_remedy_and_ends_with_exit_code_1(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _a_slurm(workdir, monkeypatch)

    code = main(["doctor", "cluster=h800", "cluster.has_shared_files=true", "cluster.partition=gpus"])

    printed = capsys.readouterr()
    assert code == 1
    text = _plain(printed.out)
    assert (
        "problem partition cluster.partition=gpus is not a partition of this Slurm. The partitions are gpu, spot"
        in text
    )
    assert "Write cluster.partition=gpu" in text
    assert "checks found a problem" in printed.err


def test_a_cluster_without_slurm_here_is_a_problem_and_the_other_checks_are_made(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(workdir))

    code = main(["doctor", "cluster=slurm", "cluster.has_shared_files=true"])

    text = _plain(capsys.readouterr().out)
    assert code == 1
    assert "problem Slurm There is no command `scontrol` here" in text
    assert "ok files can be written" in text


def test_a_machine_by_itself_is_looked_at_as_the_one_node(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(workdir))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("RAY_ADDRESS", "1.2.3.4:6379")

    code = main(["doctor", "backend.object_store_mb=90000000"])

    text = _plain(capsys.readouterr().out)
    assert code == 1
    assert "warning other Rays RAY_ADDRESS is set" in text
    assert "problem shared memory only" in text
    assert "ok GPUs none here" in text
    assert "ok ports" in text


def test_the_words_of_train_may_be_given_whole(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "model.path=/nowhere", "data.path=/nowhere.jsonl", "run.dir=runs/x", "system=verl"])

    assert capsys.readouterr().out.startswith("ok")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("cluster=h80", "cluster=h800"),
        ("cluster.partitoin=x", "cluster.partition"),
        ("runs", "runs"),
        ("--clustr", "is not an option"),
    ],
)
def test_a_misspelt_word_is_refused_before_any_check(
    word: str, said: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", word]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err


def test_of_the_tasks_of_a_step_only_the_first_speaks(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")

    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == ""


def test_no_heavy_library_is_loaded(workdir: Path) -> None:
    look = "import sys; from rollpacker.cli.main import main; main(['doctor']); print(sorted(sys.modules))"

    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout

    for heavy in ("torch", "ray", "submitit", "pyarrow"):
        assert f"'{heavy}'" not in loaded


def test_the_help_fits_and_names_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert main(["doctor", "--help"]) == 0

    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "rollpacker doctor cluster=h800 run.dir=runs/x" in text
