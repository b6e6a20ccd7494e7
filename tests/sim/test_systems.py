"""The ladder of systems: what each technique does to a whole modelled run."""

import itertools
from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.config.words import replaced
from rollpacker.core.errors import ConfigError, DataError
from rollpacker.core.events import RoundMeasured
from rollpacker.metrics.event_log import attempt_path, read_event_log
from rollpacker.metrics.tables import read_frame
from rollpacker.sim.plan import plan_cluster
from tests.sim.composed import small

SMALL = small("run.num_steps=5", "engine.num_engines=4", "trainer.tensor_parallel=1")


def steps_of(run_dir: Path, *words: str):
    pipeline.run(compose([*SMALL, f"run.dir={run_dir}", *words]))
    return read_frame(run_dir, "steps")


def test_half_of_the_engines_train_before_the_rollout_ends_and_no_group_twice(tmp_path):
    whole = steps_of(tmp_path / "whole", "system=reward")
    streamed = steps_of(tmp_path / "streamed", "system=rlhfuse")
    assert set(whole["num_engines_lent"]) == {0}
    assert set(whole["tokens_streamed"]) == {0}
    assert (streamed["num_engines_lent"] == 2).all()
    assert (streamed["tokens_streamed"] > 0).all()
    assert (streamed["tokens_streamed"] <= streamed["tokens_trained"]).all()
    assert list(streamed["tokens_trained"]) == list(whole["tokens_trained"])  # the same batches, whoever trained them
    assert (streamed["train_time_s"] < whole["train_time_s"]).all()


def test_at_a_fixed_share_half_of_the_engines_train_although_the_rest_cannot_hold_what_runs(tmp_path):
    # memory for some 6,000 tokens beside the weights
    tight = ["system=rlhfuse", "hardware.memory_gb=17.5", "data.max_prompt_tokens=512"]
    adaptive = steps_of(tmp_path / "adaptive", *tight)
    fixed = steps_of(tmp_path / "fixed", *tight, "system.stream_at=0.2")
    assert (adaptive["num_engines_lent"] == 0).any()
    assert list(adaptive["lent_at_share"].isna()) == list(adaptive["num_engines_lent"] == 0)
    assert (fixed["num_engines_lent"] == 2).all()
    assert fixed["lent_at_share"].between(0.2, 0.25).all()
    assert list(fixed["tokens_trained"]) == list(adaptive["tokens_trained"])


def test_streaming_is_right_in_short_and_in_long_rounds(tmp_path):
    steps = steps_of(tmp_path / "run", "system=rollpacker", "system.planner=false")
    assert list(steps["round_kind"]) == ["short"] * 4 + ["long"]
    assert (steps["num_engines_lent"] == 2).all()
    responses = read_frame(tmp_path / "run", "responses")
    trained = responses[responses["accepted"]]
    assert trained.groupby("step")["length_tokens"].sum().tolist() == steps["tokens_trained"].tolist()
    assert set(trained["finish_reason"]) <= {"stop", "length"}


def test_without_overlapped_rewards_the_race_is_over_before_the_first_reward(tmp_path):
    raced = steps_of(tmp_path / "tail", "system=tail")
    scored = steps_of(tmp_path / "reward", "system=tail-reward")
    assert (raced["exposed_reward_time_s"] > scored["exposed_reward_time_s"]).all()
    assert raced["round_kind"].tolist() == scored["round_kind"].tolist()


