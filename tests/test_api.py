"""RollPacker from Python: errors, interruptions and tables as in a script or a notebook."""

from __future__ import annotations

import functools
import importlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import rollpacker
from rollpacker import api
from rollpacker.cli.main import main
from rollpacker.core.errors import ConfigError, DataError, WorldError
from rollpacker.processes.server_process import ServerProcess
from rollpacker.runtime.run.status import read_status

MODELLED = (
    "backend=sim model=qwen2.5-7b rollout.num_prompts=16 rollout.num_responses=4 rollout.max_response_tokens=4096 "
    "engine.num_engines=4 trainer.tensor_parallel=1"
)


def score(response: str, ground_truth: str) -> float:
    return float(response == ground_truth)


class Methods:
    def score(self) -> float:
        return 0.0


async def test_a_run_in_a_running_event_loop_prints_what_it_does_and_gives_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = rollpacker.train(MODELLED, run__num_steps=2, run__dir=tmp_path / "a run")
    assert "2 steps in" in capsys.readouterr().out
    assert run == rollpacker.load(tmp_path / "a run") == rollpacker.Run(tmp_path / "a run")
    assert list(run.steps["step"]) == [0, 1]
    assert run.steps.attrs["units"]["step_time_s"] == "s"
    assert run.samples.empty
    assert isinstance(run.samples, pd.DataFrame)
    with pytest.raises(DataError, match=r"A run that trains with real engines .*\nOf such a run, `rollpacker export"):
        _ = run.model
    with pytest.raises(DataError):
        _ = run.evaluations


def test_a_run_that_only_evaluates_is_loaded_with_its_scores(tmp_path: Path) -> None:
    (tmp_path / "unseen.jsonl").write_text('{"id": "u", "prompt": "x", "ground_truth": "1", "domain": "math"}\n')
    words = (f"evaluation.path={tmp_path / 'unseen.jsonl'}", "run.num_steps=0", f"run.dir={tmp_path / 'run'}")
    assert main(["train", *MODELLED.split(), *words]) == 0
    run = rollpacker.load(tmp_path / "run")
    assert list(run.evaluations["set"]) == ["unseen"]
    assert isinstance(run.samples, pd.DataFrame)
    with pytest.raises(DataError, match="only evaluates"):
        _ = run.steps


def test_a_run_has_a_folder_of_its_own_where_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = rollpacker.train(MODELLED, run__num_steps=1)
    assert run.dir.parts[0] == "runs"
    assert len(run.steps) == 1


