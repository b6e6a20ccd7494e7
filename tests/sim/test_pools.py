"""Engines and a trainer of a modelled run that have GPUs of their own."""

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.config.modelled_gpus import modelled_gpus
from rollpacker.core.commands import EndRound
from rollpacker.core.errors import ConfigError
from rollpacker.core.events import PolicyUpdated, ResponseFinished
from rollpacker.metrics.event_log import attempt_path, read_event_log
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.run.preflight import validate
from rollpacker.sim.plan import plan_cluster
from rollpacker.sim.run_facts import ModelledRunFacts
from tests.sim.composed import composed, small

SMALL = small("workload=math", "run.num_steps=4", "trainer.tensor_parallel=1", "run.dir=x")
NODE = ("hardware.num_nodes=1", "engine.num_engines=null")
SEPARATE = (*NODE, "placement.engine=rest", "placement.trainer=4-7")


def steps_of(run_dir, *words):
    pipeline.run(compose([*SMALL, *words, f"run.dir={run_dir}"]))
    return read_frame(run_dir, "steps")


def plan(*words):
    return plan_cluster(composed(*SMALL, *words), needs_judge=False)


def test_in_a_synchronous_step_one_pool_waits_for_the_other(tmp_path):
    split = steps_of(tmp_path / "split", "system=verl", *SEPARATE)
    stages = ["rollout_time_s", "exposed_reward_time_s", "train_time_s", "weight_sync_time_s"]
    assert split["step_time_s"].tolist() == pytest.approx(split[stages].sum(axis=1).tolist())
    shared = steps_of(tmp_path / "shared", "system=verl", *NODE, "hardware.rollout_start_s=0")
    assert split["tokens_trained"].tolist() == shared["tokens_trained"].tolist()
    # half of the GPUs train in twice the time; generation is bound by the longest response and loses less
    assert split["train_time_s"].sum() > 1.8 * shared["train_time_s"].sum()
    assert (split["rollout_time_s"] > shared["rollout_time_s"]).all()
    assert split["step_time_s"].sum() > shared["step_time_s"].sum()


def test_groups_stream_to_gpus_that_are_the_trainer_s_own(tmp_path):
    whole = steps_of(tmp_path / "whole", "system=reward", *SEPARATE)
    streamed = steps_of(tmp_path / "streamed", "system=rlhfuse", *SEPARATE)
    assert set(streamed["num_engines_lent"]) == {0}
    assert (streamed["tokens_streamed"] > 0).all()
    assert streamed["tokens_trained"].tolist() == whole["tokens_trained"].tolist()
    assert (streamed["train_time_s"] < whole["train_time_s"] / 2).all()
    assert streamed["rollout_time_s"].tolist() == pytest.approx(whole["rollout_time_s"].tolist())


def test_engines_that_never_sleep_do_not_wake():
    assert plan(*NODE).rollout_start_s > plan(*SEPARATE).rollout_start_s == 0


def test_each_role_has_its_gpus_and_the_run_holds_both():
    words = ("hardware.num_nodes=4", "engine.num_engines=null", "placement.engine=rest")
    thirds = plan(*words, "placement.trainer='all@3 6-7@2'")
    assert len(thirds.gpus.of_engines) == 22
    assert thirds.gpus.of_trainer == (22, 23, *range(24, 32))
    assert thirds.trainer.num_replicas == 10
    assert thirds.replicas == ()
    config = composed(*SMALL, *words, "placement.trainer='all@3 6-7@2'")
    assert config.engine.num_engines == 22
    assert modelled_gpus(config).number == 32


def test_tensor_parallel_groups_on_gpus_of_the_trainer_s_own_need_not_fill_nodes():
    words = ("hardware.gpus_per_node=10", "hardware.num_nodes=1", "engine.num_engines=2", "trainer.tensor_parallel=4")
    assert plan(*words, "placement.engine=0-1", "placement.trainer=2-9").trainer.num_replicas == 2


