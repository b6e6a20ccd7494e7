"""A trial's tables, reduced: the mean of the steady state, and the fullest KV cache."""

import pandas as pd
import pytest

from rollpacker.analysis.plan.outcomes import attempt, kv_peak_share, outcome_of
from rollpacker.analysis.plan.trials import Setting, Trial
from tests.sim.composed import config_of, small

TRIAL = Trial(Setting("rollpacker", eta=1.25, tensor_parallel=2, num_gpus=4, rho=0.3), seed=0, num_steps=4)


def steps(kinds: str, times_s: list[float], num_launched: int = 10) -> pd.DataFrame:
    """One letter per round: short, long, plain or asynchronous."""
    names = {"s": "short", "l": "long", "p": "plain", "a": "async"}
    count = len(kinds)
    return pd.DataFrame(
        {
            "step": range(count),
            "round_kind": [names[kind] for kind in kinds],
            "num_prompts": 8,
            "num_prompts_launched": [8 if kind == "l" else num_launched for kind in kinds],
            "num_prompts_deferred_at_once": 0,
            "num_prompts_dropped": 0,
            "step_time_s": times_s,
            "rollout_time_s": times_s,
            "train_time_s": 1.0,
            "decode_slot_steps_busy": [100 if kind == "l" else 90 for kind in kinds],
            "decode_slot_steps_idle": [900 if kind == "l" else 10 for kind in kinds],
            "tokens_wasted": 25,
            "tokens_generated": 100,
            "num_preemptions": [4 if kind == "l" else 0 for kind in kinds],
            "tensor_parallel": 2,
        }
    )


def responses(rows: list[tuple[str, float, float, int]]) -> pd.DataFrame:
    """Engine, begin, end and length of each response of step 0, of prompts of 10 tokens."""
    return pd.DataFrame(
        [
            {
                "step": 0,
                "engine": engine,
                "round": 0,
                "prompt": f"p{number}",
                "epoch": 0,
                "sample": 0,
                "finished_at_s": end,
                "generation_time_s": end - begin,
                "num_prompt_tokens": 10,
                "length_tokens": length,
            }
            for number, (engine, begin, end, length) in enumerate(rows)
        ]
    )


def intervals(*rows: tuple[int, str, str, float, float, int]) -> pd.DataFrame:
    """Number of the response, engine, what ended it, begin, end and tokens of each stretch before its last one."""
    columns = ("subject", "actor", "activity", "started_at_s", "ended_at_s", "num_tokens", "step")
    found = [(f"r0:p{number}@0#0", *row, 0) for number, *row in rows]
    return pd.DataFrame(found, columns=columns).astype({"num_tokens": float})


ONE = responses([("engine-0", 0, 1, 90)])


def reduced(table: pd.DataFrame):
    return outcome_of(TRIAL, table, ONE, intervals(), kv_tokens_by_degree={2: 1000}, num_all_gpus=6)


def test_the_mean_is_of_the_steady_state_wherever_the_trial_stopped():
    """Two of ten prompts are deferred by each short round, so a fifth of all rounds are long."""
    outcome = reduced(steps("sssls", [10, 10, 10, 60, 10]))
    assert outcome["long_share"] == pytest.approx(0.2)
    assert outcome["step_time_s"] == pytest.approx(0.8 * 10 + 0.2 * 60)
    assert outcome["preemptions"] == pytest.approx(0.2 * 4)
    assert reduced(steps("ssssl", [10, 10, 10, 10, 60]))["step_time_s"] == outcome["step_time_s"]


def test_idle_slots_are_those_of_all_forward_passes_so_that_long_rounds_weigh_more():
    outcome = reduced(steps("sssls", [10, 10, 10, 60, 10]))
    busy, idle = 0.8 * 90 + 0.2 * 100, 0.8 * 10 + 0.2 * 900
    assert outcome["bubble_ratio"] == pytest.approx(idle / (busy + idle))


def test_plain_rounds_are_averaged():
    outcome = reduced(steps("pppp", [1, 2, 3, 6], num_launched=8))
    assert (outcome["step_time_s"], outcome["long_share"], outcome["has_seen_long"]) == (3, 0, True)
    assert outcome["wasted_share"] == 0.25
    assert outcome["gpu_hours_per_1000_steps"] == pytest.approx(1000 * 3 * 6 / 3600)


