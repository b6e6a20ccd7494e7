"""What an attempt finds of those before it: the curves of its run go on, and another run's records are set aside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollpacker import pipeline
from rollpacker.config.record import read_record
from rollpacker.core.errors import CheckpointError, DataError, WorldError
from rollpacker.core.events import StepStarted
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.rollout.replay import replay
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.trainer import ModelledTrainer
from rollpacker.sim.virtual_time import run_in_virtual_time
from rollpacker.timeline.moments import read_moments
from tests.runtime.allocations import enter_step
from tests.runtime.run.test_trackers import read_curves
from tests.sim.composed import config_of

SMALL = [
    *("backend=sim", "model=qwen2.5-7b", "workload.num_prompts=60", "engine.num_engines=3"),
    *("rollout.num_prompts=6", "rollout.num_responses=3", "rollout.max_response_tokens=4096"),
    *("run.progress=plain", "run.resume=auto", "run.num_steps=5", "run.checkpoint_every_steps=2"),
    *("tracker.jsonl=true", "tracker.tensorboard=true"),
]
SCORE = "evaluation/held/reward_mean"


@pytest.fixture
def held_out(tmp_path: Path) -> list[str]:
    lines = [{"id": f"q{number}", "domain": "math", "prompt": f"{number}?", "ground_truth": "1"} for number in range(4)]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [f"evaluation.path={tmp_path}/held.jsonl", "evaluation.every_steps=2"]


def train(run_dir: Path, *words: str) -> None:
    pipeline.run(config_of(run_dir, [*SMALL, *words]))


def fail_in_step(run_dir: Path, step: int, *words: str) -> None:
    """Train until a step has begun, after the evaluation and the checkpoint before it."""

    def watch(*_: object) -> Any:
        def on_event(event: object, *_: object) -> None:
            if isinstance(event, StepStarted) and event.step == step:
                raise WorldError("The cluster is gone.")

        return on_event

    config = config_of(run_dir, [*SMALL, *words])
    with pytest.raises(WorldError, match="The cluster is gone"):
        run_in_virtual_time(pipeline.train(config, ModelledBackend(config), watch))


def lines_of(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "tracker.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("step", [2, 3, 4])
def test_curves_of_a_resumed_run_have_every_evaluation_of_its_tables(
    tmp_path: Path, held_out: list[str], step: int
) -> None:
    fail_in_step(tmp_path / "run", step, *held_out)
    train(tmp_path / "run", *held_out)
    scores = read_frame(tmp_path / "run", "evaluations")
    wanted = [(row.step, round(row.reward_mean, 3)) for row in scores.itertuples()]
    assert [step for step, _ in wanted] == [0, 2, 4, 5]
    curves = read_curves(tmp_path / "run" / "tensorboard")
    assert curves[SCORE] == wanted
    assert [step for step, _ in curves["steps/reward_mean"]] == [0, 1, 2, 3, 4]
    assert {line["step"]: round(line[SCORE], 3) for line in lines_of(tmp_path / "run") if SCORE in line} == dict(wanted)


def test_an_attempt_that_evaluates_nothing_keeps_the_scores_of_the_policies_up_to_its_own(
    tmp_path: Path, held_out: list[str]
) -> None:
    run_dir = tmp_path / "run"
    fail_in_step(run_dir, 3, *held_out, "evaluation.every_steps=1", "run.checkpoint_every_steps=2")
    assert set(read_frame(run_dir, "evaluations")["step"]) == {0, 1, 2, 3}
    train(run_dir)
    assert set(read_frame(run_dir, "evaluations")["step"]) == {0, 1, 2}
    assert [step for step, _ in read_curves(run_dir / "tensorboard")[SCORE]] == [0, 1, 2]


def test_a_start_that_fails_takes_back_no_step_and_no_evaluation(
    tmp_path: Path, held_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, words = tmp_path / "run", [*held_out, "evaluation.every_steps=1"]

    async def fail(*_: object) -> None:
        raise WorldError("The file system hangs.")

    def steps_of(table: str) -> list[int]:
        return read_frame(run_dir, table)["step"].tolist()

    fail_in_step(run_dir, 3, *words)
    with monkeypatch.context() as failing:
        failing.setattr(ModelledTrainer, "load", fail)
        with pytest.raises(WorldError, match="The file system hangs"):
            train(run_dir, *words)
    assert (steps_of("steps"), steps_of("evaluations")) == ([0, 1, 2], [0, 1, 2, 3])
    train(run_dir, *words)
    assert (steps_of("steps"), steps_of("evaluations")) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5])


def test_a_line_of_numbers_takes_back_those_of_later_steps_before_it(tmp_path: Path) -> None:
    fail_in_step(tmp_path / "run", 4, "run.checkpoint_every_steps=2")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000004")
    train(tmp_path / "run", "run.num_steps=3")
    counted: list[int] = []
    for line in lines_of(tmp_path / "run"):
        counted = [step for step in counted if step < line["step"]] + [int(line["step"])]
    assert counted == read_frame(tmp_path / "run", "steps")["step"].tolist() == [0, 1, 2]


def test_another_run_in_a_folder_without_steps_shows_nothing_of_the_one_before_which_is_kept(
    tmp_path: Path, held_out: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, kept = tmp_path / "run", tmp_path / "run" / "replaced-001"
    fail_in_step(run_dir, 0, *held_out)
    (run_dir / "logs" / "attempt-000").mkdir(parents=True)
    before = lines_of(run_dir)
    assert SCORE in before[0]
    train(run_dir, "run.seed=8")
    assert f"Another run began in {run_dir} and finished no step. Its records are kept in {kept}." in (
        capsys.readouterr().out
    )
    with pytest.raises(DataError, match="has no evaluation"):
        read_frame(run_dir, "evaluations")
    assert [attempt.number for attempt in read_moments(run_dir).attempts] == [0]
    assert not any(SCORE in line for line in lines_of(run_dir))
    assert SCORE not in read_curves(run_dir / "tensorboard")
    assert read_frame(kept, "evaluations")["step"].tolist() == [0]
    assert replay(kept).attempts == 1
    assert lines_of(kept) == before
    assert SCORE in read_curves(kept / "tensorboard")
    assert (read_record(kept) or {})["run"]["seed"] == 0
    assert (kept / "logs" / "attempt-000").is_dir()


def test_jobs_of_another_run_are_set_aside_and_the_one_that_this_run_is_in_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left in `jobs` is asked for in Slurm's accounting, as this run's."""
    run_dir = tmp_path / "run"
    fail_in_step(run_dir, 0)
    for name in ("17.json", "17.0.0/head.json", "170.json", "170.0.0/head.json"):
        (run_dir / "jobs" / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / "jobs" / name).touch()
    enter_step(monkeypatch, job_id="170")
    fail_in_step(run_dir, 0, "run.seed=8")
    assert {path.name for path in (run_dir / "jobs").iterdir()} == {"170.json", "170.0.0"}
    assert {path.name for path in (run_dir / "replaced-001" / "jobs").iterdir()} == {"17.json", "17.0.0"}
    assert (run_dir / "replaced-001" / "jobs" / "17.0.0" / "head.json").exists()


