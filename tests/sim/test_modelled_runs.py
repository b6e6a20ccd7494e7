"""Whole modelled runs, as a user starts them: deterministic, resumable, replayable, and right where theory says how."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rollpacker import pipeline
from rollpacker.cli.run_facts import run_facts_of
from rollpacker.config.compose import compose
from rollpacker.config.record import CONFIG_FILE, started_in
from rollpacker.config.schema import RunConfig
from rollpacker.config.words import counted
from rollpacker.core.errors import ConfigError, DeadlineExceeded, UserError
from rollpacker.core.events import SlotsChanged
from rollpacker.metrics.event_log import attempt_path, read_event_log
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.rollout.replay import replay
from rollpacker.runtime.run.preflight import validate
from rollpacker.runtime.run.progress import format_duration
from rollpacker.sim.run_facts import ModelledRunFacts
from tests.sim.composed import config_of, small

SMALL = small("run.num_steps=7", "rollout.num_prompts=8", "engine.num_engines=4")


def train(run_dir: Path, *words: str) -> Path:
    config = config_of(run_dir, [*SMALL, *words])
    validate(config, run_facts_of)
    pipeline.run(config)
    return run_dir


def content(run_dir: Path) -> dict[str, str]:
    """Every byte of tables and event logs."""
    files = sorted([*(run_dir / "metrics").rglob("*"), *(run_dir / "events").rglob("*")])
    return {
        str(file.relative_to(run_dir)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file()
    }


def test_a_run_leaves_the_configuration_of_its_last_attempt_beside_its_tables(tmp_path):
    run_dir = train(tmp_path / "run", "run.num_steps=1")
    train(run_dir, "run.num_steps=2", "run.resume=auto")
    record = (run_dir / CONFIG_FILE).read_text()
    assert started_in(record) == Path.cwd()
    recorded = RunConfig.model_validate(yaml.safe_load(record))
    assert recorded == compose([*SMALL, f"run.dir={run_dir}", "run.num_steps=2", "run.resume=auto"])


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of the default system, to look at."""
    return train(tmp_path_factory.mktemp("runs") / "run")


def test_the_last_line_of_a_resumed_run_has_the_steps_and_the_time_of_its_own_attempt(tmp_path, capsys):
    words = ("run.checkpoint_every_steps=2", "run.progress=plain", "run.resume=auto")
    for num_steps in (2, 3):
        train(tmp_path / "x", f"run.num_steps={num_steps}", *words)
    steps = read_frame(tmp_path / "x", "steps")
    lines = [line for line in capsys.readouterr().out.splitlines() if re.search(r"^\d+ steps? in ", line)]
    for line, of_attempt in zip(lines, (steps[:2], steps[2:]), strict=True):
        taken = format_duration(of_attempt["step_time_s"].sum())
        assert line.startswith(f"{counted(len(of_attempt), 'step')} in {taken}, ")


@pytest.mark.parametrize(("system", "hash_seed"), [("verl", "1"), ("rollpacker", "2"), ("dapo-rollpacker", "3")])
def test_a_modelled_run_is_the_same_byte_for_byte_in_any_process(tmp_path, system, hash_seed):
    first, other = train(tmp_path / "first", f"system={system}"), tmp_path / "other"
    subprocess.run(
        [sys.executable, "-m", "rollpacker.cli", "train", *SMALL, f"system={system}", f"run.dir={other}"],
        check=True,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
    )
    assert content(other) == content(first)
    assert content(train(tmp_path / "other seed", f"system={system}", "run.seed=1")) != content(first)


def test_every_row_says_that_it_is_modelled_and_real_numbers_are_not_made_up(run_dir):
    for table in ("steps", "domains", "responses", "intervals"):
        frame = read_frame(run_dir, table)
        assert len(frame) > 0
        assert frame["modelled"].all()
    steps = read_frame(run_dir, "steps")
    assert steps[["loss", "grad_norm", "entropy", "logprob_mismatch_max"]].isna().all(axis=None)
    assert (steps["driver_time_s"] == 0).all()
    assert set(steps["round_kind"]) == {"short", "long"}


