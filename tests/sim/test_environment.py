"""Modelled environments: their draws, and whole runs whose trajectories have several turns."""

import asyncio
import itertools
import json
import math
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.config.sections.modelled_environment import ModelledEnvironmentSection
from rollpacker.core.commands import CloseEnvironment, Launch, OpenEnvironment
from rollpacker.core.environment_events import EnvironmentFailed, TurnFinished
from rollpacker.core.environments import FINISHED
from rollpacker.core.errors import ConfigError
from rollpacker.core.events import StepStarted
from rollpacker.core.ids import ENVIRONMENT, HELD_OUT, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.metrics.event_log import attempt_path, read_event_log
from rollpacker.metrics.tables import read_frame
from rollpacker.protocols.environment import EnvironmentAnswer, EnvironmentReset, EnvironmentTurn
from rollpacker.protocols.rollout import FinishReason
from rollpacker.runtime.rollout.replay import replay
from rollpacker.runtime.rollout.trajectories import Trajectories
from rollpacker.sim import backend
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.environment import Episodes, ModelledEnvironments, modelled_environments
from rollpacker.sim.virtual_time import run_in_virtual_time
from rollpacker.sim.workload import turn_of
from tests.sim.composed import config_of

RUN = (
    *("backend=sim", "setup=flash", "workload=agents", "run.progress=none", "run.num_steps=6"),
    *("rollout.num_prompts=4", "rollout.num_responses=4", "hardware.num_nodes=1"),
    *("placement.engine=all", "placement.trainer=all", "run.num_epochs=null"),
    *("workload.environment.turns_mean=5", "workload.environment.turns_std=2"),
)
WORKERS = (
    *("elastic=sim", "elastic.modelled.num_workers=2", "elastic.modelled.start_s=1", "hardware.num_nodes=null"),
    *("placement.engine=null", "placement.trainer=null", "engine.num_engines=2", "trainer.tensor_parallel=1"),
    "rollout.num_responses=16",  # so many that next turns leave the engines that were there first
)
TURN = EnvironmentTurn(text="", spelled="", token_ids=(), logprobs=(), finish_reason=FinishReason.STOP)


