"""Runs whose folder was damaged, or in which nothing was trained: no work is lost that is still there."""

import json
import shutil
from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.config.fingerprint import defining_values
from rollpacker.core.errors import CheckpointError, ConfigError
from rollpacker.metrics.schemas import TABLES
from rollpacker.metrics.tables import Manifest, read_table
from rollpacker.runtime.run.preflight import validate
from rollpacker.runtime.run.run_folder import find_resumable, free_keys
from rollpacker.sim.run_facts import ModelledRunFacts
from rollpacker.sim.trainer import STATE_FILE
from tests.cli.inputs import tree_of
from tests.sim import composed
from tests.sim.test_determinism import SMALL


def config_of(run_dir: Path, *words: str):
    return composed.config_of(run_dir, [*SMALL, "run.checkpoint_every_steps=1", "run.num_steps=3", *words])


def step_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step-{step:06d}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three steps, with checkpoints after the second and the third."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    pipeline.run(config_of(run_dir))
    return run_dir


@pytest.fixture
def run_dir(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def rows_of(run_dir: Path) -> dict[str, list[dict[str, object]]]:
    """Those of all tables, without the checkpoint of step 2: a run that goes on from it does not write it again."""
    rows = {name: read_table(run_dir, name).to_pylist() for name in TABLES}
    rows["intervals"] = [row for row in rows["intervals"] if (row["activity"], row["step"]) != ("checkpoint", 2)]
    return rows


def remove(file: Path) -> None:
    file.unlink()


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def overwrite(file: Path) -> None:
    file.write_bytes(b"\xff" * file.stat().st_size)


def make_a_list(file: Path) -> None:
    file.write_text("[]")


@pytest.mark.parametrize(
    ("name", "damage"), [("meta.json", remove), ("order.json", make_a_list), (f"trainer/{STATE_FILE}", overwrite)]
)
def test_a_run_goes_on_from_the_older_checkpoint_when_the_newest_is_broken(trained, run_dir, name, damage, capsys):
    broken = step_folder(run_dir, 3)
    damage(broken / name)
    damaged = tree_of(broken)
    pipeline.run(config_of(run_dir, "run.progress=plain"))
    assert rows_of(run_dir) == rows_of(trained)
    assert find_resumable(config_of(run_dir)).newest.meta.step == 3
    kept = run_dir / "checkpoints" / "broken-step-000003"
    assert tree_of(kept) == damaged
    said = capsys.readouterr().out
    assert "The checkpoint of step 3 is broken: " in said
    assert name in said
    assert f"It is kept as {kept}." in said
    assert "goes on from the checkpoint of step 2. Done again: 1 step." in said


def test_without_a_whole_checkpoint_a_run_is_refused_before_anything_changes_and_nobody_is_told_to_delete(run_dir):
    remove(step_folder(run_dir, 2) / "trainer" / STATE_FILE)
    halve(step_folder(run_dir, 3) / "meta.json")
    before = tree_of(run_dir)
    with pytest.raises(CheckpointError) as refused:
        validate(config_of(run_dir), ModelledRunFacts)
    assert tree_of(run_dir) == before
    message = str(refused.value)
    assert "step-000003: meta.json is damaged" in message
    assert f"step-000002: trainer/{STATE_FILE} is missing" in message
    assert not {"remove", "delete"} & set(message.lower().split())


def test_names_that_are_no_checkpoints_are_passed_over(run_dir):
    for name in ("step-000003.bak", "step-old", "step-9"):
        shutil.copytree(step_folder(run_dir, 3), run_dir / "checkpoints" / name)
    (run_dir / "logs" / "attempt-old").mkdir(parents=True)
    pipeline.run(config_of(run_dir, "run.num_steps=4"))
    assert len(read_table(run_dir, "steps")) == 4


def test_a_checkpoint_of_another_run_is_not_resumed(run_dir, tmp_path):
    pipeline.run(config_of(tmp_path / "other", "run.seed=8", "run.num_steps=4"))
    shutil.copytree(step_folder(tmp_path / "other", 4), step_folder(run_dir, 4))
    found = find_resumable(config_of(run_dir))
    assert found.newest.meta.step == 3
    assert [broken.problem for broken in found.broken] == ["it belongs to another run"]


@pytest.mark.parametrize("damage", [remove, halve, empty, overwrite, make_a_list])
def test_a_lost_run_file_is_made_again_from_a_checkpoint(run_dir, damage):
    file = run_dir / "run.json"
    before = json.loads(file.read_text())
    damage(file)
    with pytest.raises(ConfigError, match="already holds this run"):
        validate(config_of(run_dir, "run.resume=never"), ModelledRunFacts)
    pipeline.run(config_of(run_dir, "run.num_steps=4"))
    assert json.loads(file.read_text()) == before
    assert len(read_table(run_dir, "steps")) == 4


@pytest.mark.parametrize("damage", [remove, empty])
def test_steps_whose_run_is_not_known_are_not_trained_over(run_dir, damage):
    shutil.rmtree(run_dir / "checkpoints")
    damage(run_dir / "run.json")
    before = tree_of(run_dir)
    for resume in ("auto", "never"):
        with pytest.raises(CheckpointError, match=r"no whole checkpoint says which run this is"):
            validate(config_of(run_dir, f"run.resume={resume}"), ModelledRunFacts)
    assert tree_of(run_dir) == before


@pytest.mark.parametrize(("resume", "words"), [("never", []), ("never", ["run.seed=8"]), ("auto", ["system=verl"])])
def test_a_folder_in_which_nothing_was_trained_is_free_for_any_configuration(tmp_path, monkeypatch, resume, words):
    run_dir = tmp_path / "run"
    with monkeypatch.context() as failing:
        failing.setattr("rollpacker.sim.trainer.ModelledTrainer.export_weights", fail)
        with pytest.raises(ValueError, match="the model cannot be loaded"):
            pipeline.run(config_of(run_dir))
    config = config_of(run_dir, f"run.resume={resume}", *words)
    validate(config, ModelledRunFacts)
    pipeline.run(config)
    assert len(read_table(run_dir, "steps")) == 3


async def fail(_self):
    raise ValueError("the model cannot be loaded")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run.seed=8"], ["run.seed: 8 here, 0 in the run"]),
        (["trainer.learning_rate=0.1"], ["trainer.learning_rate: 0.1 here, 1e-06 in the run"]),
        (["system=verl"], ["system.name: verl here, rollpacker in the run"]),
        (["data.shuffle=false", "run.seed=8"], ["data.shuffle: false here, true in the run", "run.seed: 8 here"]),
        (["trainer.lr_schedule=linear"], ["trainer.lr_schedule: linear here, constant in the run"]),
    ],
)
def test_a_changed_key_is_named_with_both_values(run_dir, words, told):
    with pytest.raises(CheckpointError) as refused:
        validate(config_of(run_dir, *words), ModelledRunFacts)
    for line in told:
        assert f"  {line}" in refused.value.problem
    assert refused.value.allowed == free_keys()
    assert "run.num_steps" not in refused.value.problem


