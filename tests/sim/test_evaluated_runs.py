"""Modelled runs with held-out sets: paired, replayable, resumable, and without any effect on what is trained."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pandas.testing import assert_frame_equal

from rollpacker import pipeline
from rollpacker.core.errors import DataError, WorldError
from rollpacker.core.ids import is_held_out
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.rollout.replay import replay
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.engine import ModelledEngine
from rollpacker.sim.trainer import ModelledTrainer
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.composed import config_of, small
from tests.sim.test_turns import TrainerOnGround, TurnsBackend

NUM_STEPS = 5
SMALL = small(
    *("rollout.num_prompts=6", "rollout.num_responses=3", "engine.num_engines=3", "workload.num_prompts=60"),
    *("run.checkpoint_every_steps=2", "run.resume=auto"),
)
SYSTEMS = ("verl", "rollpacker", "dapo-rollpacker")


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("held out")
    for name, num_prompts in (("math-new", 5), ("code-new", 3)):
        domain = name.partition("-")[0]
        lines = [
            {"id": f"q{number}", "domain": domain, "prompt": f"{name} {number}?", "ground_truth": "1"}
            for number in range(num_prompts)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entries = f"{{path:{folder}/math-new.jsonl,num_samples:4}},{folder}/code-new.jsonl"
    return [f"evaluation.path=[{entries}]", "evaluation.every_steps=2", "evaluation.num_samples=2"]


def train(run_dir: Path, *words: str) -> Path:
    pipeline.run(config_of(run_dir, [*SMALL, f"run.num_steps={NUM_STEPS}", *words]))
    return run_dir


def trained(run_dir: Path) -> list[tuple[Any, ...]]:
    """What every batch was made of, in its order."""
    frame = read_frame(run_dir, "responses")
    columns = ["step", "round_kind", "prompt", "sample", "length_tokens", "reward", "accepted", "trained_reward"]
    return [tuple(row) for row in frame.loc[frame["accepted"], columns].itertuples(index=False)]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_batch_is_the_same_with_and_without_evaluation(tmp_path: Path, held_out: list[str], system: str) -> None:
    evaluated = train(tmp_path / "evaluated", f"system={system}", *held_out)
    assert trained(evaluated) == trained(train(tmp_path / "plain", f"system={system}"))
    assert read_frame(evaluated, "evaluations")["step"].tolist() == [0, 0, 2, 2, 4, 4, 5, 5]
    assert replay(evaluated).attempts == 1


def test_a_run_without_held_out_sets_has_no_tables_of_evaluations(tmp_path: Path) -> None:
    run_dir = train(tmp_path / "run", "run.num_steps=1")
    assert not (run_dir / "evaluation").exists()
    with pytest.raises(DataError, match="has no evaluation"):
        read_frame(run_dir, "evaluations")


def test_a_sample_has_the_same_seed_in_every_evaluation_and_every_system(tmp_path: Path, held_out: list[str]) -> None:
    lengths = {}
    for system in ("verl", "rollpacker"):
        frame = read_frame(train(tmp_path / system, f"system={system}", *held_out), "evaluation_responses")
        for step, rows in frame.groupby("step"):
            lengths[system, step] = rows[["set", "prompt", "sample", "length_tokens"]].to_numpy().tolist()
    first = lengths["verl", 0]
    assert len(first) == 5 * 4 + 3 * 2
    assert all(each == first for each in lengths.values())
    other = read_frame(train(tmp_path / "other", *held_out, "evaluation.seed=1"), "evaluation_responses")
    assert other.loc[other["step"] == 0, "length_tokens"].tolist() != [row[3] for row in first]


def test_the_table_says_what_its_responses_say(tmp_path: Path, held_out: list[str]) -> None:
    run_dir = train(tmp_path / "run", *held_out, "run.num_steps=2", "evaluation.pass_at=[1,2]")
    responses, scores = read_frame(run_dir, "evaluation_responses"), read_frame(run_dir, "evaluations")
    of_pass = read_frame(run_dir, "pass_at_k").set_index(["step", "set", "k"])
    for row in scores.itertuples():
        own = responses[(responses["step"] == row.step) & (responses["set"] == row.set)]
        assert len(own) == row.num_prompts * row.num_samples
        assert row.reward_mean == pytest.approx(own["reward"].mean())
        assert row.truncated_share == pytest.approx((own["finish_reason"] == "length").mean())
        assert row.tokens_generated == own["length_tokens"].sum()
        assert of_pass.loc[(row.step, row.set, 1), "value"] == pytest.approx((own["reward"] >= 1).mean())
        assert of_pass.loc[(row.step, row.set, 2), "value"] >= of_pass.loc[(row.step, row.set, 1), "value"]
    last, first = (responses[responses["step"] == step]["reward"].to_numpy() for step in (2, 0))
    shift = scores.set_index(["step", "set"])["diff_to_first"]
    assert shift[0].isna().all()
    assert shift[2, "math-new"] == pytest.approx((last - first)[:20].mean())
    assert responses["response_text"].isna().all()  # a model of an engine writes none


FILL = "evaluation.when=fill"


def evaluations_of(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    tables = ("evaluations", "pass_at_k", "evaluation_responses", "steps", "responses")
    return {table: read_frame(run_dir, table).to_dict("records") for table in tables}


class Stop(WorldError):
    pass


def train_twice(run_dir: Path, num_events: int, *words: str) -> Path:
    """Train in two attempts, the first of which ends with so many events of held-out requests."""
    config = config_of(run_dir, [*SMALL, f"run.num_steps={NUM_STEPS}", *words])

    def watch(*_: object) -> Any:
        num_seen = 0

        def on_event(event: Any, *_: object) -> None:
            nonlocal num_seen
            num_seen += hasattr(event, "request") and is_held_out(event.request)
            if num_seen == num_events:
                raise Stop("The cluster is gone.")

        return on_event

    with pytest.raises(Stop):
        run_in_virtual_time(pipeline.train(config, ModelledBackend(config), watch))
    return train(run_dir, *words)


@pytest.mark.parametrize("num_events", [3, 30, 60, 95])
def test_an_evaluation_that_was_cut_is_made_again_from_its_beginning(
    tmp_path: Path, held_out: list[str], num_events: int
) -> None:
    unbroken = train(tmp_path / "unbroken", *held_out, "system=verl")
    broken = train_twice(tmp_path / "broken", num_events, *held_out, "system=verl")
    assert repr(evaluations_of(broken)) == repr(evaluations_of(unbroken))


@pytest.mark.parametrize("num_events", [60, 110])
def test_an_evaluation_that_fills_a_round_and_was_cut_is_made_again_from_its_beginning(
    tmp_path: Path, held_out: list[str], num_events: int
) -> None:
    words = [*held_out, FILL, "system=verl"]
    unbroken = train(tmp_path / "unbroken", *words)
    broken = train_twice(tmp_path / "broken", num_events, *words)
    for table in ("evaluations", "pass_at_k", "evaluation_responses", "steps", "responses"):
        before, after = read_frame(unbroken, table), read_frame(broken, table)
        # a run counts how long engines take to come back after a checkpoint, and not how long they take at its start
        moments = [name for name in before if name.endswith("_at_s") or name == "checkpoint_time_s"]
        assert_frame_equal(before.drop(columns=moments), after.drop(columns=moments))


def test_evaluations_are_kept_when_a_finished_run_goes_on(tmp_path: Path, held_out: list[str]) -> None:
    run_dir = train(tmp_path / "run", *held_out, "run.num_steps=3")
    train(run_dir, *held_out)
    assert sorted(set(read_frame(run_dir, "evaluations")["step"])) == [0, 2, 3, 4, 5]


def test_a_set_that_was_edited_is_compared_with_its_first_evaluation_since(tmp_path: Path) -> None:
    file = tmp_path / "new.jsonl"
    line = '{{"id": "{}{}", "domain": "math", "prompt": "?", "ground_truth": "1"}}\n'
    words = [f"evaluation.path={file}", "evaluation.every_steps=2", "evaluation.num_samples=2"]
    for num_steps, name in ((2, "q"), (5, "r"), (7, "r")):
        file.write_text("".join(line.format(name, number) for number in range(5)))
        train(tmp_path / "run", *words, f"run.num_steps={num_steps}")
    compared = read_frame(tmp_path / "run", "evaluations").set_index("step")["diff_to_first"].notna()
    assert compared.to_dict() == {0: False, 2: True, 4: False, 5: True, 6: True, 7: True}


def test_the_best_checkpoint_is_kept_and_linked(tmp_path: Path, held_out: list[str]) -> None:
    words = ["run.keep_best=true", "run.best_by=math-new", "run.keep_checkpoints=1", "evaluation.every_steps=1"]
    drift = "workload.solve_rate_drift_per_step=-0.15"
    run_dir = train(tmp_path / "run", *held_out, *words, "workload.solve_rate=0.9", drift, "evaluation.at_start=false")
    scores = read_frame(run_dir, "evaluations")
    of_set = scores[scores["set"] == "math-new"].set_index("step")["reward_mean"]
    best = run_dir / "checkpoints" / "best"
    assert best.readlink().name == f"step-{of_set.idxmax():06d}"
    assert (best / "meta.json").is_file()
    folders = sorted(path.name for path in (run_dir / "checkpoints").glob("step-*"))
    assert folders == sorted({best.readlink().name, f"step-{NUM_STEPS:06d}"})


def test_the_time_of_a_best_checkpoint_is_that_of_a_checkpoint_before_its_step(
    tmp_path: Path, held_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = ModelledTrainer.save

    async def save_slowly(trainer: ModelledTrainer, folder: Path) -> None:
        await asyncio.sleep(7)
        await save(trainer, folder)

    monkeypatch.setattr(ModelledTrainer, "save", save_slowly)
    words = ["run.keep_best=true", "run.checkpoint_every_steps=3", "evaluation.every_steps=1"]
    words += ["workload.solve_rate=0.9", "workload.solve_rate_drift_per_step=-0.15", "evaluation.at_start=false"]
    run_dir = train(tmp_path / "run", *held_out, *words)
    assert read_frame(run_dir, "steps")["checkpoint_time_s"].round(6).tolist() == [0, 7, 0, 7, 0]


def test_a_best_checkpoint_is_marked_before_weights_go_back_to_engines_on_its_gpus(
    tmp_path: Path, held_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run.keep_best=true", "run.best_by=math-new", "run.keep_checkpoints=1", "evaluation.every_steps=1"]
    words += ["workload.solve_rate=0.9", "workload.solve_rate_drift_per_step=-0.15", "evaluation.at_start=false"]
    config = config_of(tmp_path / "run", [*SMALL, f"run.num_steps={NUM_STEPS}", *held_out, *words])
    checkpoints = tmp_path / "run" / "checkpoints"
    give = TrainerOnGround.export_weights

    async def give_until_a_checkpoint(trainer: TrainerOnGround) -> Any:
        if (checkpoints / "step-000001").exists():
            raise Stop("The cluster is gone.")
        return await give(trainer)

    with monkeypatch.context() as failing:
        failing.setattr(TrainerOnGround, "export_weights", give_until_a_checkpoint)
        with pytest.raises(Stop):
            run_in_virtual_time(pipeline.train(config, TurnsBackend(config, num_sharing=3)))
    assert (checkpoints / "best").readlink().name == "step-000001"
    run_in_virtual_time(pipeline.train(config, TurnsBackend(config, num_sharing=3)))
    assert (checkpoints / "best" / "meta.json").is_file()
    assert sorted(path.name for path in checkpoints.glob("step-*")) == ["step-000001", f"step-{NUM_STEPS:06d}"]


def test_a_resumed_run_marks_the_best_checkpoint_that_an_attempt_left_without_its_mark(
    tmp_path: Path, held_out: list[str]
) -> None:
    words = [*held_out, "run.keep_best=true", "run.best_by=math-new", "run.keep_checkpoints=1"]
    words += ["workload.solve_rate=0.9", "workload.solve_rate_drift_per_step=-0.15"]
    words += ["evaluation.every_steps=1", "evaluation.at_start=false"]
    best = train(tmp_path / "run", *words, "run.num_steps=1") / "checkpoints" / "best"
    best.unlink()
    train(tmp_path / "run", *words)
    assert best.readlink().name == "step-000001"
    assert (best / "meta.json").is_file()


def test_a_resumed_run_marks_the_best_of_the_checkpoints_that_are_left(tmp_path: Path, held_out: list[str]) -> None:
    words = [*held_out, "run.keep_best=true", "run.best_by=math-new", "run.keep_checkpoints=3"]
    words += ["workload.solve_rate=0.9", "workload.solve_rate_drift_per_step=-0.15"]
    words += ["evaluation.every_steps=1", "evaluation.at_start=false"]
    best = train(tmp_path / "run", *words, "run.num_steps=3") / "checkpoints" / "best"
    assert best.readlink().name == "step-000001"
    best.unlink()
    train(tmp_path / "run", *words)
    assert best.readlink().name == "step-000001"
    assert (best / "meta.json").is_file()


def test_an_attempt_that_samples_otherwise_is_compared_with_none_before_it(tmp_path: Path, held_out: list[str]) -> None:
    words = [*held_out, "evaluation.every_steps=1", "run.keep_best=true", "run.checkpoint_every_steps=1"]
    words += ["workload.solve_rate=0.9", "workload.solve_rate_drift_per_step=-0.15", "evaluation.at_start=false"]
    run_dir = train(tmp_path / "run", *words, "run.num_steps=2")
    train(run_dir, *words, "run.num_steps=4", "evaluation.temperature=0.5")
    scores = read_frame(run_dir, "evaluations").set_index("step")
    assert scores["temperature"].groupby("step").first().tolist() == [1, 1, 0.5, 0.5]
    assert scores["diff_to_first"].notna().groupby("step").any().tolist() == [False, True, False, True]
    assert (run_dir / "checkpoints" / "best").readlink().name == "step-000003", "the best of those with 0.5"


def test_a_run_that_is_to_end_before_it_has_ended_evaluates_what_it_has(tmp_path: Path, held_out: list[str]) -> None:
    run_dir = train(tmp_path / "run", *held_out, "run.num_steps=4")
    train(run_dir, *held_out, "run.num_steps=2")
    assert read_frame(run_dir, "steps")["step"].tolist() == [0, 1, 2, 3]
    assert read_frame(run_dir, "evaluations")["step"].max() == 4


def test_an_evaluation_that_no_checkpoint_knows_of_stays_until_it_is_made_once_more(
    tmp_path: Path, held_out: list[str]
) -> None:
    run_dir = train(tmp_path / "run", "run.num_steps=3")  # its last checkpoint comes before the first evaluation
    for _ in range(2):
        train(run_dir, *held_out, "run.num_steps=3")
        assert read_frame(run_dir, "evaluations")["step"].tolist() == [3, 3]
    train(run_dir, *held_out)
    assert read_frame(run_dir, "evaluations")["step"].tolist() == [3, 3, 4, 4, 5, 5]


def test_where_nothing_beats_the_first_model_there_is_no_best_checkpoint(tmp_path: Path, held_out: list[str]) -> None:
    drift = "workload.solve_rate_drift_per_step=-0.3"
    run_dir = train(tmp_path / "run", *held_out, "run.keep_best=true", "workload.solve_rate=0.9", drift)
    assert not (run_dir / "checkpoints" / "best").is_symlink()


def kinds_of(run_dir: Path) -> dict[int, str]:
    return dict(read_frame(run_dir, "steps")[["step", "round_kind"]].itertuples(index=False))


@pytest.mark.parametrize("system", ["verl", "tail"])
def test_every_batch_is_the_same_when_evaluations_fill_rounds(tmp_path: Path, held_out: list[str], system: str) -> None:
    words = [f"system={system}", "run.num_steps=9", "workload.num_prompts=120"]
    filled = train(tmp_path / "filled", *words, *held_out, FILL)
    assert trained(filled) == trained(train(tmp_path / "plain", *words))
    scores = read_frame(filled, "evaluations")
    of_fills = scores[scores["mode"] == "fill"]
    assert len(of_fills) >= 2
    assert {kinds_of(filled)[step] for step in of_fills["step"]} == ({"plain"} if system == "verl" else {"long"})
    assert scores["is_complete"].all()
    assert replay(filled).attempts == 1


@pytest.mark.parametrize("grace_s", [5, 60])
def test_a_trainer_on_the_engines_gpus_waits_for_what_fills_a_round_as_long_as_the_grace_says(
    tmp_path: Path, held_out: list[str], grace_s: float
) -> None:
    words = ["system=verl", *held_out, FILL, f"evaluation.grace_s={grace_s}", "run.num_steps=3"]
    slots = "engine.max_num_seqs=6"  # as many as an engine has of training: the held-out ones start late
    run_dir = train(tmp_path / "run", *words, slots)
    filled = read_frame(run_dir, "evaluations").query("mode == 'fill'")
    (step,) = filled["step"].unique()
    steps, intervals = read_frame(run_dir, "steps").set_index("step"), read_frame(run_dir, "intervals")
    (training,) = intervals[(intervals["activity"] == "train") & (intervals["step"] == step)].itertuples()
    ended = read_frame(run_dir, "evaluation_responses").query("step == @step")["finished_at_s"]
    assert (ended < training.started_at_s).all()
    assert steps["suspend_time_s"][step] <= grace_s + 0.1  # and a pass, in which the last ones are given back
    assert (filled["num_unfinished"].sum() > 0) == (grace_s == 5)
    assert (steps["suspend_time_s"][step] > grace_s) == (grace_s == 5)


def test_a_set_that_was_cut_has_no_score_and_no_responses(tmp_path: Path, held_out: list[str]) -> None:
    words = ["system=verl", *held_out, FILL, "evaluation.grace_s=0", "evaluation.at_start=false"]
    slots = "engine.max_num_seqs=6"  # as many as an engine has of training: the held-out ones start late
    run_dir = train(tmp_path / "run", *words, slots)
    scores = read_frame(run_dir, "evaluations")
    cut = scores[~scores["is_complete"]]
    assert len(cut)
    assert (cut["mode"] == "fill").all()
    assert (cut["num_unfinished"] > 0).all()
    assert cut[["reward_mean", "se_over_prompts", "pass_share", "length_mean_tokens"]].isna().all(axis=None)
    responses = read_frame(run_dir, "evaluation_responses")
    assert not set(map(tuple, cut[["step", "set"]].to_numpy())) & set(map(tuple, responses[["step", "set"]].to_numpy()))
    of_pass = read_frame(run_dir, "pass_at_k")
    assert not set(map(tuple, cut[["step", "set"]].to_numpy())) & set(map(tuple, of_pass[["step", "set"]].to_numpy()))
    assert scores.iloc[-1]["is_complete"], "the last one is a round of its own"
    assert replay(run_dir).attempts == 1


def test_of_sets_of_engines_that_share_gpus_only_the_one_in_use_is_woken(
    tmp_path: Path, held_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    awake: set[str] = set()
    num_woken = 0
    sleep, wake = ModelledEngine.sleep, ModelledEngine.wake

    async def sleep_and_tell(engine: ModelledEngine) -> None:
        awake.discard(engine._engine)
        await sleep(engine)

    async def wake_and_tell(engine: ModelledEngine) -> None:
        nonlocal num_woken
        num_woken += 1
        awake.add(engine._engine)
        assert len({"-tp" in each for each in awake}) == 1
        await wake(engine)

    monkeypatch.setattr(ModelledEngine, "sleep", sleep_and_tell)
    monkeypatch.setattr(ModelledEngine, "wake", wake_and_tell)
    words = ["system=planner", "engine.degrees=[1,2]", "engine.num_engines=4", "trainer.tensor_parallel=1"]
    train(tmp_path, *words, "run.num_steps=2", *held_out, FILL)
    assert num_woken >= 4
