"""The check of a machine's GPUs, with rows and GPUs that are not real: what becomes of each, and of what it started."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.core.errors import ConfigError
from rollpacker.gpu_check.checking import Checking, Machine, in_use, missing
from rollpacker.gpu_check.engines import round_start, tensor_parallel
from rollpacker.gpu_check.inputs import SMALL, SMALL_HEAD_DIM, Bench
from rollpacker.gpu_check.outcomes import NotPossible, Outcome
from rollpacker.gpu_check.table import ROWS, Row
from rollpacker.runtime.placing.host import MemoryNow
from tests.e2e.processes import is_alive
from tests.gpu_check.driver import PATIENCE_S

ROOT = Path(__file__).parents[2]


def start(folder: Path, *names: str, num_gpus: int = 1, model: str = "", deadline_s: float = PATIENCE_S):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.gpu_check.driver", str(folder), str(num_gpus), model, *names],
        cwd=ROOT,
        env=os.environ | {"DEADLINE_S": str(deadline_s)},
        stdout=subprocess.PIPE,
        text=True,
    )


def outcomes(folder: Path, *names: str, **options) -> dict[str, tuple[str, str, dict[str, float]]]:
    said, _ = start(folder, *names, **options).communicate(timeout=PATIENCE_S)
    return {name: (status, why, figures) for name, status, why, figures in map(json.loads, said.splitlines())}


def test_each_row_has_its_outcome_whatever_became_of_those_before(tmp_path):
    found = outcomes(tmp_path, "refutes", "raises", "crashes", "lacks", "passes")
    assert found == {
        "refutes": ("failed", "the sleep freed nothing", {}),
        "raises": ("failed", "it raised: TypeError: varlen_attn() got an unexpected keyword argument", {}),
        "crashes": ("failed", "died of SIGSEGV", {}),
        "lacks": ("not possible", "the daemon does not start", {}),
        "passes": ("passed", "", {"tokens_per_s": 12.5}),
    }
    assert "Traceback" in (tmp_path / "logs" / "raises.log").read_text()


def test_a_row_that_has_passed_runs_again_only_with_other_gpus_or_another_model(tmp_path):
    def num_runs() -> int:
        return len((tmp_path / "passes").read_text().splitlines())

    first = outcomes(tmp_path, "passes", "refutes")
    assert outcomes(tmp_path, "passes", "refutes") == first
    assert num_runs() == 1
    assert "passed" in (tmp_path / "results.json").read_text()
    outcomes(tmp_path, "passes", num_gpus=2)
    outcomes(tmp_path, "passes", model="/models/other")
    assert num_runs() == 3


def test_a_result_is_of_the_packages_the_driver_and_the_configuration_files(tmp_path, monkeypatch):
    def key() -> str:
        return Checking(folder=tmp_path, machine=Machine(hardware="", num_gpus=1, has_gpus=False)).key

    driver, conf = tmp_path / "version", tmp_path / "conf"
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n")
    (conf / "engine").mkdir(parents=True)
    (conf / "engine" / "vllm.yaml").write_text("name: vllm")
    versions = {"torch": "2.13.0", "vllm": "0.14.0", "transformers": "5.0", "megatron-core": "0.15", "ray": "2.50"}
    monkeypatch.setattr("rollpacker.gpu_check.checking._DRIVER_VERSION", driver)
    monkeypatch.setattr("rollpacker.gpu_check.checking.conf_dir", lambda: conf)
    monkeypatch.setattr("importlib.metadata.version", lambda package: versions[package])
    keys = [key()]
    assert ", ".join(f"{name} {version}" for name, version in versions.items()) + ", driver 580.65.06; " in keys[0]
    for name in versions:
        versions[name] += ".1"
        keys.append(key())
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    keys.append(key())
    (conf / "engine" / "vllm.yaml").write_text("name: torch")
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_a_result_is_of_the_files_of_the_model_and_not_of_its_path_alone(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    machine = Machine(hardware="", num_gpus=1, has_gpus=False)
    checking = Checking(folder=tmp_path, machine=machine, model=model)
    keys = [checking.key]
    for content in ("weights", "other weights"):
        (model / "model.safetensors").write_text(content)
        keys.append(checking.key)
    assert len(set(keys)) == 3
    assert checking.key == keys[-1]


def test_a_row_that_hangs_ends_at_its_deadline_with_all_that_it_started(tmp_path):
    # as long as Python may take to start here
    deadline_s = 5.0
    while not (tmp_path / "pids").exists():
        found = outcomes(tmp_path, "hangs", "passes", deadline_s=deadline_s)
        deadline_s *= 2
    assert found["hangs"][:2] == ("failed", f"no result within {deadline_s / 2:g} s")
    assert found["passes"][0] == "passed"
    assert [pid for pid in map(int, (tmp_path / "pids").read_text().split()) if is_alive(pid)] == []


def test_ctrl_c_ends_the_row_that_runs_and_keeps_what_has_passed(tmp_path):
    process = start(tmp_path, "passes", "hangs")
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode not in {0, None}
    assert [pid for pid in map(int, (tmp_path / "pids").read_text().split()) if is_alive(pid)] == []
    (kept,) = json.loads((tmp_path / "results.json").read_text()).values()
    assert list(kept) == ["passes"]


def test_a_folder_is_of_one_check_at_a_time(tmp_path):
    machine = Machine(hardware="", num_gpus=0, has_gpus=False)
    rows = [Row(name=name, shows="", function="") for name in "ab"]
    first, second = (Checking(folder=tmp_path, machine=machine) for _ in range(2))
    running = first.run(rows)
    next(running)
    with pytest.raises(ConfigError, match=rf"Another check runs in out={tmp_path} \(process {os.getpid()} on "):
        next(second.run(rows))
    assert len(list(running)) == 1
    assert len(list(second.run(rows))) == 2


@pytest.mark.parametrize(
    ("row", "num_gpus", "why"),
    [
        ({}, 0, "this machine has no CUDA GPU"),
        ({"num_gpus": 2}, 1, "needs 2 GPUs, here is 1"),
        ({"packages": ("no_such_package.part",)}, 1, "no_such_package is not installed"),
        ({"programs": ("no-such-program",)}, 1, "there is no program no-such-program"),
        ({"num_gpus": 2, "packages": ("json",), "programs": ("sh",)}, 2, ""),
    ],
)
def test_a_row_says_what_it_lacks(row, num_gpus, why):
    machine = Machine(hardware="", num_gpus=num_gpus, has_gpus=False)
    assert missing(Row(name="x", shows="", function="", **row), machine) == why


def test_with_real_gpus_a_torch_for_processors_is_named(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0+cpu")
    machine = Machine(hardware="", num_gpus=1, has_gpus=True)
    assert missing(Row(name="x", shows="", function=""), machine) == "torch 2.13.0+cpu is built without CUDA"


def test_a_row_does_not_run_on_a_gpu_that_others_use(tmp_path, monkeypatch):
    memory = [MemoryNow(free=79e9, total=80e9), MemoryNow(free=30e9, total=80e9)]
    monkeypatch.setattr("rollpacker.gpu_check.checking.gpu_memory_now", lambda _: memory)
    monkeypatch.setattr("rollpacker.gpu_check.checking._lacks", lambda *_: iter(()))
    checking = Checking(folder=tmp_path, machine=Machine(hardware="", num_gpus=2, has_gpus=True))
    for num_gpus, most_gpus in ((2, None), (1, 8)):
        row = Row(name="", shows="", function="", num_gpus=num_gpus, most_gpus=most_gpus)
        [(_, outcome)] = checking.run([row])
        assert (outcome.status, outcome.why) == ("not possible", "GPU 1 has 30 GB free of 80, others use it")
    assert in_use(1) == ""
    memory[:] = [None]
    assert in_use(2) == ""


def test_rows_that_work_on_all_gpus_look_at_each_of_them(tmp_path, monkeypatch):
    memory = [*[MemoryNow(free=79e9, total=80e9)] * 7, MemoryNow(free=30e9, total=80e9)]
    monkeypatch.setattr("rollpacker.gpu_check.checking.gpu_memory_now", lambda _: memory)
    monkeypatch.setattr("rollpacker.gpu_check.checking._lacks", lambda *_: iter(()))
    monkeypatch.setattr(Checking, "_in_process", lambda *_: Outcome(status="passed"))
    checking = Checking(folder=tmp_path, machine=Machine(hardware="", num_gpus=8, has_gpus=True), again=True)

    def refused():
        return {row.name for row, outcome in checking.run(ROWS) if outcome.status == "not possible"}

    found = refused()
    assert found == {"run-learns", "run-loses-engine"}
    memory[1] = memory[7]
    pairs = {"weights-nccl", "vllm-weights-nccl", "fsdp", "megatron", "sequence-cost-megatron", "vllm-tensor-parallel"}
    assert refused() - found == pairs


@pytest.mark.parametrize(("busy", "is_refused"), [(1, True), (3, False)])
def test_a_tensor_parallel_engine_is_refused_for_the_gpus_that_it_would_use(busy, is_refused, tmp_path, monkeypatch):
    """The tiny model's key-value heads divide by two of the eight GPUs."""
    memory = [MemoryNow(free=79e9, total=80e9)] * 8
    memory[busy] = MemoryNow(free=30e9, total=80e9)
    monkeypatch.setattr("rollpacker.gpu_check.checking.gpu_memory_now", lambda _: memory)
    monkeypatch.setattr("rollpacker.gpu_check.inputs.rank_memory", _goes_on)
    tiny = Bench(folder=tmp_path, model=None, num_gpus=8, has_gpus=False).tiny()
    row = tensor_parallel(Bench(folder=tmp_path, model=tiny, num_gpus=8, has_gpus=True))
    with pytest.raises(NotPossible, match="GPU 1 has 30 GB free") if is_refused else pytest.raises(GoesOnError):
        asyncio.run(row)