def test_what_may_differ_is_what_the_schema_leaves_out_of_the_fingerprint(run_dir):
    said = set(free_keys().replace(",", "").replace(";", "").split())
    assert {"cluster", "elastic", "evaluation", "placement", "tracker", "weight_sync", "model.name"} <= said
    assert {"run.keep_best", "run.best_by", "run.callbacks", "model.export_dtype", "system.routing"} <= said
    keys = {key for key in defining_values(config_of(run_dir)) if "." in key}  # without a section that is null
    assert not said & keys, "it names a key of which a run is made"


def test_many_changed_keys_are_counted(run_dir):
    words = [
        "system=verl",
        "run.seed=8",
        "rollout.temperature=0.5",
        "rollout.max_response_tokens=2048",
        "trainer.learning_rate=1",
    ]
    words += ["trainer.weight_decay=0.5", "data.shuffle=false", "rollout.num_responses=4"]
    with pytest.raises(CheckpointError, match=r"and \d+ keys more"):
        validate(config_of(run_dir, *words), ModelledRunFacts)
    words = [*words[1:], "trainer.max_grad_norm=2", "run.num_epochs=1"]
    with pytest.raises(CheckpointError, match="and 1 key more"):
        validate(config_of(run_dir, *words), ModelledRunFacts)


def test_a_run_whose_configuration_is_not_on_record_is_refused_all_the_same(run_dir):
    for content in (None, "", "[]", "run: {}"):
        if content is None:
            (run_dir / "config.yaml").unlink()
        else:
            (run_dir / "config.yaml").write_text(content)
        with pytest.raises(CheckpointError, match=r"its config\.yaml cannot be compared"):
            validate(config_of(run_dir, "run.seed=8"), ModelledRunFacts)