def test_rounds_that_preempt_more_and_more_move_to_engines_of_more_gpus(tmp_path):
    # memory for some 6,000 tokens beside the weights, and responses that grow from step to step
    tight = ["hardware.memory_gb=17.5", "data.max_prompt_tokens=512", "workload.drift_per_step=0.2", "run.num_steps=8"]
    fixed = steps_of(tmp_path / "fixed", "system=verl", *tight)
    planned = steps_of(tmp_path / "planned", "system=planner", *tight)
    assert set(fixed["tensor_parallel"]) == {1}
    assert (fixed["num_preemptions"] > 0).any()
    degrees = planned["tensor_parallel"].tolist()
    assert degrees[0] == 1
    assert max(degrees) > 1
    changes = [one != other for one, other in itertools.pairwise(degrees)]
    assert [seconds == pytest.approx(1.0) for seconds in planned["switch_time_s"]][:-1] == changes, "asleep and awake"
    switches = read_frame(tmp_path / "planned", "intervals").query("activity == 'switch'")
    assert switches["step"].tolist() == [step for step, seconds in enumerate(planned["switch_time_s"]) if seconds]
    first = next(step for step, degree in enumerate(degrees) if degree > 1)
    before = planned[:first]
    rate_before = before["tokens_trained"].sum() / before["rollout_time_s"].sum()
    rate = planned["tokens_trained"][first] / planned["rollout_time_s"][first]
    assert planned["parallelism_gain"][first] == pytest.approx(rate / rate_before)
    assert planned["parallelism_gain"][:first].isna().all()
    engines = read_frame(tmp_path / "planned", "responses").groupby("step")["engine"].nunique()
    assert [4 // degree for degree in degrees] == engines.tolist()


def test_the_planner_counts_no_tokens_of_responses_that_a_short_round_aborted(tmp_path):
    steps = steps_of(tmp_path, "system=tail-reward-planner")
    records = read_event_log(attempt_path(tmp_path, 0)).records
    measured = [record.event.num_tokens for record in records if isinstance(record.event, RoundMeasured)]
    assert measured == steps["tokens_trained"].tolist()
    assert (steps["tokens_trained"] < steps["tokens_generated"])[steps["round_kind"] == "short"].all()


@pytest.mark.parametrize("system", ["reward", "planner", "tail-reward-planner"])
def test_every_other_rung_trains_whole_batches(tmp_path, system):
    steps = steps_of(tmp_path / system, f"system={system}")
    assert set(steps["num_prompts"]) == {16}
    assert set(steps["num_responses"]) == {64}


def test_larger_engines_finish_rounds_sooner_with_the_same_batches_and_memory_for_their_weights(tmp_path):
    words = ["system=verl", "system.planner=true", "model=qwen2.5-14b", "engine.degrees=[1,2]", "run.num_steps=2"]
    alone = steps_of(tmp_path / "alone", *words)
    tail = steps_of(tmp_path / "tail", *words, "system.escalate_tail=true")
    assert alone["escalated_from"].isna().all()
    assert (tail["escalated_from"][0], tail["tensor_parallel"][0]) == (1, 2)
    assert tail["rollout_time_s"][0] < alone["rollout_time_s"][0]
    assert list(tail["tokens_trained"]) == list(alone["tokens_trained"])
    tensor_parallel = plan_cluster(compose([*SMALL, *words, f"run.dir={tmp_path}"]), needs_judge=False).engines
    beside = plan_cluster(
        compose([*SMALL, *words, "system.escalate_tail=true", f"run.dir={tmp_path}"]), needs_judge=False
    ).engines
    assert beside[1].num_kv_tokens < tensor_parallel[1].num_kv_tokens
    assert beside[2].num_kv_tokens == tensor_parallel[2].num_kv_tokens


def planned(*words: str):
    return plan_cluster(compose(replaced([*SMALL, "run.dir=runs/x"], words)), needs_judge=False)


PLANNER = ["system=planner", "hardware.gpus_per_node=16"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["engine.degrees=[1,2,4,8]", "engine.num_engines=16"],
            "engine.degrees=8 does not divide the model's 28 attenti",
        ),
        (["engine.degrees=[1,2]", "engine.num_engines=5"], "the 5 GPUs of the engines do not divide by 2"),
        (
            [
                "engine.degrees=[1,2]",
                "placement.engine='0-2@0 0-4@1'",
                "placement.trainer=8-15",
                "engine.num_engines=8",
            ],
            "the 3 GPUs of the engines on node 0 do not divide by 2",
        ),
        (
            ["engine.degrees=[1,2]", "engine.tensor_parallel=2", "hardware.memory_gb=15"],
            r"engine.degrees=1 with 15.2 GB of weights .*\n.*\nLeave 1 out of engine.degrees, or lower",
        ),
        (
            ["trainer.tensor_parallel=8", "engine.num_engines=8"],
            "trainer.tensor_parallel=8 does not divide the model's",
        ),
        (
            ["trainer.pipeline_parallel=3", "engine.num_engines=6"],
            "trainer.pipeline_parallel=3 does not divide the mod",
        ),
    ],
)
def test_degrees_by_which_model_or_gpus_cannot_be_divided_are_refused_if_they_are_named(words, why):
    with pytest.raises(ConfigError, match=why):
        planned(*PLANNER, *words)


def test_the_planner_itself_chooses_degrees_that_fit_beside_engines_that_stand_by():
    words = ["system=ours-exact", "hardware.memory_gb=20", "engine.tensor_parallel=2"]
    assert list(planned(*words).engines) == [2, 4, 1]
    assert list(planned(*words, "system.escalate_tail=true").engines) == [2, 4]
    with pytest.raises(ConfigError, match=r"Leave 1 out of engine\.degrees"):
        planned(*words, "system.escalate_tail=true", "engine.degrees=[1,2,4]")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["engine.num_engines=2"], ["engine.num_engines=1"]),
        (["engine.num_engines=2", "engine.degrees=[1,2]"], ["engine.num_engines=2", "engine.degrees=[1]"]),
    ],
    ids=str,
)
def test_a_run_goes_on_with_fewer_engines_or_degrees(tmp_path, before, after):
    words = ["system=rollpacker", "run.checkpoint_every_steps=1", "run.resume=auto"]
    steps_of(tmp_path / "run", *words, *before, "run.num_steps=2")
    assert list(steps_of(tmp_path / "run", *words, *after, "run.num_steps=3")["step"]) == [0, 1, 2]


def test_a_run_whose_prompts_are_all_dropped_says_so(tmp_path):
    data = ["workload.solve_rate=0", "workload.num_prompts=6", "rollout.num_prompts=4", "run.num_epochs=1"]
    with pytest.raises(DataError, match="too few for one batch are left: the others had all their rewards equal"):
        steps_of(tmp_path / "run", "system=dapo", *data)


def test_a_length_history_has_no_effect_without_tail_batching(tmp_path):
    assert list(steps_of(tmp_path / "run", "system=verl", "system.length_history=true", "run.num_steps=1")["step"]) == [
        0
    ]
