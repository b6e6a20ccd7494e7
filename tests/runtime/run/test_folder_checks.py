"""Where a run may not write is said before anything starts, by train, check and doctor alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import ConfigError
from rollpacker.launch.doctor.examination import examine
from rollpacker.runtime.run.folder_checks import check_run_dir


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "inputs"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "prompts.jsonl").write_text("{}")
    (folder / "file").write_text("")
    os.mkfifo(folder / "pipe")
    return folder


def run_in(run_dir: str, inputs: Path) -> RunConfig:
    config = compose([f"model.path={inputs}/model", f"data.path={inputs}/prompts.jsonl", "run.dir=r"])
    return config.model_copy(update={"run": config.run.model_copy(update={"dir": Path(run_dir)})})


REFUSED = {
    "/proc/x": "is in /proc",
    "/sys/x": "is in /sys",
    "/dev/x": "is in /dev",
    "/dev/null": "is a device",
    "/": "is the root of all files",
    "{inputs}/file": "is a file",
    "{inputs}/pipe": "is a pipe",
    "{inputs}/file/x": "is a file",
    "{inputs}/model": "is in model.path",
    "{inputs}/model/runs/x": "is in model.path",
    "{inputs}": "holds data.path",
    "{inputs}/..": "holds data.path",
    "runs/a\nb": "cannot be printed",
    "runs/\x1b[31m": "cannot be printed",
    "~/x": "taken literally",
    "$HOME/x": "taken literally",
    "runs/${HOME}": "taken literally",
    "runs/" + 300 * "x": "is too long",
    "runs/" + 1000 * "xxxx/": "is too long",
}


@pytest.mark.parametrize("run_dir", REFUSED)
def test_where_no_run_should_write_is_refused_by_all_commands_in_the_same_words(run_dir: str, inputs: Path) -> None:
    config = run_in(run_dir.replace("{inputs}", str(inputs)), inputs)
    with pytest.raises(ConfigError) as caught:
        check_run_dir(config)
    assert REFUSED[run_dir] in caught.value.problem
    assert caught.value.remedy
    (found,) = [finding for finding in examine(config, {}) if finding.subject == "run.dir"]
    assert found.level == "problem"
    assert REFUSED[run_dir] in found.text


OWN_NAMES = {
    "run.json": (Path.mkdir, "is a folder"),
    "config.yaml": (os.mkfifo, "is a pipe"),
    "status.json": (lambda path: path.symlink_to(path), "is a link to nothing"),
    "checkpoints": (Path.touch, "is a file"),
    "metrics": (lambda path: path.symlink_to("/no/such"), "is a link to nothing"),
    "logs": (os.mkfifo, "is a pipe"),
}


@pytest.mark.parametrize("name", OWN_NAMES)
def test_what_stands_in_the_place_of_a_runs_own_files_is_refused(name: str, inputs: Path, tmp_path: Path) -> None:
    make, kind = OWN_NAMES[name]
    make(tmp_path / name)
    with pytest.raises(ConfigError) as caught:
        check_run_dir(run_in(str(tmp_path), inputs))
    assert f"{tmp_path / name} {kind}" in caught.value.problem


@pytest.mark.parametrize("run_dir", ["runs/x", "/dev/shm/x", "a b/日本", "{inputs}/runs", "it costs 5$"])  # noqa: S108
def test_where_a_run_may_write_is_not_refused(
    run_dir: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_run_dir(run_in(run_dir.replace("{inputs}", str(inputs)), inputs))


def test_the_folder_of_a_run_may_hold_the_model_that_it_began_with(inputs: Path) -> None:
    (inputs / "run.json").write_text("{}")
    check_run_dir(run_in(str(inputs), inputs))