def test_weights_come_over_the_network_where_the_trainer_is_on_other_nodes():
    words = ("hardware.num_nodes=2", "engine.num_engines=null", "placement.engine=rest")
    on_each, on_one = (plan(*words, f"placement.trainer={text}") for text in ("4-7", "all@1"))
    network = on_one.hardware.network_gb_per_s * 1e9 * on_one.hardware.weight_sync_efficiency
    half = on_one.model.num_weight_bytes / 2 / network
    assert on_one.weight_transfer_s(1) - on_each.weight_transfer_s(1) == pytest.approx(half)
    # gradients of four GPUs on each of two nodes cross the network, those of one whole node do not
    assert on_each.trainer.update_s() > on_one.trainer.update_s()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["engine.num_engines=8", "placement.engine=0-3", "placement.trainer=4-7"], 2),
        (["engine.num_engines=8", "placement.engine=0-3", "placement.trainer='4-7 all@2'"], None),
        (["engine.num_engines=8", "placement.engine=all@0", "placement.trainer=all@1"], 2),
    ],
)
def test_without_a_number_of_nodes_there_are_as_many_as_the_maps_need(words, expected):
    if expected is None:
        with pytest.raises(ConfigError, match=r"takes? turns|take turns"):
            compose([*SMALL, *words])
        return
    assert modelled_gpus(composed(*SMALL, *words)).num_nodes == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["placement.engine=0-3", "placement.trainer=2-7"], "GPUs of their own"),
        (["placement.engine=rest", "placement.trainer=4-9"], "names GPU 9 of node 0"),
        (["placement.engine=0-3", "placement.trainer=4-7", "engine.num_engines=3"], "gives engines 4 GPUs"),
        (["engine.num_engines=3", "hardware.num_nodes=1"], "hardware.num_nodes=1 gives engines 8 GPUs"),
        ([*NODE, "placement.engine=rest", "placement.trainer=7", "engine.tensor_parallel=2"], "names 7 GPUs of node 0"),
        ([*NODE, "placement.engine=rest", "placement.trainer=5-7", "trainer.context_parallel=2"], "does not fit"),
        (["engine.num_engines=8", "placement.engine=all@0", "placement.trainer=none"], "names 0 GPUs"),
        (["engine.num_engines=null"], "num_engines"),
        (
            ["engine.num_engines=8", "hardware.gpus_per_node=4", "trainer.tensor_parallel=8"],
            "trainer.tensor_parallel=8 with hardware.gpus_per_node=4",
        ),
    ],
    ids=" ".join,
)
def test_gpus_that_do_not_fit_are_refused_before_anything_starts(words, said):
    with pytest.raises(ConfigError, match=said):
        compose([*SMALL, *words])


def test_an_asynchronous_run_generates_as_fast_as_all_of_its_time_allows_however_short_the_trainer_waits(tmp_path):
    words = ("system=flash", "run.num_steps=12", "hardware.training_efficiency=0.05", *SEPARATE)  # the trainer is late
    steps = steps_of(tmp_path, *words)
    assert steps["rollout_time_s"].min() < 0.1 * steps["step_time_s"].min()
    overall = steps["tokens_generated"].sum() / steps["finished_at_s"].max()
    assert steps["tokens_per_second"].mean() == pytest.approx(overall, rel=0.2)


def test_where_engines_and_trainer_take_turns_an_asynchronous_run_suspends_what_is_unfinished(tmp_path):
    steps = steps_of(tmp_path, "system=flash", *NODE, "placement=colocated")
    assert steps["num_requests_continued"].sum() > 0
    assert steps["tokens_wasted"].sum() == 0
    assert steps["staleness_max"].max() <= 2