def test_a_rounds_start_asks_for_no_room_for_a_trainer(tmp_path, monkeypatch):
    monkeypatch.setattr("rollpacker.gpu_check.inputs.rank_memory", lambda *_: pytest.fail("it asks"))
    monkeypatch.setattr("rollpacker.gpu_check.engines.engine_on", _goes_on)
    tiny = Bench(folder=tmp_path, model=None, num_gpus=1, has_gpus=False).tiny()
    with pytest.raises(GoesOnError):
        asyncio.run(round_start(Bench(folder=tmp_path, model=tiny, num_gpus=1, has_gpus=True), engine="torch"))


class GoesOnError(Exception):
    """The row went on."""


def _goes_on(*_):
    raise GoesOnError


def test_the_small_model_s_key_value_heads_are_divided_by_as_many_gpus_as_rows_are_for():
    assert SMALL["hidden_size"] // SMALL_HEAD_DIM // 2 == 8


def test_every_row_has_a_function_that_takes_its_arguments():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        module, _, function = row.function.partition(":")
        signature = inspect.signature(getattr(importlib.import_module(module), function))
        signature.bind(None, **row.arguments)


def test_a_machine_without_a_gpu_says_so_for_every_row_and_exits_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rollpacker.gpu_check.checking.visible_gpus", lambda: 0)
    assert main(["gpu-check", f"out={tmp_path}"]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("this machine has no CUDA GPU") == len(ROWS)
    assert "No row could run." in captured.err
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rows=decod"], "Write decode."),
        (["model.path=/no/such/model"], "The model directory /no/such/model does not exist"),
        (["engine=vllm"], "It takes model.path=..., rows=..., out=..., again=...."),
        (["decode"], "Leave out decode."),
        (["again=maybe"], "again=maybe is not legal"),
        (["out=notes.txt"], "out=notes.txt is a file. It is a folder, which is made if need be. Choose another out."),
    ],
)
def test_a_mistake_is_answered_before_any_row_runs(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("mine")
    assert main(["gpu-check", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_results_that_this_command_did_not_write_are_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "results.json").write_text('{"x": {"decode": {"grade": 1}}}')
    machine = Machine(hardware="", num_gpus=1, has_gpus=False)
    monkeypatch.setattr("rollpacker.gpu_check.checking.this_machine", lambda: machine)
    assert main(["gpu-check", f"out={tmp_path}", "rows=decode"]) == 2
    assert "Delete it, or choose another out." in capsys.readouterr().err


def test_the_longest_name_of_a_row_is_shown_whole(tmp_path, capsys):
    longest = max((row.name for row in ROWS), key=len)
    assert main(["gpu-check", f"rows={longest}", f"out={tmp_path}"]) == 1
    assert f" {longest} " in capsys.readouterr().out
