"""Trackers, with the real TensorBoard and the real Weights & Biases (offline)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rollpacker.config.sections.run import TrackerSection
from rollpacker.core.errors import ConfigError, StorageFailed
from rollpacker.runtime.run import trackers
from rollpacker.runtime.run.trackers import check_trackers, make_trackers

Row = dict[str, object]


def make_row(step: int, reward: float) -> Row:
    return {
        "step": step,
        "round_kind": "short",
        "reward_mean": reward,
        "num_aborted": 3,
        "kl_to_reference": None,
        "loss": float("nan"),
        "modelled": False,
    }


def read_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(event.step, round(event.value, 3)) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_shows_the_numbers_of_each_step(tmp_path: Path) -> None:
    tracker = make_trackers(TrackerSection(tensorboard=True), tmp_path, "run-1", {})
    tracker.log_step(make_row(0, 0.25))
    assert read_curves(tmp_path / "tensorboard")["steps/reward_mean"] == [(0, 0.25)]
    domain = {"step": 1, "domain": "math", "reward_mean": 0.75, "reward_parts_mean": {"a": 0.5}, "modelled": False}
    tracker.log_step(make_row(1, 0.5), [domain])
    tracker.close()
    assert read_curves(tmp_path / "tensorboard") == {
        "steps/reward_mean": [(0, 0.25), (1, 0.5)],
        "steps/num_aborted": [(0, 3.0), (1, 3.0)],
        "domains/math/reward_mean": [(1, 0.75)],
        "domains/math/reward_parts_mean/a": [(1, 0.5)],
    }


def test_an_evaluation_is_a_curve_per_set_over_the_finished_steps(tmp_path: Path) -> None:
    tracker = make_trackers(TrackerSection(tensorboard=True), tmp_path, "run-1", {})
    tracker.log_evaluation([{"step": 0, "set": "aime", "reward_mean": 0.25, "se_given_prompts": None}])
    tracker.log_step(make_row(0, 0.5))
    sets = ({"step": 1, "set": name, "reward_mean": reward} for name, reward in (("aime", 0.5), ("gsm", 0.75)))
    tracker.log_evaluation(list(sets))
    tracker.close()
    curves = read_curves(tmp_path / "tensorboard")
    assert curves["evaluation/aime/reward_mean"] == [(0, 0.25), (1, 0.5)]
    assert curves["evaluation/gsm/reward_mean"] == [(1, 0.75)]


def test_steps_that_a_resumed_run_makes_again_replace_those_before(tmp_path: Path) -> None:
    for first, reward in ((0, 0.1), (2, 0.9)):
        tracker = make_trackers(TrackerSection(tensorboard=True), tmp_path, "run-1", {})
        for step in range(first, 4):
            tracker.log_step(make_row(step, reward))
        tracker.close()
    curve = read_curves(tmp_path / "tensorboard")["steps/reward_mean"]
    assert curve == [(0, 0.1), (1, 0.1), (2, 0.9), (3, 0.9)]


def test_an_unwritable_tensorboard_folder_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(StorageFailed, match="tensorboard could not be written"):
        make_trackers(TrackerSection(tensorboard=True), tmp_path, "run-1", {})


def test_without_trackers_nothing_is_written(tmp_path: Path) -> None:
    tracker = make_trackers(TrackerSection(), tmp_path, "run-1", {})
    tracker.log_step(make_row(0, 0.25))
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_wandb_offline_keeps_the_run_id_over_attempts_and_leaves_no_process(tmp_path: Path) -> None:
    """In its own process, as in a run: wandb keeps state per process."""
    script = f"""
    from pathlib import Path
    from rollpacker.config.sections.run import TrackerSection
    from rollpacker.runtime.run.trackers import make_trackers

    def children():
        pids = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
        return [Path(f"/proc/{{pid}}/comm").read_text().strip() for pid in pids]

    for attempt in range(2):
        tracker = make_trackers(TrackerSection(wandb=True), Path({str(tmp_path)!r}), "run-1", {{"a": {{"b": 1}}}})
        assert children() == ["wandb-core"], children()
        tracker.log_step({{"step": attempt, "reward_mean": 0.125, "round_kind": "short"}})
        tracker.close()
        assert children() == [], children()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    logs = list((tmp_path / "wandb").glob("offline-run-*/run-run-1.wandb"))
    assert len(logs) >= 1
    assert all(b"steps/reward_mean" in log.read_bytes() for log in logs)


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_a_configuration_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == package else name)
    check_trackers(TrackerSection())
    with pytest.raises(ConfigError, match=rf"tracker\.{package}=true, but the package {package} is not") as raised:
        check_trackers(TrackerSection(tensorboard=True, wandb=True))
    assert "pip install 'rollpacker[trackers]'" in raised.value.remedy


def test_wandb_online_needs_its_key_before_the_run_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    section = TrackerSection(wandb=True, wandb_mode="online")
    with pytest.raises(ConfigError, match="WANDB_API_KEY is not set") as raised:
        make_trackers(section, tmp_path / "run", "run-1", {})
    assert "wandb sync" in raised.value.remedy
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    check_trackers(section)


def test_neither_package_is_loaded_unless_asked_for() -> None:
    heavy = "{'wandb', 'tensorboard', 'torch', 'ray'}"
    script = f"import sys, rollpacker.runtime.run.trackers; print({heavy} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == "set()"
