"""Modelled rollout workers: whole runs in which they come and go."""

import asyncio
import json

import pytest

from rollpacker import pipeline
from rollpacker.core.errors import ConfigError, DataError
from rollpacker.data.shapes import transformer_of
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.rollout.replay import replay
from rollpacker.sim.members import ModelledMembers, Network
from rollpacker.sim.run_facts import ModelledRunFacts
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.composed import composed, config_of, small

SMALL = small(
    *("workload=math", "system=reward", "run.num_steps=4"),
    *("engine.num_engines=2", "engine.max_num_seqs=8", "trainer.tensor_parallel=1"),
)
WORKERS = (*SMALL, "elastic=sim", "elastic.modelled.num_workers=2", "elastic.modelled.start_s=1")
LOSS = "elastic.modelled.losses=[{step: 1, num_workers: 1, delay_s: 10, away_s: 5}]"


def steps_of(run_dir, *words):
    pipeline.run(config_of(run_dir, words))
    return read_frame(run_dir, "steps")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run without workers."""
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    return steps_of(run_dir, *SMALL)


def test_workers_generate_beside_the_run_s_own_engines_and_the_same_tokens_are_trained(tmp_path, alone):
    steps = steps_of(tmp_path / "run", *WORKERS)
    assert steps["tokens_trained"].tolist() == alone["tokens_trained"].tolist()
    assert steps["num_members_mean"][1:].between(1.5, 2.0).all()
    assert (steps["tokens_of_members"][1:] > 0.3 * steps["tokens_generated"][1:]).all()
    assert steps["rollout_time_s"][1:].sum() < 0.8 * alone["rollout_time_s"][1:].sum()
    assert alone["num_members_mean"].isna().all()


@pytest.mark.parametrize("silently", ["true", "false"])
def test_what_a_lost_worker_had_reported_is_not_generated_again(tmp_path, alone, silently):
    words = (*WORKERS, LOSS, f"elastic.modelled.loses_silently={silently}", "elastic.max_moves=0")
    kept = steps_of(tmp_path / "kept", *words)
    again = steps_of(tmp_path / "again", *words, "elastic.keeps_tokens=false")
    for steps in (kept, again):
        assert steps["tokens_trained"].tolist() == alone["tokens_trained"].tolist()
        assert steps["num_members_lost"].tolist()[1] == 1
    assert kept["tokens_saved"][1] > 0
    assert again["tokens_saved"].sum() == 0
    assert kept["step_time_s"][1] <= again["step_time_s"][1]


@pytest.mark.parametrize("away_s", ["null", "1000"])
def test_a_lost_worker_that_was_given_notice_stays_away_as_long_as_one_that_was_not(tmp_path, away_s):
    loss = f"elastic.modelled.losses=[{{step: 1, num_workers: 2, delay_s: 5, away_s: {away_s}}}]"
    for grace_s in (0, 5):
        steps = steps_of(tmp_path / f"{grace_s}", *WORKERS, loss, f"elastic.modelled.grace_s={grace_s}")
        assert steps["tokens_of_members"].gt(0).tolist() == [True, True, False, False]


def test_a_run_whose_workers_flap_trains_every_batch_and_replays(tmp_path, alone):
    chance = ("availability=random", "mean_up_s=20", "mean_down_s=5", "burst=2", "grace_s=3", "time_limit_s=60")
    words = [f"elastic.modelled.{word}" for word in chance]
    patience = ("elastic.drain_lead_s=5", "elastic.drain_margin_s=1", "elastic.least_stay_s=5")
    steps = steps_of(tmp_path / "run", *WORKERS, *words, *patience)
    assert steps["tokens_trained"].tolist() == alone["tokens_trained"].tolist()
    assert steps["num_members_lost"].sum() > 0
    replay(tmp_path / "run")


def test_nodes_that_wait_to_come_again_set_one_timer_for_each_time_that_they_went():
    chance = ("availability=random", "num_workers=8", "mean_up_s=600", "mean_down_s=10", "requeue_s=120")
    words = [f"elastic.modelled.{word}" for word in chance]
    elastic = composed(*WORKERS, "elastic.max_workers=8", *words).elastic

    async def main():
        loop, timers, changes = asyncio.get_running_loop(), [], []
        call_at = loop.call_at
        loop.call_at = lambda *args, **kwargs: timers.append(call_at(*args, **kwargs)) or timers[-1]
        members = ModelledMembers(elastic, make_engine=None)

        async def listen():
            while True:
                changes.extend(await members.changes())

        listening = asyncio.create_task(listen())
        await asyncio.sleep(1800)
        listening.cancel()
        await members.close()
        return len(timers), len(changes)

    num_timers, num_changes = run_in_virtual_time(main())
    assert num_changes > 20
    assert num_timers < 3 * num_changes


@pytest.mark.parametrize("grace_s", [0, 20])
def test_each_ordered_loss_takes_workers_that_no_other_one_takes(tmp_path, grace_s):
    losses = "elastic.modelled.losses=[{step: 1, delay_s: 5}, {step: 1, delay_s: 6}]"
    steps = steps_of(tmp_path / "run", *WORKERS, losses, f"elastic.modelled.grace_s={grace_s}")
    assert steps["tokens_of_members"].gt(0).tolist() == [True, True, False, False]


def test_a_worker_that_comes_before_the_silence_of_a_lost_one_is_noticed_waits_for_that(tmp_path, alone):
    spare = ("elastic.max_workers=2", "elastic.modelled.num_workers=3", "elastic.modelled.loses_silently=true")
    steps = steps_of(tmp_path / "run", *WORKERS, *spare, LOSS)
    assert steps["tokens_trained"].tolist() == alone["tokens_trained"].tolist()
    assert steps["num_members_mean"].tolist()[2:] == pytest.approx([2, 2], abs=0.5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["modelled.time_limit_s=100"], r"=100 with elastic\.least_stay_s=120\..*time_limit_s=121 or more"),
        (
            ["modelled.time_limit_s=120", "drain_lead_s=120"],
            r"=120 with elastic\.drain_lead_s=120\..*time_limit_s=121 or more",
        ),
    ],
)
def test_lives_in_which_a_worker_could_not_serve_are_refused(words, says):
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        composed(*WORKERS, *(f"elastic.{word}" for word in words))


def test_a_file_of_counts_that_is_not_there_is_refused_before_the_run_begins(tmp_path):
    words = ["elastic.modelled.availability=file", f"elastic.modelled.counts={tmp_path / 'counts.csv'}"]
    config = config_of(tmp_path / "run", [*WORKERS, *words])
    with pytest.raises(DataError, match=r"counts\.csv gives no counts of workers"):
        ModelledRunFacts(config).cluster()


def test_the_same_configuration_gives_the_same_run(tmp_path):
    first, second = (steps_of(tmp_path / name, *WORKERS, LOSS) for name in ("first", "second"))
    assert first.equals(second)


def test_workers_may_be_lost_from_the_first_policy_on(tmp_path, alone):
    steps = steps_of(tmp_path / "run", *WORKERS, LOSS.replace("step: 1", "step: 0"))
    assert steps["tokens_trained"].tolist() == alone["tokens_trained"].tolist()
    assert steps["num_members_lost"].tolist() == [1, 0, 0, 0]


def test_a_worker_is_lost_only_if_none_of_its_tokens_arrive_in_a_batch_twice(tmp_path):
    steps_of(tmp_path / "run", *WORKERS, LOSS)
    responses = read_frame(tmp_path / "run", "responses")
    accepted = responses[responses["accepted"]]
    assert not accepted.duplicated(["step", "prompt", "epoch", "sample"]).any()
    assert accepted.groupby("step").size().tolist() == [64] * 4


def test_workers_that_are_never_there_change_no_number_of_a_run(tmp_path, alone):
    steps = steps_of(tmp_path / "run", *WORKERS, "elastic.modelled.num_workers=0")
    shared = [column for column in alone if alone[column].notna().all()]
    assert steps[shared].equals(alone[shared])


def test_workers_go_on_with_the_policy_that_they_have_after_a_checkpoint(tmp_path, alone):
    steps = steps_of(tmp_path / "run", *WORKERS, "run.checkpoint_every_steps=1")
    assert steps["tokens_trained"].tolist() == alone["tokens_trained"].tolist()


def test_evaluations_between_the_steps_of_an_asynchronous_run_have_the_room_that_training_left(tmp_path):
    lines = [{"id": f"q{number}", "domain": "math", "prompt": "?", "ground_truth": "1"} for number in range(40)]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluation = (f"evaluation.path=[{tmp_path}/new.jsonl]", "evaluation.every_steps=1", "evaluation.num_samples=2")
    ahead = ("system=flash", "system.max_staleness=1", "system.lookahead=1", "engine.max_num_seqs=4")
    steps_of(tmp_path / "run", *WORKERS, *ahead, *evaluation)
    assert list(read_frame(tmp_path / "run", "evaluations")["step"].unique()) == list(range(5))
    replay(tmp_path / "run")


@pytest.fixture(scope="module", params=[0, 45])
def without(request, tmp_path_factory):
    """How long an engine takes from new weights to its first token, and runs without workers: plain, and streaming."""
    words = (*SMALL, f"hardware.rollout_start_s={request.param}")
    folder = tmp_path_factory.mktemp("without")
    return request.param, steps_of(folder / "plain", *words), steps_of(folder / "stream", *words, "system.stream=true")


@pytest.mark.parametrize(
    "seeding",
    [(), ("elastic.seeding=fixed", "elastic.seeding_s=0"), ("elastic.seeding=fixed", "elastic.seeding_s=5")],
)
@pytest.mark.parametrize(("silently", "delay_s"), [("true", 0), ("true", 6), ("false", 0), ("false", 1)])
def test_a_step_that_loses_all_workers_while_engines_are_lent_takes_little_longer_than_one_without_workers(
    tmp_path, without, seeding, silently, delay_s
):
    start_s, plain, stream = without
    loss = f"elastic.modelled.losses=[{{step: 1, num_workers: 2, after: lending, delay_s: {delay_s}}}]"
    patience = (f"elastic.modelled.loses_silently={silently}", "elastic.reclaim_after_s=4", "elastic.silence_s=3")
    words = (*WORKERS, "system.stream=true", f"hardware.rollout_start_s={start_s}", *seeding, *patience, loss)
    steps = steps_of(tmp_path / "run", *words)
    silence_s, patience_s, switches_s = 3 if silently == "true" else 0, 4, 2 * 0.5
    reload_s = steps["weight_sync_time_s"][1] + start_s
    assert steps["step_time_s"][1] <= plain["step_time_s"][1] + silence_s + patience_s + switches_s + reload_s
    assert steps["step_time_s"][2:].tolist() == pytest.approx(stream["step_time_s"][2:].tolist())
    assert steps["num_reclaims"].tolist() == [0, 1, 0, 0]
    assert steps["tokens_trained"].tolist() == plain["tokens_trained"].tolist()
    replay(tmp_path / "run")


def test_requests_move_to_a_worker_that_comes_when_all_of_them_run(tmp_path, alone):
    room = ("engine.max_num_seqs=32", "elastic.modelled.num_workers=1", "elastic.modelled.start_s=52")
    words = (*WORKERS, *room, "run.num_steps=1", "elastic.balance_gain_s=0.1")
    moving, staying = (steps_of(tmp_path / str(most), *words, f"elastic.max_moves={most}") for most in (2, 0))
    assert staying["tokens_of_members"][0] == 0
    assert moving["tokens_of_members"][0] > 0
    assert moving["tokens_trained"][0] == staying["tokens_trained"][0] == alone["tokens_trained"][0]
    assert moving["rollout_time_s"][0] < staying["rollout_time_s"][0]
    replay(tmp_path / "2")


def seconds_of_pulls(num_pulls, *words, engines_per_worker=1):
    """Of so many workers that pull 2 GB at once by links of 1 GB/s, from a node that has one of 2 GB/s."""
    rates = ("elastic.modelled.network_gb_per_s=1", "elastic.modelled.trainer_network_gb_per_s=2")
    section = composed(*WORKERS, *rates, *words).elastic.modelled

    async def main():
        network = Network(section, bucket_bytes=100_000_000)
        loop = asyncio.get_running_loop()
        began = loop.time()
        engines = [f"e0_{worker}-r0.{number}" for worker in range(num_pulls) for number in range(engines_per_worker)]
        await asyncio.gather(*(network.pull(2_000_000_000, engine, 1) for engine in engines))
        return loop.time() - began

    return run_in_virtual_time(main())


def test_a_worker_loads_what_it_pulled_at_the_share_of_pcie_that_transfers_reach(tmp_path):
    taken_s = []
    for share in (1.0, 0.5):
        steps_of(tmp_path / str(share), *WORKERS, f"hardware.link_efficiency={share}", "hardware.pcie_gb_per_s=1")
        pulls = read_frame(tmp_path / str(share), "intervals").query("activity == 'catching_up'")
        taken_s.append((pulls["ended_at_s"] - pulls["started_at_s"]).min())
    num_bytes = transformer_of(composed(*WORKERS, "run.dir=x").model).num_weight_bytes
    assert taken_s[1] - taken_s[0] == pytest.approx(num_bytes / 1e9, rel=1e-6)


def test_pulls_share_the_link_of_the_trainer_s_node():
    assert [seconds_of_pulls(number) for number in (1, 2, 4)] == [pytest.approx(2), pytest.approx(2), pytest.approx(4)]


@pytest.mark.parametrize("relay", ["true", "false"])
def test_engines_of_a_worker_have_a_policy_as_soon_as_one_alone_would(relay):
    taken_s = seconds_of_pulls(1, f"elastic.modelled.relay={relay}", engines_per_worker=4)
    assert taken_s == pytest.approx(2)


def test_what_an_engine_was_cut_off_from_bringing_another_one_of_its_worker_brings():
    section = composed(*WORKERS, "elastic.modelled.network_gb_per_s=1").elastic.modelled

    async def main():
        network = Network(section, bucket_bytes=1_000_000_000)
        first, second = (asyncio.create_task(network.pull(2_000_000_000, f"e0_0-r0.{n}", 1)) for n in range(2))
        await asyncio.sleep(0.5)
        first.cancel()
        began = asyncio.get_running_loop().time()
        await second
        return asyncio.get_running_loop().time() - began

    assert run_in_virtual_time(main()) == pytest.approx(2)


def test_a_worker_that_is_gone_neither_goes_on_to_pull_nor_is_pulled_from():
    words = ("elastic.modelled.relay=true", "elastic.modelled.network_gb_per_s=1")
    section = composed(*WORKERS, *words, "elastic.modelled.trainer_network_gb_per_s=0.5").elastic.modelled

    async def main():
        network, loop = Network(section, bucket_bytes=100_000_000), asyncio.get_running_loop()
        lost = asyncio.create_task(network.pull(2_000_000_000, "e0_0-r0.0", 1))
        await asyncio.sleep(1.05)
        network.leave("e0_0-r0")
        await lost
        ended_s = loop.time()
        await network.pull(2_000_000_000, "e0_1-r0.0", 1)
        return ended_s, loop.time() - ended_s

    assert run_in_virtual_time(main()) == pytest.approx((1.2, 4.0))


def test_workers_that_relay_are_hardly_slower_together_than_alone():
    relay = "elastic.modelled.relay=true"
    assert seconds_of_pulls(1, relay) == pytest.approx(2)
    assert seconds_of_pulls(8) == pytest.approx(8)
    assert seconds_of_pulls(8, relay) < 5
    assert seconds_of_pulls(8, relay) == seconds_of_pulls(8, relay)


def test_a_run_whose_workers_relay_and_are_lost_trains_the_same_tokens(tmp_path, alone):
    steps = steps_of(tmp_path / "run", *WORKERS, LOSS, "elastic.modelled.relay=true", "elastic.bucket_mb=64")
    assert steps["tokens_trained"].tolist() == alone["tokens_trained"].tolist()
