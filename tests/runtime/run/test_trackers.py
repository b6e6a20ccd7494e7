"""Trackers, with the real TensorBoard and the real Weights & Biases (offline)."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

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
    import os
    from pathlib import Path
    from rollpacker.config.sections.run import TrackerSection
    from rollpacker.processes.lifetimes import children_of
    from rollpacker.runtime.run.trackers import make_trackers

    def children():
        return [Path(f"/proc/{{pid}}/comm").read_text().strip() for pid in children_of(os.getpid())]

    for attempt in range(2):
        tracker = make_trackers(TrackerSection(wandb=True), Path({str(tmp_path)!r}), "run-1", {{"a": {{"b": 1}}}})
        assert children() == ["wandb-core"], children()
        raced = {{"domain": "math", "prompt": "p1", "sample": 1, "reward": None, "response_text": "42"}}
        text = raced | {{"sample": 0, "reward": 0.5, "accepted": True, "prompt_text": "What?"}}
        row = {{"step": attempt, "reward_mean": 0.125, "round_kind": "short"}}
        tracker.log_step(row, samples=[text, raced])
        score = {{"step": attempt + 1, "set": "aime", "reward_mean": 0.25}}
        tracker.log_evaluation([score], [raced | {{"set": "aime"}}])
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
    tables = {
        kind: [json.loads(file.read_text()) for file in tmp_path.rglob(f"media/table/samples/{kind}_*.table.json")]
        for kind in ("training", "evaluation")
    }
    assert len(tables["training"]) == len(tables["evaluation"]) == 2
    table = tables["training"][0]
    assert [dict(zip(table["columns"], row, strict=True))["reward"] for row in table["data"]] == [0.5, None]
    assert table["data"][0][0] == "math"
    assert tables["evaluation"][0]["data"][0][0] == "aime"


def test_wandb_keeps_the_steps_that_a_resumed_run_makes_again(tmp_path: Path) -> None:
    """By its own step wandb would drop them, with a warning."""
    script = f"""
    from pathlib import Path
    from rollpacker.config.sections.run import TrackerSection
    from rollpacker.runtime.run.trackers import make_trackers

    tracker = make_trackers(TrackerSection(wandb=True), Path({str(tmp_path)!r}), "run-1", {{}})
    for step, reward in ((5, 0.0625), (6, 0.1875), (5, 0.3125)):
        tracker.log_evaluation([{{"step": step, "set": "aime", "reward_mean": reward}}])
        tracker.log_step({{"step": step, "reward_mean": reward + 0.5}})
    tracker.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    [log] = (tmp_path / "wandb").glob("offline-run-*/run-run-1.wandb")
    written = log.read_bytes()
    assert all(value in written for value in (b"0.0625", b"0.5625", b"0.1875", b"0.6875", b"0.3125", b"0.8125"))


class FakeWandb:
    """Keeps what a run is begun with, and what is called of it."""

    Error = Exception
    sync_dir = "/runs/x/wandb/run-1"

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.given: dict[str, Any] = {}
        self.calls: list[object] = []
        self.is_cut_off = False

    def Settings(self, **settings: object) -> None:  # noqa: N802  wandb's name
        self.settings = settings

    def init(self, **given: object) -> FakeWandb:
        self.given = given
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.calls.append((name, step_metric))

    def log(self, values: object) -> None:
        self.calls.append(values)

    def finish(self) -> None:
        if self.is_cut_off:
            self.is_cut_off = False
            raise TimeoutError("Timed out finishing run.")

    def teardown(self) -> None:
        self.calls.append("teardown")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)
    return fake


def test_a_wandb_run_is_named_after_its_folder_and_compared_within_its_experiment(
    tmp_path: Path, wandb: FakeWandb
) -> None:
    config: dict[str, dict[str, Any]] = {
        "system": {"name": "verl"},
        "model": {"name": None, "path": "/models/Qwen2.5-7B"},
        "run": {"study": ""},
    }
    make_trackers(TrackerSection(wandb=True), tmp_path / "e2e" / "verl", "run-1", config).close()
    assert (wandb.given["name"], wandb.given["group"]) == ("e2e/verl", "e2e")
    assert wandb.given["tags"] == ["verl", "Qwen2.5-7B"]
    config["run"]["study"] = "fig12"
    section = TrackerSection(
        wandb=True, wandb_name="n", wandb_entity="team", wandb_tags=("a", "b"), wandb_notes="Why.", wandb_project="p"
    )
    make_trackers(section, tmp_path / "e2e" / "verl", "run-1", config).close()
    wanted = {"name": "n", "group": "fig12", "entity": "team", "tags": ("a", "b"), "notes": "Why.", "project": "p"}
    assert {key: wandb.given[key] for key in wanted} == wanted