def test_the_rows_of_a_step_add_up(run_dir):
    responses = read_frame(run_dir, "responses")
    for step in read_frame(run_dir, "steps").to_dict("records"):
        own = responses[responses["step"] == step["step"]]
        assert step["num_responses_launched"] == len(own)
        assert step["tokens_generated"] == own["length_tokens"].sum()
        assert step["tokens_trained"] == own[own["accepted"]]["length_tokens"].sum()
        assert set(own["policy_version"]) == {step["step"]}
        assert 0 <= step["bubble_ratio"] < 1
        assert 0 < step["kv_cache_used_share"] <= 1
        assert step["requests_running_mean"] > 0
        assert step["requests_waiting_mean"] >= 0
        parts = ("rollout_time_s", "exposed_reward_time_s", "train_time_s", "weight_sync_time_s")
        assert sum(step[part] for part in parts) <= step["step_time_s"] + 1e-9
        assert 0 < step["weight_transfer_time_s"] <= step["weight_sync_time_s"]
        gigabytes = step["weight_sync_gb_per_second"] * step["weight_transfer_time_s"]
        assert gigabytes == pytest.approx(step["weight_sync_bytes"] / 1e9)
        assert step["num_engines_lost_in_sync"] == 0


def test_the_event_log_of_a_modelled_run_replays(run_dir):
    assert replay(run_dir).events > 300


def step_time(run_dir: Path) -> float:
    return read_frame(run_dir, "steps")["step_time_s"].mean()


def test_when_all_responses_are_equally_long_nothing_is_gained_and_without_speculation_nothing_lost(tmp_path):
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("length_tokens\n500\n")
    words = [f"workload.lengths={lengths}", "workload.reward_time_s=0", "run.num_epochs=null"]
    no_speculation = ["system.eta_prompts=1", "system.eta_responses=1"]
    plain = step_time(train(tmp_path / "verl", "system=verl", *words))
    tail = step_time(train(tmp_path / "tail", "system=tail", *words, *no_speculation))
    assert plain / tail == pytest.approx(1, abs=1e-9)


def test_long_tails_are_where_tail_batching_gains(tmp_path):
    words = ["workload=math", "run.num_steps=10", "workload.reward_time_s=0", "hardware.rollout_start_s=0"]
    plain = step_time(train(tmp_path / "verl", "system=verl", *words))
    tail = step_time(train(tmp_path / "rollpacker", "system=rollpacker", *words))
    assert plain / tail > 1.3


def test_each_prompt_is_trained_once_per_epoch(tmp_path):
    run_dir = train(
        tmp_path / "run", "workload=math", "workload.num_prompts=40", "run.num_epochs=1", "run.num_steps=99"
    )
    responses = read_frame(run_dir, "responses")
    trained = responses[responses["accepted"]].groupby("prompt")["sample"].count()
    assert len(trained) == 40
    assert set(trained) == {4}


def test_engines_stay_asleep_after_the_last_checkpoint_where_the_data_ends_early(tmp_path):
    run_dir = train(tmp_path / "run", "system=flash", "workload=math", "workload.num_prompts=20", "run.num_epochs=1")
    assert 0 < len(read_frame(run_dir, "steps")) < 7
    changes = [record.event for record in read_event_log(attempt_path(run_dir, 0)).records]
    last = [event for event in changes if isinstance(event, SlotsChanged)][-1]
    assert set(last.withheld) == set(last.in_use)


def test_a_recorded_run_gives_back_the_lengths_of_its_requests(tmp_path):
    recorded = train(tmp_path / "recorded", "system=verl", "workload=math", "workload.num_prompts=200")
    again = train(tmp_path / "again", "system=verl", f"workload.lengths={recorded}", "data.shuffle=false", "run.seed=0")
    first, second = read_frame(recorded, "responses"), read_frame(again, "responses")
    key = ["step", "prompt", "sample"]
    both = first.merge(second, on=key, suffixes=("", "_again"))
    assert len(both) == 4 * 8 * 7  # the prompts are in the order in which they were recorded
    assert (both["length_tokens"] == both["length_tokens_again"]).all()


