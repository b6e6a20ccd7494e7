"""A multirun through Hydra's launchers on this machine: ours in processes and in this process, and the stock ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig

from rollpacker.cli.main import main
from rollpacker.config.multirun import compose_sweep
from rollpacker.config.words import replaced
from rollpacker.launch.launcher import launch
from rollpacker.launch.points import points_of
from rollpacker.runtime.run.status import read_status

POINT = ["backend=sim", "model=qwen2.5-7b", "rollout.num_prompts=8", "run.num_steps=1", "run.progress=none"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, from which started processes find this package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def _train(*words: str) -> int:
    """Launch from this process, which has the imports."""
    return main(["train", "-m", *replaced(POINT, words)])


def _states(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    if not folder.exists():
        return found
    for run_dir in sorted(folder.iterdir()):
        status = read_status(run_dir)
        if status is not None:
            found[run_dir.name] = status.state
    return found


@pytest.mark.parametrize("executor", ["local", "debug"])
def test_points_run_here_by_the_same_configuration_and_finished_ones_are_skipped(
    executor: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "lengths.csv").write_text("length_tokens\n" + "9\n" * 200)
    words = [
        "hydra/launcher=slurm",
        f"hydra.launcher.executor={executor}",
        "hydra.launcher.array_parallelism=1",
        "workload.lengths=lengths.csv",
        "run.dir=sweep/${run.seed}",
    ]
    assert _train(*words, "run.seed=0,1") == 0, capfd.readouterr()
    assert _states(here / "sweep") == {"0": "finished", "1": "finished"}
    capfd.readouterr()
    (here / "sweep/2/metrics").mkdir(parents=True)
    (here / "sweep/2/metrics/steps").write_text("a file where the run wants a folder")
    assert _train(*words, "run.seed=0,1,2") == 1
    said = capfd.readouterr()
    assert said.out.count("has finished: skipped") == 2
    assert "1 of 1 points did not finish.\npoint 2 (run.seed=2) failed" in said.err


def write_visible_gpus(config: DictConfig) -> None:
    Path(config["run"]["dir"]).write_text(repr(os.environ.get("CUDA_VISIBLE_DEVICES")))


@pytest.mark.parametrize("gpus", [None, "", "2,GPU-8f"])
def test_a_process_of_this_machine_sees_the_gpus_that_the_launch_sees(
    gpus: str | None, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if gpus is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    launcher = ["hydra/launcher=slurm", "hydra.launcher.executor=local"]
    sweep = compose_sweep([*POINT, *launcher, "cluster=slurm", "cluster.gpus_per_node=1", f"run.dir={here}/sweep/seen"])
    assert sweep.launcher is not None
    launch(points_of(sweep), write_visible_gpus, sweep.launcher, sweep.folder)
    assert (here / "sweep/seen").read_text() == repr(gpus)


@pytest.mark.timeout(600)  # two interpreters start after a third: 75 s were seen at a load of 30
def test_ctrl_c_ends_the_processes_of_this_machine(tmp_path: Path) -> None:
    words = [
        "hydra/launcher=slurm",
        "hydra.launcher.executor=local",
        "run.num_steps=100000",
        "run.dir=sweep/${run.seed}",
    ]
    mark = f"ROLLPACKER_TEST_RUN={tmp_path}".encode()
    launch = subprocess.Popen(
        [sys.executable, "-m", "rollpacker.cli", "train", "-m", *replaced(POINT, words), "run.seed=0,1"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "ROLLPACKER_TEST_RUN": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 280
    while _states(tmp_path / "sweep") != {"0": "running", "1": "running"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    launch.send_signal(signal.SIGINT)
    assert launch.wait(280) == 130
    assert not [file for file in Path("/proc").glob("[0-9]*/environ") if mark in _content(file)]


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


@pytest.mark.parametrize("launcher", ["submitit_local", "basic"])
def test_the_stock_launchers_stay_usable(launcher: str, here: Path) -> None:
    assert _train(f"hydra/launcher={launcher}", "run.dir=sweep/${run.seed}", "run.seed=0,1") == 0
    assert _states(here / "sweep") == {"0": "finished", "1": "finished"}
