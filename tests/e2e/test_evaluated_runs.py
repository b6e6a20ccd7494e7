"""Real runs with held-out prompts: greedy and sampled sets, texts, the best checkpoint, and no effect on training."""

import os
import random
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rollpacker.cli.main import main
from rollpacker.demo import task
from rollpacker.metrics.samples import read_samples
from rollpacker.rewards.walk import score
from rollpacker.runtime.rollout.replay import replay
from tests.e2e.invariants import assert_each_step_once
from tests.e2e.launched import PATIENCE_S, LaunchedRun, batches, rows, small_run
from tests.e2e.processes import MARK, ProcessesOfRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_STEPS = 3


@pytest.fixture(scope="module")
def evaluated_run(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    unseen = task.unseen_file(12, random.Random(5), (inputs / "prompts.jsonl").read_text())
    (folder / "unseen.jsonl").write_text(unseen)
    sets = f"{{path:{folder}/unseen.jsonl,name:greedy,temperature:0}}"
    sets += f",{{path:{folder}/unseen.jsonl,name:sampled,num_samples:4,top_k:20,top_p:0.95,max_response_tokens:64}}"
    run = LaunchedRun(
        folder / "run",
        *small_run(inputs, "system=verl", "engine.num_engines=1", f"run.num_steps={NUM_STEPS}"),
        *("run.keep_best=true", "run.best_by=sampled"),
        *(f"evaluation.path=[{sets}]", "evaluation.every_steps=2", "evaluation.pass_at=[1,4]"),
    )
    assert run.wait() == 0, run.output()
    return run


def test_it_is_evaluated_at_the_start_in_between_and_at_the_end_and_says_so(evaluated_run):
    assert [(row["step"], row["set"]) for row in rows(evaluated_run.run_dir, "evaluations")] == [
        (step, name) for step in (0, 2, NUM_STEPS) for name in ("greedy", "sampled")
    ]
    assert [row["policy_version"] for row in rows(evaluated_run.run_dir, "evaluations")][::2] == [0, 2, NUM_STEPS]
    assert "Held out before training: greedy " in evaluated_run.output()
    assert "Held out after 2 steps: greedy " in evaluated_run.output()
    assert_each_step_once(evaluated_run.run_dir)
    assert replay(evaluated_run.run_dir).attempts == 1


def test_what_was_kept_as_text_has_the_reward_that_its_text_deserves(evaluated_run, capsys):
    samples = read_samples(evaluated_run.run_dir)
    assert set(samples["kind"]) == {"training", "evaluation"}
    assert len(samples[samples["kind"] == "training"]) == NUM_STEPS * 2 * 4
    assert len(samples[samples["kind"] == "evaluation"]) == 3 * 2 * 8
    for row in samples.itertuples():
        is_cut = row.finish_reason == "length"
        truth = row.prompt_text.removesuffix(" :")
        assert score(row.response_text, truth, is_cut).reward == row.reward
    assert main(["show", str(evaluated_run.run_dir), "kind=evaluation", "step=0"]) == 0
    assert "before training  greedy walk-00000 #0  reward " in capsys.readouterr().out


def test_each_set_has_its_own_number_of_samples_and_its_own_limit(evaluated_run):
    responses = rows(evaluated_run.run_dir, "evaluation_responses")
    first = [row for row in responses if row["step"] == 0 and row["set"] == "sampled"]
    assert len(first) == 12 * 4
    assert len({(row["prompt"], row["length_tokens"]) for row in first}) > 12
    assert max(row["length_tokens"] for row in responses if row["set"] == "greedy") <= 48
    assert max(row["length_tokens"] for row in responses) <= 64


def test_the_training_batches_are_those_of_a_run_without_evaluation(evaluated_run, plain_run):
    trained = batches(evaluated_run.run_dir)
    assert {step for step, *_ in trained} == set(range(NUM_STEPS))
    assert trained == [row for row in batches(plain_run) if row[0] < NUM_STEPS]


def test_the_best_checkpoint_is_the_one_of_the_best_score(evaluated_run):
    scores = {row["step"]: row["reward_mean"] for row in rows(evaluated_run.run_dir, "evaluations")[1::2]}
    best = evaluated_run.run_dir / "checkpoints" / "best"
    if max(scores, key=scores.__getitem__) == 0:
        assert not best.is_symlink()
    else:
        assert best.readlink().name == f"step-{max(scores, key=scores.__getitem__):06d}"
        assert (best / "trainer" / "model" / "config.json").is_file()


def evaluate(tmp_path: Path, mark: str, *words: object) -> subprocess.Popen[str]:
    """`rollpacker evaluate`, whose folder is made below `tmp_path`."""
    return subprocess.Popen(
        [sys.executable, "-m", "rollpacker.cli", "evaluate", *map(str, words), "backend.deadlines.start_s=600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {MARK: mark, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
        start_new_session=True,
    )


def test_its_checkpoint_scores_alone_as_it_did_in_the_run(evaluated_run, tmp_path):
    scratch, out = tmp_path / "scratch", tmp_path / "e.parquet"
    scratch.mkdir()
    run_dir, mark = evaluated_run.run_dir, uuid.uuid4().hex
    require = "require=greedy>=0,sampled>=1.5"
    process = evaluate(scratch, mark, run_dir, f"out={out}", f"against={run_dir}", require)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, said
    assert "sampled is " in said
    assert "below 1.5" in said
    columns = ("set", "prompt", "sample", "reward", "length_tokens")
    alone = [tuple(row[each] for each in columns) for row in pq.read_table(out).to_pylist()]
    there = [row for row in rows(run_dir, "evaluation_responses") if row["step"] == NUM_STEPS]
    assert alone == [tuple(row[each] for each in columns) for row in there]
    assert set(pq.read_table(out)["step"].to_pylist()) == {NUM_STEPS}
    assert said.count("+0.000  0.000 (0.000)") == 1, said
    assert max(map(len, said[said.index("set  ") :].splitlines()[:6])) <= 80
    assert not list(scratch.iterdir())
    ProcessesOfRun(mark).assert_all_end()


def test_ctrl_c_ends_an_evaluation_and_leaves_nothing_behind(evaluated_run, tmp_path):
    mark = uuid.uuid4().hex
    process = evaluate(tmp_path, mark, evaluated_run.run_dir, "at=start", "run.progress=plain")
    assert process.stdout is not None
    said = iter(process.stdout.readline, "")
    assert any("starting engines" in line for line in said)
    process.send_signal(signal.SIGINT)
    rest = "".join(said)
    assert process.wait(PATIENCE_S) == 130, rest
    assert "The evaluation was interrupted." in rest
    assert not list(tmp_path.iterdir())
    ProcessesOfRun(mark).assert_all_end()


def test_evaluations_that_fill_rounds_change_no_batch_and_score_the_same_policies(evaluated_run, inputs, tmp_path):
    unseen = evaluated_run.run_dir.parent / "unseen.jsonl"
    sets = f"[{{path:{unseen},name:greedy,temperature:0}}]"
    filled = LaunchedRun(
        tmp_path / "run",
        *small_run(inputs, "system=verl", "engine.num_engines=1", f"run.num_steps={NUM_STEPS}"),
        *(f"evaluation.path={sets}", "evaluation.every_steps=1", "evaluation.when=fill", "evaluation.pass_at=[1]"),
    )
    assert filled.wait() == 0, filled.output()
    assert batches(filled.run_dir) == batches(evaluated_run.run_dir)
    scores = {row["step"]: row for row in rows(filled.run_dir, "evaluations")}
    assert [(step, row["mode"]) for step, row in scores.items()] == [
        (0, "alone"),
        *((step, "fill") for step in range(1, NUM_STEPS)),
        (NUM_STEPS, "alone"),
    ]
    alone = {row["step"]: row for row in rows(evaluated_run.run_dir, "evaluations") if row["set"] == "greedy"}
    for step, row in alone.items():
        assert (scores[step]["reward_mean"], scores[step]["tokens_generated"]) == (
            row["reward_mean"],
            row["tokens_generated"],
        )
    assert replay(filled.run_dir).attempts == 1