def test_what_was_aborted_in_a_recorded_run_is_longer_than_it_came(tmp_path):
    recorded = train(tmp_path / "recorded", "workload=math", "run.num_steps=1")
    frame = read_frame(recorded, "responses")
    aborted = frame[frame["finish_reason"] == "aborted"][["prompt", "sample", "length_tokens"]]
    words = ["system=verl", "run.num_steps=1", "rollout.num_prompts=10", "rollout.num_responses=5"]
    again = train(tmp_path / "again", *words, f"workload.lengths={recorded}")
    longer = aborted.merge(read_frame(again, "responses"), on=["prompt", "sample"], suffixes=("", "_again"))
    assert len(longer) == len(aborted) > 0
    assert (longer["length_tokens_again"] > longer["length_tokens"]).all()


def test_what_a_recorded_runs_limit_ended_is_noted_where_the_limit_is_higher(tmp_path):
    words = ("workload=math", "run.num_steps=1", "rollout.max_response_tokens=500", "system=verl")
    recorded = train(tmp_path / "recorded", *words)
    cut = (read_frame(recorded, "responses")["finish_reason"] == "length").sum()

    def notes(limit):
        words = [*SMALL, f"run.dir={tmp_path}/again", f"workload.lengths={recorded}"]
        return ModelledRunFacts(compose([*words, f"rollout.max_response_tokens={limit}"])).notes()

    assert notes(500) == ()
    (note,) = notes(1000)
    assert f"{cut} recorded responses ended at a limit of 500 tokens" in note
    assert cut > 0


def test_responses_that_a_recorded_run_aborted_are_noted(tmp_path):
    recorded = train(tmp_path / "recorded", "workload=math", "run.num_steps=1")
    frame = read_frame(recorded, "responses")
    num_aborted = (frame["finish_reason"] == "aborted").sum()
    (note,) = ModelledRunFacts(compose([*SMALL, f"run.dir={tmp_path}/again", f"workload.lengths={recorded}"])).notes()
    assert f"{num_aborted} of {len(frame)} recorded responses were aborted before their end" in note
    assert num_aborted > 0


def test_a_rollout_that_stalls_ends_at_its_deadline_in_virtual_time(tmp_path):
    with pytest.raises(DeadlineExceeded, match=r"Waited 0\.5 s for"):
        train(tmp_path / "run", "backend.deadlines.rollout_stall_s=0.5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trainer.tensor_parallel=3"], "does not fit"),
        (["engine.tensor_parallel=3", "engine.num_engines=3"], "divides the GPUs of a node"),
        (["hardware=a100-40g", "model=qwen2.5-32b"], "room for 0 tokens"),
        (["workload.num_prompts=1"], "3 prompts, fewer than"),
        (["data.domain_weights.poetry=1"], "which no prompt in the workload has"),
    ],
)
def test_a_run_that_cannot_be_modelled_is_refused_before_it_starts(tmp_path, words, message):
    with pytest.raises(UserError, match=message) as caught:
        validate(compose([*SMALL, f"run.dir={tmp_path / 'run'}", *words]), run_facts_of)
    assert caught.value.remedy or "mistakes" in caught.value.problem
    assert not (tmp_path / "run").exists()


def test_a_real_run_is_not_resumed_by_a_modelled_one_nor_parallelised_by_torch():
    real = ["model.path=model", "data.path=prompts.jsonl", "run.dir=x"]
    for words in (["engine.tensor_parallel=2"], ["trainer.context_parallel=2"], ["reward=modelled"]):
        with pytest.raises(ConfigError, match=r"with (backend\.name=ray|engine\.name=torch|trainer\.name=torch)"):
            compose([*real, *words])


@pytest.mark.parametrize("section", ["hardware", "workload"])
def test_a_modelled_run_without_hardware_or_workload_is_refused(section):
    tree = compose([*SMALL, "run.dir=x"]).model_dump()
    with pytest.raises(ValueError, match=f"sim without {section}"):
        RunConfig.model_validate(tree | {section: None})


def test_without_a_model_directory_a_shape_is_needed():
    tree = compose([*SMALL, "run.dir=x"]).model_dump()
    with pytest.raises(ValueError, match="Choose model="):
        RunConfig.model_validate(tree | {"model": {"path": None}})