def test_where_engines_and_trainer_share_gpus_nothing_is_generated_while_the_trainer_learns(tmp_path):
    steps = steps_of(tmp_path, "system=flash", *NODE, "placement=colocated")
    ended_at_s, num_turns = None, 0
    for record in read_event_log(attempt_path(tmp_path, 0)).records:
        if isinstance(record.event, PolicyUpdated):
            num_turns += ended_at_s is not None
            ended_at_s = None
        is_late = ended_at_s is not None and record.now > ended_at_s
        assert not (is_late and isinstance(record.event, ResponseFinished))
        if any(isinstance(command, EndRound) for command in record.commands):
            ended_at_s = record.now
    assert num_turns == len(steps)
    intervals = read_frame(tmp_path, "intervals")
    for training in intervals[intervals["activity"] == "train"].itertuples():
        asleep = intervals[(intervals["activity"] == "asleep") & (intervals["step"] == training.step)]
        assert len(asleep) == 8
        assert (asleep["started_at_s"] <= training.started_at_s).all()
        assert (asleep["ended_at_s"] >= training.ended_at_s).all()


def test_the_time_until_engines_have_given_back_their_requests_is_counted_apart_from_the_hand_over(tmp_path):
    steps = steps_of(tmp_path, "system=flash", *NODE, "placement=colocated").set_index("step")
    intervals = read_frame(tmp_path, "intervals").set_index("step")
    handed = intervals[intervals["activity"] == "hand_over"]
    assert (steps["suspend_time_s"] > 0).tolist() == [True, True, True, False]  # the last step leaves nothing
    assert (handed["ended_at_s"] - handed["started_at_s"]).tolist() == pytest.approx([0.5] * 4)
    stages = ["rollout_time_s", "exposed_reward_time_s", "suspend_time_s", "train_time_s", "weight_sync_time_s"]
    assert (steps[stages].sum(axis=1) + 0.5).tolist() == pytest.approx(steps["step_time_s"].tolist())


ASYNCHRONOUS = ("system=flash", *SEPARATE, "run.num_steps=6")


def test_engines_that_keep_requests_compute_nothing_twice_and_say_which_version_sampled_what(tmp_path):
    recomputed = steps_of(tmp_path / "recompute", *ASYNCHRONOUS)
    kept = steps_of(tmp_path / "keep", *ASYNCHRONOUS, "system.interrupt=keep")
    assert recomputed["tokens_recomputed"].sum() > 0
    assert kept["tokens_recomputed"].sum() == kept["suspend_time_s"].sum() == 0
    assert kept["step_time_s"].sum() < recomputed["step_time_s"].sum()
    assert kept["staleness_max"].max() in {1, 2}
    responses = read_frame(tmp_path / "keep", "responses")
    assert responses["accepted"].all()
    assert (responses["first_policy_version"] < responses["policy_version"]).any()
    assert len(responses) == len(responses.drop_duplicates(["epoch", "prompt", "sample"]))


def test_ahead_of_a_checkpoint_nothing_is_kept_so_that_a_resumed_run_goes_on_from_it(tmp_path):
    words = (*ASYNCHRONOUS, "system.interrupt=keep", "run.checkpoint_every_steps=3")
    steps = steps_of(tmp_path / "run", *words)
    assert (steps["tokens_recomputed"] > 0).tolist() == [False, False, False, True, False, False]


def test_engines_that_sleep_while_the_trainer_learns_have_nothing_to_keep():
    with pytest.raises(ConfigError, match=r"system.interrupt=keep where engines and trainer take turns") as error:
        validate(
            composed(*SMALL, "system=flash", *NODE, "system.interrupt=keep", "placement=colocated"), ModelledRunFacts
        )
    assert "system.interrupt=recompute" in str(error.value)


def test_workers_that_load_weights_when_they_can_keep_no_requests():
    words = (*ASYNCHRONOUS, "system.interrupt=keep", "elastic=sim", "elastic.modelled.num_workers=2")
    with pytest.raises(ConfigError, match=r"system.interrupt=keep with elastic rollout workers"):
        validate(composed(*SMALL, *words), ModelledRunFacts)
