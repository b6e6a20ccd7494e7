"""Whole modelled runs whose times come from a profile."""

import asyncio
import json
from dataclasses import replace

import pytest

from rollpacker import pipeline
from rollpacker.cli.run_facts import run_facts_of
from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError, DataError
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.metrics.profile_fits import LinearCost
from rollpacker.metrics.profiles import write_profile
from rollpacker.metrics.tables import read_frame
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.engine import EngineStats
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import GenerationRequest, Prompt
from rollpacker.runtime.run.preflight import validate
from rollpacker.sim.engine import blank_tokens
from rollpacker.sim.plan import plan_cluster
from rollpacker.sim.profile import CallCosts, ProfiledCluster
from rollpacker.sim.profile_calls import CalledEngine, CalledReward
from rollpacker.sim.run_facts import ModelledRunFacts
from rollpacker.sim.split import theory_of
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.clusters import SMALL
from tests.sim.test_profile import point, profile


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A profile and a model directory of the same sizes."""
    folder = tmp_path_factory.mktemp("inputs")
    write_profile(folder / "profile.json", profile())
    shape = SMALL.shape
    sizes = {
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
    }
    (folder / "config.json").write_text(json.dumps(sizes))
    prompts = [{"id": f"p{n}", "domain": "math", "prompt": "?", "ground_truth": "!"} for n in range(40)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return folder


def words(inputs, *more):
    return [
        "backend=sim",
        "hardware=cpu",
        f"hardware.profile={inputs / 'profile.json'}",
        f"model.path={inputs}",
        "model.dtype=bfloat16",
        "workload=math",
        "workload.prompt_tokens=10",
        "workload.reward_time_s=0",
        f"data.path={inputs / 'prompts.jsonl'}",
        "data.max_prompt_tokens=10",
        "rollout.num_prompts=4",
        "rollout.num_responses=2",
        "rollout.max_response_tokens=100",
        "engine.num_engines=1",
        "engine.max_num_seqs=16",
        "system=verl",
        "run.num_steps=3",
        "run.progress=none",
        "run.checkpoint_every_steps=0",
        *more,
    ]


def train(inputs, run_dir, *more):
    config = compose(words(inputs, f"run.dir={run_dir}", *more))
    validate(config, run_facts_of)
    pipeline.run(config)
    return run_dir


def test_a_run_takes_what_was_measured(inputs, tmp_path):
    steps = read_frame(train(inputs, tmp_path / "run"), "steps")
    assert steps["modelled"].all()
    assert (steps["weight_sync_time_s"] - 0.02).abs().max() < 1e-9
    # 8 sequences decode in 4 ms a pass and fewer in less, down to 2 ms
    longest = steps["response_length_max_tokens"]
    assert (steps["rollout_time_s"] > 0.002 * longest).all()
    assert (steps["rollout_time_s"] < 0.005 * longest + 0.15).all()


@pytest.mark.parametrize("num_engines", [1, 8])
def test_a_run_on_other_gpus_than_were_measured_says_so_and_takes_the_trainers_gpu_seconds_from_those(
    inputs, num_engines
):
    measured, run = (
        compose(words(inputs, "run.dir=x", "hardware.gpus_per_node=8", f"engine.num_engines={number}"))
        for number in (1, num_engines)
    )
    notes = [note for note in ModelledRunFacts(run).notes() if "Engines and trainer have" in note]
    assert len(notes) == (num_engines != 1)
    assert theory_of(run).training_s == theory_of(measured).training_s


def test_every_round_starts_later_by_a_wake_and_what_its_first_token_waits_for(inputs, tmp_path):
    start = ("wake", "rollout_start")
    points = [replace(point, seconds=0.0) if point.measurement in start else point for point in profile().points]
    write_profile(tmp_path / "awake.json", replace(profile(), points=tuple(points)))
    slow = read_frame(train(inputs, tmp_path / "slow"), "steps")
    awake = read_frame(train(inputs, tmp_path / "awake", f"hardware.profile={tmp_path}/awake.json"), "steps")
    assert (slow["rollout_time_s"] - awake["rollout_time_s"]).tolist() == pytest.approx([0.05] * 3)


def test_engines_that_take_turns_with_the_trainer_sleep_and_wake_in_the_measured_time_and_wake_once(inputs, tmp_path):
    turns = ("system=flash", "system.max_staleness=1", "system.lookahead=0", "hardware.engine_switch_s=100")
    whole = read_frame(train(inputs, tmp_path / "whole"), "steps")
    run_dir = train(inputs, tmp_path / "turns", *turns)
    steps, intervals = read_frame(run_dir, "steps"), read_frame(run_dir, "intervals")
    handed = intervals[intervals["activity"] == "hand_over"]
    assert (handed["ended_at_s"] - handed["started_at_s"]).tolist() == pytest.approx([0.03] * 3)
    assert steps["weight_sync_time_s"].tolist() == pytest.approx([0.02 + 0.03] * 3)
    assert (whole["rollout_time_s"] - steps["rollout_time_s"]).tolist() == pytest.approx([0.03] * 3, abs=1e-3)


def test_only_a_runs_first_step_takes_what_workers_do_once_and_a_resumed_run_goes_on_without(inputs, tmp_path):
    once = ("first_rollout", "first_train")
    points = [replace(point, seconds=0.0) if point.measurement in once else point for point in profile().points]
    write_profile(tmp_path / "warm.json", replace(profile(), points=tuple(points)))
    saved = "run.checkpoint_every_steps=1"
    cold = read_frame(train(inputs, tmp_path / "cold", saved), "steps")
    warm = read_frame(train(inputs, tmp_path / "warm", f"hardware.profile={tmp_path}/warm.json"), "steps")
    assert (cold["rollout_time_s"] - warm["rollout_time_s"]).tolist() == pytest.approx([0.07, 0, 0])
    assert (cold["train_time_s"] - warm["train_time_s"]).tolist() == pytest.approx([0.06, 0, 0])
    train(inputs, tmp_path / "resumed", saved, "run.num_steps=2")
    resumed = read_frame(train(inputs, tmp_path / "resumed", saved, "run.resume=auto"), "steps")
    assert resumed["step_time_s"].tolist() == pytest.approx(cold["step_time_s"].tolist())


def test_programs_take_what_was_measured_and_no_limit_counts_their_sandboxes_start(inputs, tmp_path):
    times = {"sandbox_start": 0.25, "program": 0.5}
    points = [point(name, 1, 0, seconds) for name, seconds in times.items()]
    write_profile(tmp_path / "programs.json", replace(profile(), points=(*profile().points, *points)))
    words = (
        f"hardware.profile={tmp_path}/programs.json",
        *("workload.reward_time_s=null", "reward.kinds.math=sandbox", "workload.endless_share=0"),
        *("reward.num_workers=64", "reward.num_cores=64", "reward.timeout_s=0.6", "rollout.max_response_tokens=800"),
    )
    responses = read_frame(train(inputs, tmp_path / "run", *words), "responses")
    ran = responses[responses["finish_reason"] != "length"]
    assert len(ran) > 0
    assert ran["reward_time_s"].tolist() == pytest.approx([0.75] * len(ran))
    assert "timeout" not in set(ran["reward_reason"])


@pytest.mark.parametrize("is_masked", [False, True], ids=["", "masked"])
def test_responses_without_a_gradient_are_trained_in_the_time_of_a_forward_pass(inputs, tmp_path, is_masked):
    run = train(inputs, tmp_path / "run", "run.num_steps=8", f"trainer.mask_truncated={is_masked}")
    cluster = ProfiledCluster(inputs / "profile.json", SMALL, "bfloat16")
    trainer, responses, kinds = cluster.trainer(num_gpus=1), read_frame(run, "responses"), set()
    for step, train_s in read_frame(run, "steps").set_index("step")["train_time_s"].items():
        lengths = {True: [], False: []}
        for _, group in responses[responses["step"] == step].groupby("prompt"):
            has_advantage = group["reward"].nunique() > 1
            for length, reason in zip(group["length_tokens"], group["finish_reason"], strict=True):
                is_left_out = is_masked and reason == "length"
                lengths[has_advantage and not is_left_out].append(10 + length)
                kinds.add((has_advantage, is_left_out))
        expected_s = trainer.passes_s(lengths[True], forward_only=lengths[False]) + trainer.update_s()
        assert train_s == pytest.approx(expected_s + (trainer.first_step_s if step == 0 else 0))
    assert len(kinds) == (4 if is_masked else 2)


@pytest.mark.parametrize(
    "word",
    [
        *("trainer.entropy_coefficient=0.01", "trainer.loss=mine.py:loss"),
        *("trainer.advantage=mine.py:of", "trainer.advantage=reinforce_pp", "trainer.advantage=reinforce_pp_baseline"),
    ],
)
def test_groups_of_equal_rewards_pass_backward_where_they_may_have_a_gradient(inputs, tmp_path, word):
    run = train(inputs, tmp_path / "run", word)
    trainer = ProfiledCluster(inputs / "profile.json", SMALL, "bfloat16").trainer(num_gpus=1)
    responses, steps = read_frame(run, "responses"), read_frame(run, "steps").set_index("step")
    assert responses.groupby(["step", "prompt"])["reward"].nunique().min() == 1
    for step, of_step in responses.groupby("step"):
        expected_s = trainer.passes_s([10 + length for length in of_step["length_tokens"]]) + trainer.update_s()
        first_s = 0 if step else trainer.first_step_s
        assert steps["train_time_s"][step] == pytest.approx(expected_s + first_s)


def test_a_recorded_runs_rewards_come_again_whatever_the_solve_rate(inputs, tmp_path):
    def rewards(run_dir):
        frame = read_frame(run_dir, "responses").sort_values(["step", "prompt", "sample"])
        return frame[["step", "prompt", "sample", "length_tokens", "reward", "reward_reason"]].to_numpy().tolist()

    first = train(inputs, tmp_path / "first")
    again = train(inputs, tmp_path / "again", f"workload.lengths={first}", "workload.solve_rate=0")
    other = train(inputs, tmp_path / "other", "workload.solve_rate=0")
    assert rewards(again) == rewards(first) != rewards(other)


@pytest.mark.parametrize(("engine", "keeps_prefixes"), [("torch", False), ("vllm", True)])
def test_turns_find_something_in_the_cache_if_the_engines_that_were_measured_have_one(
    inputs, tmp_path, engine, keeps_prefixes
):
    measured = profile()
    write_profile(tmp_path / "profile.json", replace(measured, facts=replace(measured.facts, engine=engine)))
    own = ("workload=agents", f"hardware.profile={tmp_path / 'profile.json'}", f"run.dir={tmp_path / 'run'}")
    replaced = {word.partition("=")[0] for word in own}
    others = [word for word in words(inputs) if word.partition("=")[0] not in replaced]
    assert plan_cluster(compose([*others, *own]), needs_judge=False).keeps_prefixes is keeps_prefixes


def test_a_profile_of_another_model_or_a_file_that_is_none_is_refused_before_anything_starts(inputs, tmp_path):
    with pytest.raises(ConfigError, match="is of another model"):
        validate(compose(words(inputs, "model.dtype=float32", f"run.dir={tmp_path / 'run'}")), run_facts_of)
    with pytest.raises(DataError, match="cannot be read as a profile"):
        validate(
            compose(words(inputs, f"hardware.profile={tmp_path}/no.json", f"run.dir={tmp_path / 'run'}")),
            run_facts_of,
        )
    assert not (tmp_path / "run").exists()


class Instant:
    """An engine that answers as soon as it is asked."""

    def __init__(self):
        self.arrivals = Arrivals()

    async def generate(self, requests):
        self.arrivals.put(requests)

    async def collect(self):
        return await self.arrivals.collect()

    async def stats(self) -> EngineStats | None:
        return None


def line(fixed, slope=0.0):
    return LinearCost(coefficients=(fixed, slope), residual=0.0)


def asked(num_tokens) -> ResponseToScore:
    request = RequestId(0, PromptId(0, "a"), num_tokens)
    prompt = Prompt(key="a", domain="math", messages=(), text="", reference=AnswerReference(text=""))
    return ResponseToScore(request=request, prompt=prompt, token_ids=blank_tokens(num_tokens), is_truncated=False)


def test_what_is_judged_at_once_comes_in_one_answer_and_what_comes_later_in_the_next():
    costs = CallCosts(
        call_s=0.002,
        request=line(0.004),
        response=line(0.003),
        reward=LinearCost(coefficients=(0.005, 0, 0), residual=0),
        collect_interval_s=0.03,
        first_rollout_s=0,
    )

    class OneByOne(Instant):
        """A reward that finishes its work piece by piece, without taking time for it."""

        async def score(self, responses):
            for response in responses:
                asyncio.get_running_loop().call_later(0.05, self.arrivals.put, [len(response.token_ids)])
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.1, self.arrivals.put, ["late"])

        async def close(self):
            self.arrivals.close()

    async def play():
        reward = CalledReward(OneByOne(), costs)
        await reward.score([asked(length) for length in (3, 1, 2)])
        answers = [await reward.collect(), await reward.collect()]
        await reward.close()
        return answers

    at_once, late = run_in_virtual_time(play())
    assert (sorted(at_once), late) == ([1, 2, 3], ["late"])


def test_calls_take_their_time_and_answers_keep_their_distance():

    costs = CallCosts(
        call_s=0.002,
        request=line(0.004, 0.001),
        response=line(0.003),
        reward=line(0.005),
        collect_interval_s=0.03,
        first_rollout_s=0.5,
    )
    request = GenerationRequest(
        request=RequestId(0, PromptId(0, "a"), 0), prompt_token_ids=None, seed=0, max_response_tokens=1, temperature=1.0
    )

    async def play():
        now = asyncio.get_running_loop().time
        engine, times = CalledEngine(Instant(), costs), []
        await engine.stats()
        times.append(now())
        await engine.generate([request, request])
        times.append(now())
        for _ in range(2):
            assert await engine.collect()
            times.append(now())
            await engine.generate([request])
        return times

    asked, generated, first, second = run_in_virtual_time(play())
    assert asked == pytest.approx(0.002)
    assert generated - asked == pytest.approx(0.004 + 2 * 0.001)
    assert first - generated == pytest.approx(0.001 + 0.003)
    assert second - first == pytest.approx(0.03)