def name(number: int) -> RequestId:
    return RequestId(number // 8, PromptId(0, f"p{number % 8}"), number % 3)


def episodes(seed: int = 0, **values) -> Episodes:
    return Episodes(ModelledEnvironmentSection(name="drawn", **values), seed)


def drawn(number: int = 4000, **values):
    """Episodes of so many requests."""
    of_section = episodes(**values)
    return [of_section.episode(RequestId(0, PromptId(0, f"p{index}"), 0), 0) for index in range(number)]


def test_what_an_attempt_meets_depends_on_its_request_its_number_and_the_seed_alone():
    values = {"turns_std": 3.0, "latency_std_s": 0.5, "fail_slow_share": 0.3}
    first, other = episodes(**values), episodes(**values)
    asked = {number: first.episode(name(number), 0) for number in range(24)}
    assert {number: other.episode(name(number), 0) for number in reversed(range(24))} == asked
    assert len(set(asked.values())) == 24
    assert all(first.episode(name(number), 3) != episode for number, episode in asked.items())
    assert all(episodes(1, **values).episode(name(number), 0) != episode for number, episode in asked.items())


def test_a_held_out_trajectory_meets_the_same_in_every_step():
    def held_out(step):
        return episodes(latency_std_s=0.5).episode(RequestId(step, PromptId(-1, "unseen/a"), 0), 0)

    assert held_out(3) == held_out(7)


def test_turns_are_about_their_mean_and_within_their_bounds():
    section = ModelledEnvironmentSection(name="drawn", turns_mean=6, turns_std=2)
    turns = [episode.num_turns for episode in drawn(turns_mean=6, turns_std=2)]
    assert statistics.fmean(turns) == pytest.approx(6, abs=0.1)
    assert statistics.pstdev(turns) == pytest.approx(2, abs=0.1)
    assert min(turns) >= 1
    assert max(turns) <= section.max_turns
    assert {episode.num_turns for episode in drawn(turns_mean=6)} == {6}
    assert min(episode.num_turns for episode in drawn(turns_mean=1, turns_std=5)) == 1


def test_times_of_steps_have_the_mean_and_the_deviation_that_they_are_given():
    def times(**values):
        return [time for episode in drawn(latency_mean_s=10, turns_mean=5, **values) for time in episode.latencies_s]

    log_normal = times(latency="log_normal", latency_std_s=5)
    assert statistics.fmean(log_normal) == pytest.approx(10, rel=0.02)
    assert statistics.pstdev(log_normal) == pytest.approx(5, rel=0.05)
    assert statistics.fmean(times(latency_std_s=2)) == pytest.approx(10, rel=0.01)
    cut = times(latency_std_s=10)
    assert min(cut) == 0
    assert statistics.fmean(cut) == pytest.approx(10.83, rel=0.02), "what check and the documentation say"
    assert set(times()) == {10.0}


def test_as_many_environments_stall_and_hang_as_they_should_each_in_one_of_its_turns():
    found = drawn(latency_mean_s=1, turns_mean=4, fail_slow_share=0.1, fail_slow_s=210, fail_stop_share=0.05)
    slow = [episode for episode in found if 211.0 in episode.latencies_s]
    hanging = [episode for episode in found if math.inf in episode.latencies_s]
    assert len(slow) / len(found) == pytest.approx(0.1, abs=0.015)
    assert len(hanging) / len(found) == pytest.approx(0.05, abs=0.01)
    where = Counter(episode.latencies_s.index(211.0) for episode in slow)
    assert min(where[turn] for turn in range(4)) > 0.15 * len(slow)
    assert all(sum(time != 1.0 for time in episode.latencies_s) <= 2 for episode in found)


def test_a_turn_begins_after_what_the_environment_said_last_however_often_it_was_interrupted():
    said = VersionSpan(ENVIRONMENT, 7)
    assert turn_of(()) == (0, 0)
    assert turn_of((VersionSpan(3, 5),)) == (0, 0)
    assert turn_of((VersionSpan(3, 5), said)) == (1, 12)
    assert turn_of((VersionSpan(3, 5), said, VersionSpan(3, 2), VersionSpan(4, 1))) == (1, 12)
    assert turn_of((VersionSpan(3, 5), said, VersionSpan(3, 2), said)) == (2, 21)


def answered(asked, **values):
    """When each of some environments' first step is answered; those of `asked` are asked so late."""

    async def ask():
        loop, found = asyncio.get_running_loop(), {}
        in_batches = values.pop("in_batches", False)
        service = ModelledEnvironments(episodes(**values), lambda _: True, in_batches)
        for request in asked:
            service.reset(request, 0, EnvironmentReset(seed=0, options={}))
        assert len(await service.collect()) == len(asked)
        for request, at_s in asked.items():
            loop.call_at(at_s, service.step, request, 1, TURN)
        while len(found) < len(asked):
            found |= {answer.request: loop.time() for answer in await service.collect()}
        await service.close()
        return found

    return run_in_virtual_time(ask())


def test_alone_each_environment_answers_in_its_own_time_and_in_batches_all_with_the_last():
    asked = {name(number): float(number) for number in range(4)}
    alone = answered(asked, latency_std_s=0.3)
    due = {
        request: at_s + episodes(latency_std_s=0.3).episode(request, 0).latencies_s[0]
        for request, at_s in asked.items()
    }
    assert alone == pytest.approx(due)
    [at_s] = set(answered(asked, latency_std_s=0.3, in_batches=True).values())
    assert at_s == pytest.approx(max(due.values()))


def test_a_batch_of_an_evaluation_does_not_wait_for_trajectories_that_are_suspended_meanwhile():
    async def ask():
        service = ModelledEnvironments(episodes(), lambda _: True, in_batches=True)
        held_out = [RequestId(0, PromptId(HELD_OUT, "unseen/a"), sample) for sample in range(2)]
        for request in (name(0), *held_out):
            service.reset(request, 0, EnvironmentReset(seed=0, options={}))
        await service.collect()
        for request in held_out:
            service.step(request, 1, TURN)
        async with asyncio.timeout(60.0):
            answered = {answer.request for answer in await service.collect()}
        service.step(name(0), 1, TURN)
        async with asyncio.timeout(60.0):
            return answered == set(held_out), [answer.request for answer in await service.collect()]

    assert run_in_virtual_time(ask()) == (True, [name(0)])


def test_an_environment_of_an_earlier_attempt_of_the_run_fails():
    async def ask():
        service = ModelledEnvironments(episodes(), lambda _: True)
        service.step(name(0), 5, TURN)
        [answer] = await service.collect()
        return answer

    answer = run_in_virtual_time(ask())
    assert (answer.call, answer.failure) == (5, "environment_lost")


# Whole runs


def train(run_dir: Path, *words: str) -> list:
    """Run one; gives its log."""
    pipeline.run(config_of(run_dir, [*RUN, *words]))
    replay(run_dir)
    return list(read_event_log(attempt_path(run_dir, 0)).records)


def accepted(run_dir: Path):
    responses = read_frame(run_dir, "responses")
    return responses[responses["accepted"]]


SYSTEMS = {
    "verl": (),
    "tail": (),
    "flash": (),
    "in batches": ("system=verl", "workload.environment.pace=batch"),
    "few places": ("system=tail", "workload.environment.max_open=7"),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_trajectories_have_the_turns_that_were_drawn_and_each_prompt_is_trained_once(system, tmp_path):
    records = train(tmp_path, *(SYSTEMS[system] or (f"system={system}",)))
    turns = Counter(record.event.request for record in records if isinstance(record.event, TurnFinished))
    commands = [command for record in records for command in record.commands]
    finished = [each.request for each in commands if isinstance(each, CloseEnvironment) and each.reason == FINISHED]
    section = composed_section()
    expected = {request: Episodes(section, 0).episode(request, 0).num_turns for request in finished}
    assert len(set(expected.values())) > 3
    assert {request: turns[request] for request in finished} == expected
    rows = accepted(tmp_path)
    prompts = rows.groupby(["step", "prompt"]).size()
    assert set(prompts) == {4}
    assert prompts.index.get_level_values("prompt").is_unique
    assert len(prompts) == 6 * 4


def test_nearly_all_next_turns_run_on_the_engine_of_the_last_one_which_has_the_conversation_cached(tmp_path):
    last: dict[RequestId, EngineId] = {}
    is_same = []
    for record in train(tmp_path, "system=tail"):
        if isinstance(record.event, TurnFinished):
            last[record.event.request] = record.event.engine
        launches = [each for each in record.commands if isinstance(each, Launch) and each.request in last]
        is_same += [last[launch.request] == launch.engine for launch in launches]
    assert len(is_same) > 400
    assert statistics.fmean(is_same) > 0.99


@pytest.mark.parametrize("system", ["verl", "tail", "flash"])
@pytest.mark.parametrize("num_lost", [0, 1])
def test_rollout_workers_generate_turns_beside_the_run_s_own_engines_and_each_prompt_is_trained_once(
    system, num_lost, tmp_path
):
    loss = f"elastic.modelled.losses=[{{step: 2, num_workers: {num_lost}, delay_s: 10, away_s: 5}}]"
    train(tmp_path, f"system={system}", *WORKERS, *([loss] if num_lost else ()))
    steps = read_frame(tmp_path, "steps")
    assert steps["num_members_lost"].sum() == num_lost
    assert (steps["tokens_of_members"] > 0).all()
    prompts = accepted(tmp_path).groupby(["step", "prompt"]).size()
    assert list(prompts) == [16] * 24
    assert prompts.index.get_level_values("prompt").is_unique


def test_turns_find_in_the_cache_what_their_engine_computed_before_and_are_the_same_without_it(tmp_path):
    train(tmp_path / "found", "system=verl")
    train(tmp_path / "computed", "system=verl", "engine=vllm", "engine.vllm.prefix_caching=false")
    found, computed = (read_frame(tmp_path / run, "steps") for run in ("found", "computed"))
    assert (found["prefix_hit_tokens"] > 0.5 * found["prefix_query_tokens"]).all()
    assert set(computed["prefix_query_tokens"]) == {0}
    assert found["rollout_time_s"].sum() < computed["rollout_time_s"].sum()
    assert found["tokens_trained"].tolist() == computed["tokens_trained"].tolist()


def composed_section() -> ModelledEnvironmentSection:
    config = compose([*RUN, "system=verl", "run.dir=x"])
    assert config.modelled_environment is not None
    return config.modelled_environment


def test_a_trajectory_is_as_long_and_as_good_in_a_run_whose_environments_take_another_time(tmp_path):
    train(tmp_path / "slow", "system=verl")
    train(tmp_path / "quick", "system=verl", "workload.environment.latency_std_s=0", "workload.environment.pace=batch")
    columns = ["step", "prompt", "sample", "length_tokens", "reward"]
    slow, quick = (accepted(tmp_path / run)[columns].sort_values(columns[:3]) for run in ("slow", "quick"))
    assert slow.to_dict("records") == quick.to_dict("records")
    assert set(slow["reward"]) == {0.0, 1.0}
    assert len(set(slow["length_tokens"])) > 50


def test_a_trajectory_that_reaches_its_limit_of_tokens_ends_there_and_has_solved_nothing(tmp_path):
    train(tmp_path, "system=verl", "rollout.max_response_tokens=600", "workload.solve_rate=1")
    rows = accepted(tmp_path)
    cut = rows["finish_reason"] == "length"
    assert 0 < cut.sum() < len(rows)
    assert rows["length_tokens"].max() <= 600
    assert set(rows[cut]["reward"]) == {0.0}
    assert set(rows[~cut]["reward"]) == {1.0}


def test_what_hangs_begins_again_after_its_time_limit_and_every_prompt_is_trained(tmp_path):
    hanging = ("workload.environment.fail_stop_share=0.2", "workload.environment.turn_timeout_s=100")
    records = train(tmp_path, "system=verl", *hanging, "workload.environment.max_restarts=20")
    commands = [command for record in records for command in record.commands]
    opened = Counter(each.request for each in commands if isinstance(each, OpenEnvironment))
    closed = Counter(each.reason for each in commands if isinstance(each, CloseEnvironment))
    assert max(opened.values()) > 1
    assert closed["environment_timeout"] == sum(opened.values()) - len(opened)
    assert not any(isinstance(record.event, EnvironmentFailed) for record in records)
    assert closed[FINISHED] == len(opened) == 6 * 16
    assert len(accepted(tmp_path)) == 6 * 16


def test_environments_that_start_more_seldom_than_the_rollout_may_stall_do_not_end_the_run(tmp_path):
    slow = ("workload.environment.starts_per_minute=0.01", "workload.environment.turn_timeout_s=600")
    train(tmp_path, *slow, "run.num_steps=1", "backend.deadlines.rollout_stall_s=60")
    assert len(accepted(tmp_path)) == 16


def failing(share: int, monkeypatch, *, gives_rewards: bool):
    """Have every so-manieth answer of the environments be a crash."""

    def patched(config, workload):
        parts = modelled_environments(config, workload)
        arrivals, count = parts.service._arrivals, itertools.count(1)
        put = arrivals.put

        def put_some(answers):
            crash = {"failure": "environment_crashed", "problem": "of the test"}
            put(
                [
                    each if next(count) % share else EnvironmentAnswer(request=each.request, call=each.call, **crash)
                    for each in answers
                ]
            )

        monkeypatch.setattr(arrivals, "put", put_some)
        return replace(parts, gives_rewards=gives_rewards)

    monkeypatch.setattr(backend, "modelled_environments", patched)


ASYNCHRONOUS = (*RUN, "system=flash", "workload.environment.max_restarts=0", "workload.environment.pace=batch")


@pytest.mark.parametrize("gives_rewards", [False, True])
def test_a_prompt_that_is_dropped_as_a_sample_of_it_is_to_be_scored_holds_nobody_up_and_leaves_no_record(
    tmp_path, monkeypatch, gives_rewards
):
    failing(61, monkeypatch, gives_rewards=gives_rewards)
    pipeline.run(config_of(tmp_path, [*ASYNCHRONOUS, "run.num_steps=20", "rollout.num_prompts=8"]))
    steps = read_frame(tmp_path, "steps")
    assert len(steps) == 20
    assert steps["tokens_dropped"].sum() > 0
    [rollouts] = (tmp_path / "checkpoints").glob("step-000020/rollouts.json")
    assert json.loads(rollouts.read_text())["requests"] == []


def test_trajectories_of_deferred_prompts_are_forgotten_with_their_batch(tmp_path, monkeypatch):
    kept, made = [], []
    init = Trajectories.__init__
    monkeypatch.setattr(
        Trajectories, "__init__", lambda self, *parts, **more: (init(self, *parts, **more), made.append(self))[0]
    )

    def watch(*_):
        return lambda event, *_: kept.append(len(made[0]._attempts)) if isinstance(event, StepStarted) else None

    words = (*RUN, "system=tail", "rollout.num_prompts=16", "rollout.num_responses=8")
    config = config_of(tmp_path, words)
    run_in_virtual_time(pipeline.train(config, ModelledBackend(config), watch))
    assert max(kept[1:]) <= max(kept[:3]) < 100


def test_trajectories_under_way_at_a_checkpoint_begin_again_and_every_prompt_is_trained_once(tmp_path):
    config = config_of(tmp_path, [*RUN, "system=flash", "run.checkpoint_every_steps=2", "run.resume=auto"])

    def breaking_off(*_):
        def on_event(event, *_):
            if event == StepStarted(step=5, policy_version=5):
                raise ZeroDivisionError

        return on_event

    with pytest.raises(ZeroDivisionError):
        run_in_virtual_time(pipeline.train(config, ModelledBackend(config), breaking_off))
    pipeline.run(config)
    replay(tmp_path)
    events = [record.event for record in read_event_log(attempt_path(tmp_path, 1)).records]
    lost = [event for event in events if isinstance(event, EnvironmentFailed)]
    assert {event.reason for event in lost} == {"environment_lost"}
    num_before_generation = next(index for index, event in enumerate(events) if isinstance(event, StepStarted))
    assert set(map(id, lost)) <= set(map(id, events[:num_before_generation])), "a turn was generated in vain"
    prompts = accepted(tmp_path).groupby(["step", "prompt"]).size()
    assert list(prompts) == [4] * 24
    assert prompts.index.get_level_values("prompt").is_unique


def test_groups_stream_and_a_batch_that_failing_environments_make_smaller_is_trained(tmp_path):
    failing = ("workload.environment.fail_stop_share=0.05", "workload.environment.max_restarts=0")
    pipeline.run(config_of(tmp_path, [*RUN, "system=rlhfuse", *failing]))
    replay(tmp_path)
    steps = read_frame(tmp_path, "steps")
    streamed = steps[steps["tokens_streamed"] > 0]
    assert any((streamed["num_prompts"] > 0) & (streamed["num_prompts"] < 4))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["workload=agents-hangs", "workload.environment.pace=batch"], "pace=batch with"),
        (["workload=math", "workload.environment.turns_mean=3"], "workload.environment.name"),
        (["workload=agents", "workload.environment.latency=gamma"], "normal"),
    ],
)
def test_what_a_modelled_environment_cannot_be_is_refused(words, said):
    with pytest.raises(ConfigError) as refused:
        compose(["backend=sim", "setup=flash", "system=verl", "run.dir=x", *words])
    assert said in str(refused.value)


