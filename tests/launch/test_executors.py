"""A multirun through Hydra's launchers on this machine: ours in processes and in this process, and the stock ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig

from rollpacker.cli.main import main
from rollpacker.config.multirun import compose_sweep
from rollpacker.config.words import replaced
from rollpacker.core.errors import Interrupted
from rollpacker.launch.launcher import launch
from rollpacker.launch.points import points_of
from rollpacker.runtime.run.checkpoints import CheckpointStore
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_to_the_launch_lets_each_process_of_this_machine_save_a_checkpoint(
    number: signal.Signals, tmp_path: Path
) -> None:
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
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 280
    while not all((tmp_path / f"sweep/{seed}/metrics/manifest.json").exists() for seed in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(launch.pid, number)  # as a terminal does
    _, said = launch.communicate(timeout=280)
    assert launch.returncode == 128 + number, said
    for seed in (0, 1):
        assert CheckpointStore(tmp_path / f"sweep/{seed}", keep=1).steps(), said
        assert f"point {seed} (run.seed={seed}) was interrupted" in said
    assert re.findall(r"run\.dir=(.*)\.$", said, re.MULTILINE) == ["'sweep/${run.seed}'"]
    assert not [file for file in Path("/proc").glob("[0-9]*/environ") if mark in _content(file)]


def end_at_the_second_ctrl_c(config: DictConfig) -> None:
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    while len(received) < 2:
        _count_file(Path(config["run"]["dir"])).write_text(str(len(received)))
        time.sleep(0.02)
    raise KeyboardInterrupt


def _count_file(run_dir: Path) -> Path:
    return run_dir.with_suffix(".count")


def test_every_ctrl_c_is_forwarded_once_and_no_further_point_starts(here: Path) -> None:
    words = ["hydra/launcher=slurm", "hydra.launcher.executor=local", "hydra.launcher.array_parallelism=1"]
    sweep = compose_sweep([*POINT, *words, "run.dir=sweep/${run.seed}", "run.seed=0,1"])
    assert sweep.launcher is not None
    file = _count_file(here / "sweep/0")

    def interrupt_twice() -> None:
        for count in ("0", "1"):
            deadline = time.monotonic() + 120
            while not (file.exists() and file.read_text() == count) and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

    person = threading.Thread(target=interrupt_twice)
    person.start()
    with pytest.raises(Interrupted) as caught:
        launch(points_of(sweep), end_at_the_second_ctrl_c, sweep.launcher, sweep.folder)
    person.join()
    assert caught.value.exit_code == 130
    assert "Ctrl-C ended the launch. 2 of 2 points did not finish.\npoint 0 (run.seed=0) was" in caught.value.problem
    assert "point 1 (run.seed=1) was not started" in caught.value.problem
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


@pytest.mark.parametrize("launcher", ["submitit_local", "basic"])
def test_the_stock_launchers_stay_usable(launcher: str, here: Path) -> None:
    assert _train(f"hydra/launcher={launcher}", "run.dir=sweep/${run.seed}", "run.seed=0,1") == 0
    assert _states(here / "sweep") == {"0": "finished", "1": "finished"}