def test_of_a_length_history_only_rounds_count_from_the_first_that_knows_its_prompts():
    table = steps("ppppsslsl", [50, 50, 50, 50, 10, 10, 40, 10, 40], num_launched=9)
    table.loc[[0, 1, 2, 3], "num_prompts_launched"] = 8
    table.loc[[4, 5, 7], "num_prompts_deferred_at_once"] = 3
    outcome = reduced(table)
    assert outcome["long_share"] == pytest.approx(4 / 12)  # one loses its race, three do not begin one
    assert outcome["step_time_s"] == pytest.approx((10 * 2 + 40) / 3)
    assert outcome["deferred_at_once"] == pytest.approx(2)
    assert reduced(table.head(4))["deferred_at_once"] == 0


def test_a_trial_that_ends_before_its_long_round_says_so():
    assert not reduced(steps("sss", [1, 1, 1]))["has_seen_long"]


def test_prompts_that_were_dropped_are_not_deferred_to_a_long_round():
    table = steps("pp", [1, 1]).assign(num_prompts_dropped=2)
    assert reduced(table)["has_seen_long"]
    assert not reduced(table.assign(num_prompts_launched=11))["has_seen_long"]


def peak_share(rows: pd.DataFrame, *moves: tuple[int, str, str, float, float, int], capacity: int = 1000) -> float:
    return kv_peak_share(steps("p", [1.0]), rows, intervals(*moves), {2: capacity, 4: 4 * capacity}, 2)


def test_the_fullest_cache_is_of_responses_that_run_together_on_one_engine():
    together = responses([("engine-0", 0, 10, 90), ("engine-0", 0, 10, 90), ("engine-1", 0, 10, 90)])
    assert peak_share(together) == pytest.approx(0.2)
    in_turn = responses([("engine-0", 0, 10, 90), ("engine-0", 10, 20, 90)])
    assert peak_share(in_turn) == pytest.approx(0.1)
    half_way = responses([("engine-0", 0, 10, 90), ("engine-0", 0, 20, 180)])
    assert peak_share(half_way) == pytest.approx(0.2)
    assert peak_share(together, capacity=150) == 1


def test_responses_of_an_asynchronous_run_fill_a_cache_together_whatever_step_trains_them():
    rows = responses([("engine-0", 0, 10, 90), ("engine-0", 0, 20, 180), ("engine-0", 10, 20, 90)])
    rows["step"] = [0, 1, 2]
    assert kv_peak_share(steps("aaa", [10.0] * 3), rows, intervals(), {2: 1000}, 2) == pytest.approx((190 + 100) / 1000)


def test_a_round_that_ends_on_larger_engines_fills_the_caches_of_those_on_which_it_began():
    last = responses([("engine-tp4-0", 10, 12, 390), ("engine-0", 0, 9, 90)])
    assert peak_share(last, (0, "engine-0", "evicted", 0, 9, 290)) == pytest.approx((300 + 100) / 1000)
    assert peak_share(last.head(1)) == pytest.approx(400 / 4000)


def test_a_response_that_moved_or_had_turns_fills_the_cache_with_what_it_had_and_its_engines_before():
    last = ("engine-1", 10, 12, 390)  # of 390 tokens, 2 s on its last engine
    beside = ("engine-1", 0, 11, 90)
    for end in ("turn", "evicted"):
        before = (0, "engine-0", end, 0, 9, 290)
        assert peak_share(responses([last]), before) == pytest.approx(0.4)
        assert peak_share(responses([last, beside]), before) == pytest.approx((10 + 340 + 100) / 1000)
        assert peak_share(responses([last, ("engine-0", 0, 9, 190)]), before) == pytest.approx((300 + 200) / 1000)


def test_after_its_environment_failed_a_response_begins_with_an_empty_cache():
    again = responses([("engine-0", 20, 30, 90), ("engine-0", 0, 25, 90)])
    before = (0, "engine-0", "turn", 0, 5, 500), (0, "engine-0", "failed", 6, 7, 0)
    assert peak_share(again, *before) == pytest.approx((10 + 500 + 10 + 90 * 7 / 25) / 1000)
    assert peak_share(again, before[1]) == pytest.approx((10 + 45 + 100) / 1000)


def test_a_trial_of_hardware_slower_than_every_default_deadline_is_modelled_to_its_end(tmp_path):
    slow = ("workload.reward_time_s=2000", "hardware.rollout_start_s=3000")
    base = config_of(tmp_path, small("system=rollpacker", "rollout.num_prompts=4", "rollout.num_responses=2", *slow))
    assert attempt((base, TRIAL._replace(num_steps=1), tmp_path))["step_time_s"] > 3000