def test_steps_and_evaluations_of_wandb_lie_over_the_run_s_own_step(tmp_path: Path, wandb: FakeWandb) -> None:
    tracker = make_trackers(TrackerSection(wandb=True), tmp_path, "run-1", {})
    tracker.log_evaluation([{"step": 5, "set": "aime", "reward_mean": 0.25}])
    tracker.log_step({"step": 5, "reward_mean": 0.5})
    assert wandb.calls == [
        ("*", "step"),
        {"step": 5, "evaluation/aime/reward_mean": 0.25},
        {"step": 5, "steps/reward_mean": 0.5},
    ]


def test_a_run_that_cannot_upload_ends_all_the_same_and_says_how_to_send_the_rest(
    tmp_path: Path, wandb: FakeWandb
) -> None:
    notes: list[str] = []
    tracker = make_trackers(TrackerSection(wandb=True), tmp_path, "run-1", {}, notes.append)
    assert 0 < wandb.settings["finish_timeout"] < 60, "a preempted run has 120 s"
    assert wandb.settings["finish_timeout_raises"]
    wandb.is_cut_off = True
    tracker.close()
    [note] = notes
    assert "not all was uploaded" in note
    assert "`wandb sync /runs/x/wandb/run-1`" in note
    assert wandb.calls[-1] == "teardown"


def test_a_file_of_lines_has_the_same_numbers_and_no_line_that_a_kill_cut(tmp_path: Path) -> None:
    tracker = make_trackers(TrackerSection(jsonl=True), tmp_path, "run-1", {})
    tracker.log_step(make_row(0, 0.25), [{"step": 0, "domain": "math", "reward_mean": 0.5}])
    file = tmp_path / "tracker.jsonl"
    assert json.loads(file.read_text()) == {
        "step": 0,
        "steps/reward_mean": 0.25,
        "steps/num_aborted": 3.0,
        "domains/math/reward_mean": 0.5,
    }
    tracker.close()
    file.write_text(file.read_text() + '{"step": 1, "ste')
    tracker = make_trackers(TrackerSection(jsonl=True), tmp_path, "run-1", {})
    tracker.log_evaluation([{"step": 1, "set": "aime", "reward_mean": 0.75}])
    tracker.close()
    _, line = map(json.loads, file.read_text().splitlines())
    assert line == {"step": 1, "evaluation/aime/reward_mean": 0.75}
    file.write_text('{"st')
    make_trackers(TrackerSection(jsonl=True), tmp_path, "run-1", {}).close()
    assert file.read_text() == ""


OWN_TRACKER = """
class Own:
    def __init__(self, run_dir, run_id, config):
        self.file = run_dir / "own.txt"
        self.write(run_id, config["a"])

    def write(self, *words):
        with self.file.open("a") as file:
            print(*words, file=file)

    def log_step(self, row, domains=(), samples=()):
        self.write("step", row["step"], len(domains), [sample["response_text"] for sample in samples])
        if row["step"] == 1:
            raise RuntimeError("the server is gone")

    def log_evaluation(self, rows, samples=()):
        self.write("evaluation", rows[0]["set"])

    def close(self):
        self.write("closed")


class Half:
    def log_step(self, row): ...


def no_class(): ...
"""


def test_a_class_of_ones_own_gets_everything_until_it_fails_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_TRACKER)
    notes: list[str] = []
    section = TrackerSection(plugin=f"{tmp_path}/own.py:Own", jsonl=True)
    tracker = make_trackers(section, tmp_path, "run-1", {"a": 7}, notes.append)
    tracker.log_evaluation([{"step": 0, "set": "aime", "reward_mean": 0.5}])
    tracker.log_step(make_row(0, 0.1), [], [{"response_text": "42"}])
    for step in (1, 2):
        tracker.log_step(make_row(step, 0.1))
    tracker.close()
    said = ["run-1 7", "evaluation aime", "step 0 0 ['42']", "step 1 0 []", "closed"]
    assert (tmp_path / "own.txt").read_text().splitlines() == said
    assert notes == ["Own failed and gets nothing more: RuntimeError: the server is gone"]
    assert len((tmp_path / "tracker.jsonl").read_text().splitlines()) == 4