def test_tables_that_cannot_be_read_are_told_and_kept_and_the_run_goes_on(run_dir, capsys):
    parts = sorted((run_dir / "metrics" / "steps").iterdir())
    for part in parts:
        part.write_bytes(part.read_bytes()[:500])
    pipeline.run(config_of(run_dir, "run.num_steps=5", "run.progress=plain"))
    said = capsys.readouterr().out
    for step, part in enumerate(parts):
        assert f"The tables go on without step {step + 1}: {part} is not readable" in said
        assert (run_dir / "metrics" / "broken-001" / "steps" / part.name).stat().st_size == 500
    assert [row["step"] for row in read_table(run_dir, "steps").to_pylist()] == [3, 4]


def test_a_damaged_step_that_the_run_makes_again_is_not_told_as_lost(trained, run_dir, capsys):
    shutil.rmtree(step_folder(run_dir, 3))
    halve(run_dir / "metrics" / "steps" / "step-000002.parquet")
    pipeline.run(config_of(run_dir, "run.progress=plain"))
    assert "go on without" not in capsys.readouterr().out
    assert rows_of(run_dir) == rows_of(trained)


def leave_before_the_first_manifest(metrics: Path) -> None:
    shutil.rmtree(metrics / "intervals")
    (metrics / "manifest.json").unlink()


def take_all_steps_back(metrics: Path) -> None:
    (metrics / "manifest.json").write_bytes(Manifest(num_truncations=1).to_json())


@pytest.mark.parametrize("leave", [leave_before_the_first_manifest, take_all_steps_back])
def test_a_kill_in_the_first_write_of_the_tables_leaves_the_folder_free_for_any_configuration(run_dir, leave):
    shutil.rmtree(run_dir / "checkpoints")
    leave(run_dir / "metrics")
    pipeline.run(config_of(run_dir, "run.seed=8", "run.num_steps=2"))
    assert [row["step"] for row in read_table(run_dir, "steps").to_pylist()] == [0, 1]


@pytest.mark.parametrize("damage", [remove, halve, make_a_list])
def test_steps_whose_manifest_is_lost_are_not_trained_over(run_dir, damage):
    shutil.rmtree(run_dir / "checkpoints")
    damage(run_dir / "metrics" / "manifest.json")
    with pytest.raises(CheckpointError, match="holds another run"):
        validate(config_of(run_dir, "run.seed=8"), ModelledRunFacts)


def test_a_resumed_run_removes_what_a_killed_attempt_left_half_written_and_nothing_of_other_writers(run_dir):
    left = [run_dir / f".tmp-0a1b2c3d-{name}" for name in ("status.json", "run.json", "config.yaml")]
    left.append(run_dir / "events" / ".tmp-0a1b2c3d-attempt-001.jsonl")
    others = [run_dir / f".tmp-0a1b2c3d-{name}" for name in ("job.json", "report.html")]
    for file in (*left, *others):
        file.touch()
    (run_dir / ".tmp-0a1b2c3d-model").mkdir()
    pipeline.run(config_of(run_dir))
    assert sorted(run_dir.rglob(".tmp-*")) == others


def test_a_checkpoint_that_became_too_old_when_an_attempt_was_killed_is_removed_by_the_next_one(run_dir):
    shutil.copytree(step_folder(run_dir, 2), step_folder(run_dir, 1))
    pipeline.run(config_of(run_dir))
    names = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert names == ["step-000002", "step-000003"]


def test_a_lost_manifest_costs_no_step(run_dir):
    (run_dir / "metrics" / "manifest.json").unlink()
    pipeline.run(config_of(run_dir, "run.num_steps=4"))
    assert [row["step"] for row in read_table(run_dir, "steps").to_pylist()] == [0, 1, 2, 3]


def test_a_copied_run_whose_link_to_the_best_checkpoint_was_followed_goes_on_and_keeps_it(run_dir, tmp_path, capsys):
    shutil.copytree(step_folder(run_dir, 2), step_folder(run_dir, 1))
    meta = step_folder(run_dir, 1) / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"step": 1}))
    (run_dir / "checkpoints" / "best").symlink_to("step-000001")
    copied = shutil.copytree(run_dir, tmp_path / "copied", symlinks=False)
    pipeline.run(config_of(copied, "run.num_steps=4", "run.progress=plain"))
    assert f"kept as {copied}/checkpoints/copied-best." in " ".join(capsys.readouterr().out.split())
    names = sorted(path.name for path in (copied / "checkpoints").iterdir())
    assert names == ["best", "copied-best", "step-000001", "step-000003", "step-000004"]
    assert (copied / "checkpoints" / "best").readlink() == Path("step-000001")