def test_the_same_run_begins_again_in_its_folder_and_sets_nothing_aside(tmp_path: Path, held_out: list[str]) -> None:
    run_dir = tmp_path / "run"
    fail_in_step(run_dir, 0, *held_out)
    train(run_dir, *held_out)
    assert [attempt.number for attempt in read_moments(run_dir).attempts] == [0, 1]
    assert not list(run_dir.glob("replaced-*"))


def test_each_run_that_is_replaced_has_a_folder_of_its_own(tmp_path: Path) -> None:
    for seed in range(3):
        fail_in_step(tmp_path / "run", 0, f"run.seed={seed}")
    kept = sorted(tmp_path.glob("run/replaced-*"))
    assert [(read_record(folder) or {})["run"]["seed"] for folder in kept] == [0, 1]


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_scores_of_an_evaluation_are_kept_when_its_folder_takes_another_one(
    tmp_path: Path, held_out: list[str], capsys: pytest.CaptureFixture[str], resume: str
) -> None:
    run_dir, kept = tmp_path / "run", tmp_path / "run" / "replaced-001"
    other = [f"evaluation.path={tmp_path}/other.jsonl", held_out[1]]
    shutil.copy(tmp_path / "held.jsonl", tmp_path / "other.jsonl")
    for words in (held_out, other):
        train(run_dir, "run.num_steps=0", f"run.resume={resume}", *words)
    assert read_frame(run_dir, "evaluations")["set"].tolist() == ["other"]
    assert read_frame(kept, "evaluations")["set"].tolist() == ["held"]
    assert f"{run_dir} held an earlier evaluation. Its records are kept in {kept}." in capsys.readouterr().out
    train(run_dir, "run.num_steps=0", *other)
    assert not (run_dir / "replaced-002").exists(), "run.resume=auto goes on with it"


def test_every_score_is_compared_with_the_first_one_whatever_came_between(tmp_path: Path, held_out: list[str]) -> None:
    forgets = ["workload.solve_rate=0.9", "workload.solve_rate_drift_per_step=-0.1"]
    for num_steps in (4, 8):
        train(tmp_path / "run", *held_out, *forgets, "evaluation.num_samples=4", f"run.num_steps={num_steps}")
    scores = read_frame(tmp_path / "run", "evaluations").set_index("step")
    assert scores.index.tolist() == [0, 2, 4, 6, 8]
    expected = scores["reward_mean"] - scores["reward_mean"][0]
    assert expected.is_unique
    assert scores["diff_to_first"].tolist()[1:] == pytest.approx(expected.tolist()[1:])


@pytest.mark.parametrize("has_manifest", [True, False])
def test_tables_of_steps_that_no_checkpoint_covers_are_kept_when_the_run_begins_again(
    tmp_path: Path, held_out: list[str], capsys: pytest.CaptureFixture[str], has_manifest: bool
) -> None:
    run_dir, kept = tmp_path / "run", tmp_path / "run" / "replaced-001"
    train(run_dir, *held_out)
    before = read_frame(run_dir, "steps"), read_frame(run_dir, "evaluations")
    identity = (run_dir / "run.json").read_text()
    shutil.rmtree(run_dir / "checkpoints")
    if not has_manifest:
        (run_dir / "metrics" / "manifest.json").unlink()
    capsys.readouterr()
    train(run_dir, "run.num_steps=2")
    said = " ".join(capsys.readouterr().out.split())
    assert "holds no checkpoint, so the run begins again. Done again: 5 steps." in said
    assert f"Their tables are kept in {kept}." in said
    assert read_frame(run_dir, "steps")["step"].tolist() == [0, 1]
    if has_manifest:
        for table, rows in zip(("steps", "evaluations"), before, strict=True):
            assert read_frame(kept, table).equals(rows)
    assert len(list((kept / "metrics" / "steps").iterdir())) == 5
    assert (run_dir / "run.json").read_text() == identity


def test_a_run_of_another_version_is_told_by_its_version_whatever_else_its_record_holds(tmp_path: Path) -> None:
    train(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"schema_version": 999, "run": {"id": "a"}}')
    with pytest.raises(CheckpointError, match=r"run\.json has schema version 999"):
        train(tmp_path / "run")