def test_the_lengths_of_a_recorded_run_are_no_lengths_of_turns(tmp_path):
    recorded = tmp_path / "recorded"
    pipeline.run(config_of(recorded, [*RUN[:-2], "system=verl", "run.num_steps=1"]))
    words = [word for word in RUN if "workload" not in word]
    with pytest.raises(ConfigError, match="lengths of turns"):
        train_on(recorded, tmp_path / "other", words)


def train_on(recorded: Path, run_dir: Path, words: list[str]) -> None:
    environment = ("workload=agents", "workload.median_tokens=null", f"workload.lengths={recorded}")
    pipeline.run(config_of(run_dir, [*words, *environment, "system=verl"]))


def test_engines_are_lent_at_the_share_of_trajectories_that_have_ended_not_of_turns(tmp_path):
    run_dir = tmp_path / "run"
    words = ["system=rlhfuse", "system.stream_at=0.75", "trainer.tensor_parallel=1", "run.num_steps=3"]
    pipeline.run(config_of(run_dir, [*RUN[:-2], *words, "workload.environment.turns_mean=5"]))
    steps = read_frame(run_dir, "steps")
    assert (steps["num_engines_lent"] > 0).all()
    assert steps["lent_at_share"].between(0.7, 0.8).all()


def test_prompts_that_are_given_up_and_not_replaced_do_not_put_off_lending(tmp_path):
    run_dir = tmp_path / "run"
    words = ["system=rlhfuse", "system.stream_at=0.6", "trainer.tensor_parallel=1", "rollout.num_prompts=8"]
    fails = ["workload.environment.max_restarts=0", "workload.environment.fail_stop_share=0.05"]
    pipeline.run(config_of(run_dir, [*RUN[:-2], *words, *fails, "workload.environment.turn_timeout_s=60"]))
    steps = read_frame(run_dir, "steps")
    assert (steps["num_prompts_dropped"] > 0).any()
    assert (steps["num_engines_lent"] > 0).all()
