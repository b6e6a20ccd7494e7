"""What a page says, as numbers, held against the tables that it was made from."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.metrics.tables import read_frame
from rollpacker.report import figures
from rollpacker.report.cuts import AT_LIMIT, Cuts
from rollpacker.report.page import render
from rollpacker.report.presence import Presence
from rollpacker.report.story import STAGES, _Gathered, read_story, stage_seconds
from rollpacker.report.style import STAGES as STAGE_STYLES
from rollpacker.report.waits import Waits, _busy_engines, _first_pass, _tail
from rollpacker.report.words import seconds
from rollpacker.timeline.moments import Moment
from rollpacker.timeline.stretches import stretches_of
from tests.sim.test_environment import RUN
from tests.timeline.runs import modelled_run, run_with_lost_engines


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return modelled_run(tmp_path_factory.mktemp("run"), "system=rollpacker", "system.planner=false")


@pytest.fixture(scope="module")
def story(run_dir):
    return read_story(run_dir)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return read_story(run_with_lost_engines(tmp_path_factory.mktemp("broken")))


ESCALATED = (
    *("system=verl", "system.planner=true", "system.escalate_tail=true", "model=qwen2.5-14b"),
    *("engine.degrees=[1,2]", "run.num_steps=2"),
)
"""In the first round two larger engines take the place of four, and generate the second, too."""


@pytest.fixture(scope="module")
def escalated(tmp_path_factory):
    return read_story(modelled_run(tmp_path_factory.mktemp("escalated"), *ESCALATED))


def test_the_stages_of_a_step_add_up_to_its_time_and_its_checkpoint(story):
    whole = story.steps["step_time_s"] + story.steps["checkpoint_time_s"]
    assert list(story.stages.columns) == list(STAGES)
    assert story.stages.sum(axis=1).tolist() == pytest.approx(whole.tolist())
    assert (story.stages >= 0).all().all()


def test_what_an_engine_did_adds_up_to_the_time_that_it_was_there(story):
    assert sorted(story.engines) == [f"engine-{number}" for number in range(4)]
    for use in story.engines.values():
        parts = sum(use.parts.values())
        assert use.present_s == pytest.approx(story.total_s)
        assert parts == pytest.approx(use.present_s, rel=0.02)  # aborts take some milliseconds after the round
    assert sum(use.asleep_s > 0 for use in story.engines.values()) >= 2


def test_an_engine_is_there_only_until_another_takes_its_gpus(escalated):
    assert escalated.steps["escalated_from"].notna().tolist() == [True, False]
    gpu_s = {
        engine: use.present_s * (2 if engine.startswith("engine-tp2") else 1)
        for engine, use in escalated.engines.items()
    }
    assert len(gpu_s) == 4 + 2
    switching_s = 4 * 2.0  # of four GPUs
    assert 4 * escalated.total_s - switching_s < sum(gpu_s.values()) < 4 * escalated.total_s
    for use in escalated.engines.values():
        assert sum(use.parts.values()) == pytest.approx(use.present_s, rel=0.02)


def test_without_event_logs_an_engine_is_there_from_its_first_to_its_last_row(escalated, tmp_path):
    run_dir = shutil.copytree(escalated.tables.run_dir, tmp_path / "run")
    shutil.rmtree(run_dir / "events")
    found = read_story(run_dir)
    assert found.notes
    assert found.engines.keys() == escalated.engines.keys()
    for engine, use in found.engines.items():
        assert escalated.engines[engine].present_s - 1 <= use.present_s <= found.total_s + 1e-6


def test_engines_that_others_replaced_are_not_idle_while_the_last_responses_are_generated(escalated):
    tail = next(wait for wait in escalated.waits if wait.kind == "tail" and wait.step == 0)
    num_idle, num_engines = map(int, re.search(r"(\d+) of (\d+) engines? were idle then", tail.why).groups())
    assert 0 <= num_idle < num_engines == 2


def test_tokens_are_trained_or_wasted_in_one_of_two_ways_without_environments(story):
    assert story.waste["trained"].tolist() == story.steps["tokens_trained"].tolist()
    wasted = story.waste["aborted"] + story.waste["finished"]
    assert wasted.tolist() == story.steps["tokens_wasted"].tolist()
    assert STAGE_STYLES["discarded"][0] not in render([story])


def test_tokens_that_were_lost_with_an_environment_are_drawn_so_that_a_steps_uses_add_up(tmp_path):
    hanging = ("workload.environment.fail_stop_share=0.2", "workload.environment.turn_timeout_s=100")
    restarts = ("workload.environment.max_restarts=20", "run.num_steps=2")
    pipeline.run(compose([*RUN, "system=verl", *hanging, *restarts, f"run.dir={tmp_path}"]))
    story = read_story(tmp_path)
    steps = story.steps.set_index("step")
    assert story.waste["discarded"].gt(0).any()
    assert story.waste.sum(axis=1).tolist() == steps["tokens_generated"].tolist()
    assert story.waste.drop(columns="trained").sum(axis=1).tolist() == steps["tokens_wasted"].tolist()
    page = render([story])
    assert f"</i>{STAGE_STYLES['discarded'][0]}</li>" in page
    assert f"{STAGE_STYLES['discarded'][0]}: " in page


def test_lengths_are_those_of_the_trained_responses_by_domain(story, run_dir):
    responses = read_frame(run_dir, "responses")
    trained = responses[responses["accepted"]]
    for domain, lengths in story.lengths.items():
        mine = trained[trained["domain"] == domain]
        assert lengths.tolist() == sorted(mine["length_tokens"])
        assert story.num_cut[domain][AT_LIMIT] == (mine["finish_reason"] == "length").sum()
    assert sum(map(len, story.lengths.values())) == len(trained)


def test_the_longest_wait_for_the_last_responses_names_the_last_one(story, run_dir):
    tail = next(wait for wait in story.waits if wait.kind == "tail")
    responses = read_frame(run_dir, "responses")
    rows = responses[responses["accepted"] & (responses["step"] == tail.step)]
    last = rows.loc[rows["finished_at_s"].idxmax()]
    assert f"{last['prompt']} #{last['sample']} on {last['engine']}" in tail.why
    at_most_s = rows["finished_at_s"].max() - rows["finished_at_s"].median()
    assert 0 < tail.duration_s <= at_most_s


@pytest.mark.parametrize(
    ("num", "num_early", "duration_s"), [(2, 1, 99), (20, 19, 81), (21, 20, 80), (40, 38, 62), (100, 95, 5)]
)
def test_at_least_the_last_of_several_responses_is_waited_for(story, num, num_early, duration_s):
    responses = {"prompt": "p0", "sample": range(num), "engine": "engine-0", "length_tokens": 7}
    responses |= {"finish_reason": "stop", "environment_time_s": 0.0, "ended_s": [*np.arange(1.0, num), 100.0]}
    step = {"step": 0, "finished_at_s": 100.0, "step_time_s": 100.0}
    stretches = pd.DataFrame(columns=["engine", "began_s", "ended_s"])
    intervals = pd.DataFrame(columns=["role", "activity", "actor", "started_at_s"])
    presence = Presence(story.tables.logged, None)
    (wait,) = _tail(step, pd.DataFrame(responses), stretches, intervals, presence, cuts=Cuts({}))
    assert wait.duration_s == duration_s
    assert wait.why.startswith(
        f"{num_early} of {num} responses were complete {seconds(100 - duration_s)} into the step."
    )


def test_what_is_waited_for_after_the_last_turn_is_environments_unless_they_had_answered_early(tmp_path):
    pipeline.run(compose([*RUN, "system=verl", f"run.dir={tmp_path}"]))
    story = read_story(tmp_path)
    intervals = read_frame(tmp_path, "intervals")
    found = [wait for wait in story.waits if wait.kind == "environment"]
    assert found
    assert not [wait for wait in story.waits if wait.kind == "reward"]
    for wait in found:
        answers = intervals[(intervals["step"] == wait.step) & (intervals["role"] == "environment")]
        last = answers.loc[answers["ended_at_s"].idxmax()]
        prompt, sample = re.fullmatch(r"r\d+:(.*)@\d+#(\d+)", last["subject"]).groups()
        assert f"The last was that to {prompt} #{sample} " in wait.why
        assert wait.duration_s == story.steps.set_index("step").loc[wait.step, "exposed_reward_time_s"] > 0

    for part in story.tables.parts():
        early, waits = part.intervals.copy(), Waits(Presence(story.tables.logged, story.accounts), Cuts({}))
        early.loc[early["role"] == "environment", "ended_at_s"] -= 1000
        waits.add(replace(part, intervals=early), stretches_of(part))
        kinds = {wait.kind for wait in waits.worst(1.0)}
        assert "reward" in kinds
        assert "environment" not in kinds


def test_a_wait_for_requests_in_flight_is_a_stage_and_a_wait_and_drawn(story):
    part = next(story.tables.parts())
    longer_s = part.steps["step_time_s"] + 7.0
    longer = replace(part, steps=part.steps.assign(suspend_time_s=7.0, step_time_s=longer_s))
    before, after = stage_seconds(part), stage_seconds(longer)
    assert (after["suspend"] == 7.0).all()
    assert after["other"].tolist() == pytest.approx(before["other"].tolist())
    waits = Waits(Presence(story.tables.logged, story.accounts), Cuts({}))
    waits.add(longer, stretches_of(longer))
    assert {wait.duration_s for wait in waits.worst(1.0) if wait.kind == "suspend"} == {7.0}
    spans = (("driver", "quiesce", story.picture.began_s, story.picture.ended_s),)
    page = figures.one_step({"run": replace(story.picture, actors=spans)})
    assert f"driver, {STAGE_STYLES['suspend'][0]}: " in page


def test_an_engine_is_busy_only_while_it_has_a_request():
    stretches = pd.DataFrame(
        [("engine-0", 0.0, 11.0), ("engine-0", 19.0, 30.0), ("engine-1", 5.0, 15.0)],
        columns=["engine", "began_s", "ended_s"],
    )
    assert _busy_engines(stretches, 10.0, 20.0) == pytest.approx((1 + 1 + 5) / 10)


@pytest.mark.parametrize(
    ("queued_s", "kind", "said"),
    [
        ([40, 40, 40, 40, 0, 0, 0, 0, 0, 0], "start", "engine-0 took 40 s to its first forward pass for p0 #0"),
        ([40, 30, 20, 10, 0, 0, 0, 0, 0, 0], "start", "20 s (median) for those that came with it"),
        ([40, 1, 1, 1, 0, 0, 0, 0, 0, 0], "queue", "p0 #0 waited at engine-0 for a place, 1.0 s (median) those"),
        ([40] * 10, "start", "Engines took 40 s (median)"),
    ],
)
def test_a_response_waited_for_a_place_only_where_those_that_came_with_it_had_one(queued_s, kind, said):
    """Four come at once, and the others one by one, later or to another engine."""
    accepted = pd.DataFrame(
        {
            "prompt": "p0",
            "sample": range(10),
            "engine": ["engine-0"] * 7 + ["engine-1"] * 3,
            "placed_at_s": [*[0.0] * 4, 50.0, 51.0, 52.0, *[0.0] * 3],
            "queue_time_s": np.array(queued_s, dtype=float),
        }
    )
    (wait,) = _first_pass({"step": 0}, accepted)
    assert (wait.kind, wait.duration_s) == (kind, 40)
    assert said in wait.why


@pytest.mark.parametrize(
    ("config", "cut"), [({}, ", cut at the limit"), ({"reward": {"name": "environment"}}, ", ended by the environment")]
)
def test_the_last_response_and_the_lengths_say_what_cut_it(story, config, cut):
    part = next(story.tables.parts())
    part = replace(part, responses=part.responses.assign(finish_reason="length", reward_reason="truncated"))
    presence, stretches = Presence(story.tables.logged, story.accounts), stretches_of(part)
    waits, gathered = Waits(presence, Cuts(config)), _Gathered(presence, Cuts(config))
    waits.add(part, stretches)
    gathered.take(part, stretches, chosen=-1)
    assert all(cut in wait.why for wait in waits.worst(1.0) if wait.kind == "tail")
    assert {what for of_domain in gathered.num_cut.values() for what in of_domain} == {cut.removeprefix(", ")}


def test_a_change_of_engines_is_no_wait_for_weights(story):
    part, waits = next(story.tables.parts()), Waits(Presence(story.tables.logged, story.accounts), Cuts({}))
    switched = part.steps.assign(switch_time_s=3.0, weight_sync_time_s=part.steps["weight_sync_time_s"] + 3.0)
    waits.add(replace(part, steps=switched), stretches_of(part))
    found = {wait.kind: wait for wait in waits.worst(1.0)}
    assert found["switch"].duration_s == 3.0
    assert found["weight_sync"].duration_s == pytest.approx(part.steps["weight_sync_time_s"].max())


def test_waits_come_worst_first_and_what_is_alike_in_every_step_once(story):
    durations = [wait.duration_s for wait in story.waits]
    assert durations == sorted(durations, reverse=True)
    assert len(story.waits) <= 10
    syncs = [wait for wait in story.waits if wait.kind == "weight_sync"]
    assert len(syncs) == 1
    assert syncs[0].num_alike == len(story.steps)
    assert syncs[0].sum_alike_s == pytest.approx(story.steps["weight_sync_time_s"].sum())


def test_the_step_that_is_drawn_is_the_one_of_median_duration_or_the_one_that_was_asked_for(story, run_dir):
    durations = story.steps.set_index("step")["step_time_s"]
    assert durations[story.picture.step] == durations.sort_values().iloc[len(durations) // 2]
    assert read_story(run_dir, step=1).picture.step == 1
    picture = story.picture
    for row in picture.engines:
        assert row.num_requests.min() >= 0
        assert row.num_requests[-1] == 0
        assert picture.began_s <= row.times_s[0] <= row.times_s[-1] <= picture.ended_s
    assert picture.num_moves > 0


def test_lost_engines_and_attempts_are_told(broken):
    assert broken.steps["num_engines_lost"].sum() > 0
    assert broken.moves.total() == (read_frame(broken.tables.run_dir, "intervals")["activity"] == "lost").sum() > 0
    assert broken.moves.keys() <= {"began again", "with its tokens"}
    assert len(broken.tables.logged.attempts) > 1
    lost = [wait for wait in broken.waits if wait.kind == "lost_engine"]
    assert lost
    assert all("was lost; " in wait.why for wait in lost)


def test_of_engines_that_are_lost_in_one_step_the_longest_wait_counts(story):
    ended_s, _, third_s, *_ = story.steps["finished_at_s"]
    told = [("lost", "engine-0", ended_s - 3), ("lost", "engine-1", ended_s - 2), ("lost", "engine-2", ended_s - 1)]
    told += [("joined", "engine-2-r1", ended_s), ("lost", "engine-3", third_s - 1), ("joined", "engine-3-r1", third_s)]
    moments = tuple(Moment(at_s=at_s, what=what, engine=engine) for what, engine, at_s in told)
    waits = Waits(Presence(story.tables.logged, None), Cuts({}))
    waits.add_lost_engines(replace(story.tables, logged=replace(story.tables.logged, moments=moments)))
    until_s = story.steps["finished_at_s"].iloc[-1] - ended_s + 3
    first, second = waits.worst(1.0)
    assert (first.step, second.step, first.num_alike) == (0, 2, 2)
    assert first.sum_alike_s == pytest.approx(until_s + 1)
    assert first.why == (
        f"engine-0 was lost; nothing took its place in the {seconds(until_s)} until the last step's end."
    )
    assert second.why == "engine-3 was lost; engine-3-r1 took its place after 1.0 s."


@pytest.mark.parametrize("change", ["fleet_change", "tail_change"])
def test_a_lost_engine_is_waited_for_until_other_engines_take_the_place_of_all(story, change):
    ended_s = story.steps["finished_at_s"][0]
    lost = Moment(at_s=ended_s - 3, what="lost", engine="engine-0")
    moments = (lost, Moment(at_s=ended_s - 1, what=change, engine=None, tensor_parallel=2))
    waits = Waits(Presence(story.tables.logged, None), Cuts({}))
    waits.add_lost_engines(replace(story.tables, logged=replace(story.tables.logged, moments=moments)))
    assert waits.worst(1.0)[0].why == "engine-0 was lost; other engines took the place of all after 2.0 s."


def test_only_a_request_whose_tokens_are_all_lost_begins_again():
    moves = [("a", "evicted", 5, 1.0), ("a", "lost", 0, 2.0), ("b", "lost", 0, 1.0), ("c", "evicted", 0, 1.0)]
    moves += [("d", "turn", 7, 1.0), ("d", "lost", 0, 2.0), ("e", "start", None, 1.0)]
    moves += [("f", "turn", 7, 1.0), ("f", "failed", 3, 2.0), ("f", "lost", 0, 3.0)]
    gathered = _Gathered(Presence.__new__(Presence), Cuts({}))
    gathered.count_moves(pd.DataFrame(moves, columns=["subject", "activity", "num_tokens", "ended_at_s"]))
    assert gathered.moves == {"with its tokens": 3, "began again": 2, "before its first token": 1}


def test_an_engine_that_had_no_request_in_a_step_is_idle_in_its_tail(escalated):
    (part,) = escalated.tables.parts()
    stretches = stretches_of(part)
    waits = Waits(Presence(escalated.tables.logged, None), Cuts({}))
    waits.add(part, stretches[(stretches["step"] == 0) & (stretches["engine"] == "engine-tp2-0")])
    (tail,) = (wait for wait in waits.worst(1.0) if wait.kind == "tail" and wait.step == 0)
    assert "1 of 2 engines were idle then" in tail.why


def test_a_step_weighs_as_much_as_its_trained_tokens_among_the_ages(tmp_path):
    story = read_story(modelled_run(tmp_path / "run", "run.num_steps=2"))
    steps = story.steps.assign(staleness_max=[1, 0], tokens_trained=[1_000, 3_000])
    steps["tokens_by_staleness"] = pd.Series([[("0", 5.0), ("1", 5.0)], None], dtype=object)
    assert replace(story, steps=steps).share_by_age(2) == pytest.approx([0.875, 0.125])
