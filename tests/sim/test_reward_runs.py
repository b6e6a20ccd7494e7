"""Whole modelled runs whose rewards take cores and GPUs: what a user sees of them in the tables."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollpacker import pipeline
from rollpacker.cli.run_facts import run_facts_of
from rollpacker.config.compose import compose
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.run.preflight import validate
from rollpacker.sim.workload import Workload
from tests.sim.composed import small

SMALL = small("system=verl", "run.num_steps=2", "rollout.num_prompts=8", "engine.num_engines=4")


def train(run_dir: Path, *words: str) -> Path:
    config = compose([*SMALL, f"run.dir={run_dir}", *words])
    validate(config, run_facts_of)
    pipeline.run(config)
    return run_dir


def reward_time(run_dir: Path) -> float:
    return read_frame(run_dir, "steps")["exposed_reward_time_s"].mean()


def test_programs_that_share_few_cores_take_longer(tmp_path):
    words = ["workload=code", "workload.reward_time_s=1", "reward.num_rule_workers=null"]
    many, few = (reward_time(train(tmp_path / name, *words, f"reward.num_cores={name}")) for name in ("32", "2"))
    assert (many, few) == (pytest.approx(1), pytest.approx(16))  # 32 responses of 1 s each


def test_endless_programs_cost_the_limit_and_score_nothing(tmp_path):
    run_dir = train(tmp_path / "run", "workload=code", "workload.solve_rate=0", "workload.endless_share=0.5")
    responses = read_frame(run_dir, "responses")
    timed_out = responses[responses["reward_reason"] == "timeout"]
    assert len(timed_out) / len(responses) == pytest.approx(0.5, abs=0.2)
    assert set(timed_out["reward"]) == {0.0}
    assert timed_out["reward_time_s"].max() == pytest.approx(30)
    assert reward_time(run_dir) >= 30


def test_a_judge_that_takes_turns_is_awaited_for_as_long_as_it_starts(tmp_path):
    words = ["workload=judge", "reward.judge.placement=turns"]
    warm, cold = (reward_time(train(tmp_path / start, *words, f"reward.judge.start_s={start}")) for start in ("0", "5"))
    assert warm > 0
    assert cold == pytest.approx(warm + 5)


def test_a_judges_time_grows_with_what_it_reads(tmp_path):
    words = ["workload=judge", "reward.judge.placement=dedicated"]
    short_s, long_s, longer_s = (
        reward_time(train(tmp_path / tokens, *words, f"reward.judge.template_tokens={tokens}"))
        for tokens in ("0", "2000", "4000")
    )
    assert long_s > 2 * short_s > 0
    assert longer_s - long_s == pytest.approx(long_s - short_s, rel=0.1)


def test_a_shared_judge_slows_prefill_and_leaves_less_memory(tmp_path):
    words = ["workload=judge", "workload.prompt_tokens=1024"]
    alone = read_frame(train(tmp_path / "a", *words), "steps")["rollout_time_s"]
    shared = read_frame(
        train(tmp_path / "b", *words, "reward.judge.placement=shared", "reward.judge.gpu_share=0.8"), "steps"
    )["rollout_time_s"]
    assert (shared > alone).all()


def test_domain_weights_hold_in_a_modelled_run(tmp_path):
    weights = [f"data.domain_weights.{domain}={weight}" for domain, weight in (("math", 5), ("code", 2), ("judge", 1))]
    for system in ("verl", "rollpacker"):
        run_dir = train(tmp_path / system, f"system={system}", *weights)
        responses = read_frame(run_dir, "responses")
        for _, accepted in responses[responses["accepted"]].groupby("step"):
            assert Counter(accepted["domain"]) == {"math": 20, "code": 8, "judge": 4}


def test_the_prompts_of_a_recorded_run_that_are_too_long_are_dropped(tmp_path):
    run_dir = train(tmp_path / "run", "workload=math")
    files = list((run_dir / "metrics" / "responses").rglob("*.parquet"))
    longest = sorted(set(read_frame(run_dir, "responses")["prompt"]))[:3]
    for file in files:
        frame = pd.read_parquet(file)
        frame.loc[frame["prompt"].isin(longest), "num_prompt_tokens"] = 1025
        pq.write_table(pa.Table.from_pandas(frame, pq.read_schema(file)), file)
    config = compose([*SMALL, f"run.dir={tmp_path / 'again'}", f"workload.lengths={run_dir}"])
    workload = Workload(config)
    assert workload.num_long_prompts == 3
    assert workload.num_prompts_by_domain == {"math": 13}
    assert not set(longest) & set(workload.prompts)