def test_a_mistake_is_raised_with_its_text_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.num_step"):
        rollpacker.train(MODELLED, run__num_step=2, run__dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run\.callbacks"):
        rollpacker.train(MODELLED, run__callbacks=["nowhere.py:Class"], run__dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mistake_larger_than_a_pipe_takes_is_raised_whole(tmp_path: Path) -> None:
    name = "C" * 80_000  # bytes; a pipe takes 65,536
    with pytest.raises(ConfigError, match=name):
        rollpacker.train(MODELLED, run__callbacks=[f"nowhere.py:{name}"], run__dir=tmp_path / "run")


def test_a_folder_that_is_no_run_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run"):
        rollpacker.load(tmp_path)


def test_a_process_that_was_killed_is_a_failure_of_the_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(api, "_print_until_ended", lambda process: (process.kill(), process.wait()))
    with pytest.raises(WorldError, match="ended with code -9"):
        rollpacker.train(MODELLED, run__dir=tmp_path)


def test_a_function_of_a_file_is_named_so_that_a_process_can_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_reward.py").write_text("def mine(response): return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_own_reward  # type: ignore[import-not-found]

    assert api._source(my_own_reward.mine) == f"{tmp_path}/my_own_reward.py:mine"
    assert api._source(score) == f"{__name__}:score"


@pytest.mark.parametrize("function", [lambda: 1.0, Methods().score, functools.partial(score), print])
def test_a_function_that_no_process_can_import_is_refused_with_what_to_do(function: object) -> None:
    with pytest.raises(ConfigError, match="%%writefile"):
        rollpacker.train(MODELLED, reward=function)  # type: ignore[arg-type]


def test_a_function_of_a_notebook_is_refused() -> None:
    code = "import rollpacker\ndef f(response): return 1\nrollpacker.train('backend=sim', reward=f)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigError: reward=<function f" in ended.stderr


@pytest.mark.parametrize(
    ("words", "keys", "told"),
    [
        (["reward='a"], {}, "no closing quotation"),
        ([None], {}, "None is not a string"),
        ([["run.num_steps=1"]], {}, r"Give a list of words as \*WORDS"),
        ([{"run.num_steps": 1}], {}, r"a mapping of keys as \*\*KEYS"),
        ([], {"run__dir": "x\0y"}, "null character"),
        ([], {"data__domain_weights": {"é": 1}}, "`é` cannot be the name of an entry"),
        (["run.dir=x", "++run.dir=y"], {}, "`run.dir` is given twice"),
        ([], {"run__dir": "x" * 5000}, "File name too long"),
    ],
    ids=["quotes", "nothing", "list", "mapping", "null", "name", "twice", "long"],
)
def test_what_no_command_line_takes_is_the_callers_mistake(
    words: list[object], keys: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        rollpacker.train(MODELLED, *words, run__num_steps=1, **keys)  # type: ignore[arg-type]


def test_a_folder_that_is_named_with_a_prefix_of_hydra_is_named_once(tmp_path: Path) -> None:
    assert rollpacker.train(MODELLED, f"++run.dir={tmp_path}/run", run__num_steps=1).dir == tmp_path / "run"


SCRIPT = """
import rollpacker

rollpacker.train("{words}", run__dir="{run_dir}", run__num_steps=100000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_ends_in_good_order_when_its_script_is_interrupted_or_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    run_dir = tmp_path / "run"
    (tmp_path / "script.py").write_text(SCRIPT.format(words=MODELLED, run_dir=run_dir))
    with (tmp_path / "log").open("w") as log:
        script = subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=log, stderr=log)
    _wait_until(lambda: len(list(run_dir.glob("metrics/steps/*.parquet"))) > 0)
    script.send_signal(number)
    script.wait()
    _wait_until(lambda: (status := read_status(run_dir)) is not None and status.state != "running")
    status = read_status(run_dir)
    assert status is not None
    assert status.state == "interrupted", (tmp_path / "log").read_text()
    assert list((run_dir / "checkpoints").glob("step-*"))
    if number is signal.SIGINT:
        assert "KeyboardInterrupt" in (tmp_path / "log").read_text()


def _wait_until(condition: object, limit_s: float = 200) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_reward_that_is_neither_a_function_nor_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="reward=3 is no reward"):
        rollpacker.train("model.path=x", reward=3)


def test_a_script_that_trains_while_it_is_imported_for_its_reward_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import rollpacker\ndef mine(response): return 1.0\nrollpacker.train('reward=math', reward=mine)\n"
    )
    process = ServerProcess("rollpacker.rewards.scoring_process", [f"{tmp_path}/script.py:mine", "1"], "reward process")
    failure = process.start_failure()
    process.close()
    assert failure is not None
    assert "if __name__ == " in failure


@pytest.mark.parametrize("package", ["pkg", "pkg.inner"])
def test_a_function_of_a_package_beside_the_script_is_imported_by_the_run(tmp_path: Path, package: str) -> None:
    folder = tmp_path / "scripts" / package.replace(".", "/")
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("def mine(response): return 1.0\n")
    (folder / "rewards.py").write_text("def mine(colour): return 1.0\n")
    script = tmp_path / "scripts" / "script.py"
    for module in (f"{package}.rewards", *([package] if "." in package else [])):
        script.write_text(
            f"import rollpacker\nfrom {module} import mine\n"
            "if __name__ == '__main__':\n"
            "    rollpacker.train('model.path=nowhere data.path=nowhere.jsonl', reward=mine)\n"
        )
        ended = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=200
        )
        assert "nowhere.jsonl does not exist" in ended.stderr
        assert "No module named" not in ended.stderr
        assert ("its parameter `colour`" in ended.stderr) == module.endswith("rewards")


@pytest.mark.parametrize(
    ("folder", "is_named"), [("scripts", True), ("site-packages", False), ("dist-packages", False)]
)
def test_the_folder_of_a_package_is_named_unless_an_installer_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, is_named: bool
) -> None:
    package = f"own_{folder[:4]}"
    file = tmp_path / folder / package / "rewards.py"
    file.parent.mkdir(parents=True)
    file.write_text("def mine(response): return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path / folder)
    mine = importlib.import_module(f"{package}.rewards").mine
    assert api._package_root(mine) == (tmp_path / folder if is_named else None)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import rollpacker, sys\n"
        "print([name for name in ('torch', 'ray', 'pandas', 'pydantic', 'hydra', 'numpy') if name in sys.modules])\n"
        "rollpacker.train, rollpacker.load, rollpacker.Run\n"
        "print([name for name in ('torch', 'ray', 'pandas', 'hydra', 'numpy') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n[]\n"


def test_help_shows_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "python"]) == 0
    assert "rollpacker.train(" in capsys.readouterr().out
