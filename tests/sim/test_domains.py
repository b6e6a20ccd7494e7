"""The table `domains` of a whole run, modelled: what it says is what the responses say."""

import pytest

from rollpacker import pipeline
from rollpacker.cli.run_facts import run_facts_of
from rollpacker.config.compose import compose
from rollpacker.core.errors import DataError
from rollpacker.metrics.schemas import DOMAINS
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.run.preflight import validate
from rollpacker.sim.workload import Workload
from tests.sim.composed import config_of

WORDS = [
    *("backend=sim", "model=qwen2.5-7b", "workload=mix", "system=rollpacker", "run.progress=none"),
    *("rollout.num_prompts=12", "rollout.num_responses=4", "rollout.max_response_tokens=2048"),
    *("engine.num_engines=2", "run.num_steps=6", "run.checkpoint_every_steps=0"),
    *("data.domain_weights={math:2,code:1,judge:1}", "workload.solve_rate_by_domain={math:1,code:0}"),
]


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("mix") / "run"
    config = compose([*WORDS, f"run.dir={run_dir}"])
    validate(config, run_facts_of)
    pipeline.run(config)
    return {table: read_frame(run_dir, table) for table in ("steps", "domains", "responses")}


def test_every_step_has_a_row_of_each_domain_and_short_rounds_hold_to_the_weights(frames):
    assert list(frames["domains"].columns) == [column.name for column in DOMAINS.columns]
    assert frames["domains"]["modelled"].all()
    kinds = frames["steps"].set_index("step")["round_kind"]
    for step, rows in frames["domains"].groupby("step"):
        assert list(rows["domain"]) == ["code", "judge", "math"]
        assert list(rows["num_responses"]) == [4 * num_prompts for num_prompts in rows["num_prompts"]]
        if kinds[step] == "short":
            assert list(rows["num_prompts"]) == [3, 3, 6]


def test_the_rows_say_what_the_trained_responses_say(frames):
    accepted = frames["responses"][frames["responses"]["accepted"]]
    for row in frames["domains"].to_dict("records"):
        own = accepted[(accepted["step"] == row["step"]) & (accepted["domain"] == row["domain"])]
        lengths, by_prompt = own["length_tokens"], own.groupby("prompt")["reward"]
        assert row["reward_mean"] == pytest.approx(own["reward"].mean())
        assert row["solve_rate"] == pytest.approx((by_prompt.max() > 0).mean())
        assert row["no_signal_share"] == pytest.approx((by_prompt.nunique() == 1).mean())
        assert row["response_length_mean_tokens"] == pytest.approx(lengths.mean())
        for percent in (50, 90):
            quantile = row[f"response_length_p{percent}_tokens"]
            assert (lengths <= quantile).mean() >= percent / 100 > (lengths < quantile).mean()
        assert row["response_length_max_tokens"] == lengths.max()
        assert row["truncated_share"] == pytest.approx((own["finish_reason"] == "length").mean())


def test_a_domain_that_solves_nothing_gives_no_signal(frames):
    domains = frames["domains"].groupby("domain")
    assert domains["solve_rate"].max()["code"] == 0
    assert set(domains.get_group("code")["no_signal_share"]) == {1.0}
    assert domains["no_signal_share"].mean()["judge"] < 1


def test_long_prompts_of_a_modelled_run_are_shortened_or_refused_as_in_a_real_one(tmp_path):
    words = [*WORDS, f"run.dir={tmp_path}", "data.max_prompt_tokens=100"]
    shortened = Workload(compose([*words, "data.long_prompts=truncate_left"]))
    assert {len(prompt.token_ids) for prompt in shortened.prompts.values()} == {100}
    assert shortened.num_long_prompts == len(shortened.prompts)
    with pytest.raises(DataError, match=r"12288 of the workload's 12288 prompts .*=100 tokens"):
        Workload(compose([*words, "data.long_prompts=error"]))


def test_with_dynamic_sampling_a_dropped_prompt_is_replaced_by_one_of_its_domain_in_asynchronous_runs_too(tmp_path):
    words = (
        *("backend=sim", "model=qwen2.5-7b", "workload=mix", "system=flash", "system.dynamic_sampling=true"),
        *("rollout.num_prompts=12", "rollout.num_responses=8", "system.max_launch_factor=60", "run.num_steps=20"),
        *("run.progress=none", "run.checkpoint_every_steps=0"),
    )
    pipeline.run(config_of(tmp_path, words))
    assert read_frame(tmp_path, "steps")["tokens_dropped"].sum() > 0
    shares = read_frame(tmp_path, "domains").groupby("domain")["num_prompts"].sum() / (20 * 12)
    assert shares.between(1 / 3 - 0.05, 1 / 3 + 0.05).all(), shares.to_dict()
