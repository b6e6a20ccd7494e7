"""Modelled runs over several epochs whose long prompts are known by their history."""

from collections import Counter
from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.rollout.replay import replay
from tests.sim.composed import config_of, small
from tests.sim.test_determinism import parquet_of

NUM_STEPS = 9
SMALL = small(
    *("rollout.num_prompts=6", "rollout.num_responses=3", "engine.num_engines=3", "run.resume=auto"),
    "workload.num_prompts=6",  # of each of three domains: an epoch is three steps
)


def train(run_dir: Path, *words: str, **run: object) -> Path:
    pipeline.run(config_of(run_dir, [*SMALL, *words], **{"num_steps": NUM_STEPS, **run}))
    return run_dir


@pytest.fixture(scope="module", params=["race", "exact"])
def unbroken(request, tmp_path_factory):
    # an attempt begins to try draft lengths anew, so what it measures is its own
    words = ("system=ours", "system.speculative_decoding=false", f"system.first_epoch={request.param}")
    return words, train(tmp_path_factory.mktemp("ours") / "run", *words)


def test_from_the_second_epoch_on_long_prompts_are_deferred_at_once(unbroken):
    (*_, first_epoch), run_dir = unbroken
    steps = read_frame(run_dir, "steps")
    num_deferred = steps["num_prompts_deferred_at_once"]
    assert set(num_deferred[:2]) == {0}
    assert num_deferred.sum() >= 6, "a batch for a long round"
    assert set(num_deferred[steps["round_kind"] != "short"]) == {0}
    assert steps["round_kind"][0] == {"race": "short", "exact": "plain"}[first_epoch.partition("=")[2]]
    assert "long" in set(steps["round_kind"])
    assert replay(run_dir).events > 300


def test_a_run_stopped_in_the_middle_of_an_epoch_keeps_the_history(unbroken, tmp_path):
    words, run_dir = unbroken
    for stop in range(1, NUM_STEPS):
        broken = tmp_path / str(stop)
        train(broken, *words, num_steps=stop)
        assert parquet_of(train(broken, *words)) == parquet_of(run_dir), f"stopped after step {stop}"


def test_each_prompt_is_trained_once_per_epoch(tmp_path):
    responses = read_frame(train(tmp_path / "run", "system=ours", num_steps=99, num_epochs=4), "responses")
    groups = Counter(zip(*(responses[responses["accepted"]][name] for name in ("epoch", "prompt")), strict=True))
    assert len(groups) == 4 * 18
    assert set(groups.values()) == {3}


def samples_of(run_dir: Path) -> list[tuple[object, ...]]:
    """What each step trained, in the tables' order."""
    responses = read_frame(run_dir, "responses")
    columns = ["step", "epoch", "prompt", "sample", "length_tokens"]
    return sorted(responses[responses["accepted"]][columns].itertuples(index=False, name=None))


def test_ours_exact_trains_the_samples_of_plain_batches_and_wastes_none(tmp_path):
    exact, plain = (train(tmp_path / system, f"system={system}") for system in ("ours-exact", "verl"))
    assert samples_of(exact) == samples_of(plain)
    assert set(read_frame(exact, "steps")["tokens_wasted"]) == {0}


def test_known_prompts_run_in_long_rounds_and_trained_responses_are_nearly_as_long_as_the_policy_writes(tmp_path):
    words = [
        "workload.num_prompts=40",
        "workload.rho=0.6",
        "rollout.num_prompts=24",
        "rollout.num_responses=4",
        "run.num_epochs=5",
    ]
    trained, wasted = {}, {}
    for system in ("verl", "rollpacker", "ours"):
        run_dir = train(tmp_path / system, f"system={system}", "system.planner=false", *words, num_steps=25)
        steps = read_frame(run_dir, "steps")
        later = steps[steps["step"] >= 5]
        trained[system] = later["tokens_trained"].sum() / later["num_responses"].sum()
        wasted[system] = later["tokens_wasted"].sum() / later["tokens_generated"].sum()
    rows = read_frame(run_dir, "responses")
    means = rows[rows["accepted"] & (rows["epoch"] > 0)].groupby("round_kind")["length_tokens"].mean()
    assert means["long"] > 1.5 * means["short"]
    assert trained["rollpacker"] < trained["ours"] < 1.05 * trained["verl"]
    assert wasted["ours"] < wasted["rollpacker"] / 2