RUDE_TRACKERS = """
import sys

class Changes:
    def __init__(self, config, **_):
        config["model"].clear()

    def log_step(self, row, domains=(), samples=()):
        row.pop("step")
        domains[0].clear()
        samples[0]["turns"].clear()

    def log_evaluation(self, rows, samples=()):
        rows.clear()
        samples[0]["turns"].clear()

    def close(self):
        pass


class Leaves(Changes):
    def log_step(self, row, domains=(), samples=()):
        sys.exit(3)

    def close(self):
        sys.exit(4)


class NeverStarts(Changes):
    def __init__(self, **_):
        sys.exit(5)


class IsInterrupted(Changes):
    def log_step(self, row, domains=(), samples=()):
        raise KeyboardInterrupt
"""


def start_rude(tmp_path: Path, name: str, notes: list[str]) -> trackers.Tracker:
    (tmp_path / "rude.py").write_text(RUDE_TRACKERS)
    section, config = TrackerSection(plugin=f"{tmp_path}/rude.py:{name}"), {"model": {"name": "m"}}
    started = make_trackers(section, tmp_path, "run-1", config, notes.append)
    assert config == {"model": {"name": "m"}}
    return started


def test_a_class_of_ones_own_may_change_what_it_gets_and_the_run_keeps_its_own(tmp_path: Path) -> None:
    notes: list[str] = []
    tracker = start_rude(tmp_path, "Changes", notes)
    given: tuple[Row, list[Row], list[Row]] = (make_row(0, 0.5), [{"domain": "math"}], [{"turns": [{"text": "42"}]}])
    row, domains, samples = given
    tracker.log_step(row, domains, samples)
    tracker.log_evaluation(domains, samples)
    assert (row["step"], domains, samples) == (0, [{"domain": "math"}], [{"turns": [{"text": "42"}]}])
    assert notes == []


def test_a_class_of_ones_own_that_exits_gets_nothing_more_and_the_run_goes_on(tmp_path: Path) -> None:
    notes: list[str] = []
    tracker = start_rude(tmp_path, "Leaves", notes)
    for step in range(2):
        tracker.log_step(make_row(step, 0.5))
    tracker.close()
    assert notes == ["Leaves failed and gets nothing more: SystemExit: 3"]
    with pytest.raises(ConfigError, match="did not start: SystemExit: 5"):
        start_rude(tmp_path, "NeverStarts", notes)


def test_ctrl_c_in_a_class_of_ones_own_is_ctrl_c(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_rude(tmp_path, "IsInterrupted", []).log_step(make_row(0, 0.5))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Ow", "has no `Ow`; it has `Own`"),
        ("Half", "it has no method log_evaluation and no close"),
        ("no_class", "it is no class"),
    ],
)
def test_a_class_that_is_no_tracker_is_refused_before_the_start(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "own.py").write_text(OWN_TRACKER)
    with pytest.raises(ConfigError, match=problem):
        check_trackers(TrackerSection(plugin=f"{tmp_path}/own.py:{name}"))
    with pytest.raises(ConfigError, match="there is no file"):
        check_trackers(TrackerSection(plugin=f"{tmp_path}/other.py:Own"))


def test_a_tracker_that_does_not_start_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_TRACKER)
    with pytest.raises(ConfigError, match="did not start: KeyError: 'a'"):
        make_trackers(TrackerSection(plugin=f"{tmp_path}/own.py:Own"), tmp_path, "run-1", {})


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_a_configuration_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == package else name)
    check_trackers(TrackerSection())
    with pytest.raises(ConfigError, match=rf"tracker\.{package}=true, but the package {package} is not") as raised:
        check_trackers(TrackerSection(tensorboard=True, wandb=True))
    assert "pip install 'rollpacker[trackers]'" in raised.value.remedy


def test_neither_package_is_loaded_unless_asked_for() -> None:
    heavy = "{'wandb', 'tensorboard', 'torch', 'ray'}"
    script = f"import sys, rollpacker.runtime.run.trackers; print({heavy} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == "set()"
