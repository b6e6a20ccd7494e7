"""What our own exhibits make of runs: numbers that can be worked out by hand."""

import pytest

from rollpacker.analysis.exhibits import assumptions, bubbles, ladder, length_bias, limits, sensitivity
from rollpacker.analysis.numbers import Source
from tests.analysis.written_runs import numbers_of, write_run


def by_x(numbers, panel, series):
    return {point.x: point.y for point in numbers.points if (point.panel, point.series) == (panel, series)}


def group(step, prompt, *lengths, kind="short", domain="math", aborted=()):
    """Rows of a prompt's responses, in the order in which they finished."""
    return [
        {
            "step": step,
            "prompt": prompt,
            "domain": domain,
            "round_kind": kind,
            "length_tokens": length,
            "finished_at_s": float(place),
            "accepted": place < len(lengths),
        }
        for place, length in enumerate((*lengths, *aborted))
    ]


PLAIN = [*group(0, "c", 1000, 1000), *group(1, "a", 100, 300), *group(2, "b", 200, 200, domain="code")]


def test_length_bias_compares_the_same_prompts_with_other_samples_until_the_queue_was_last_empty(tmp_path):
    same_step = group(0, "d", 50, 250)  # of which both runs have the same samples
    write_run(tmp_path / "plain", "eta-1-1", [1.0] * 3, responses=[*PLAIN, *same_step], modelled=True)
    tail = [
        *group(0, "d", 50, 50, aborted=[50]),
        *group(0, "a", 100, 100, aborted=[90]),
        *group(0, "b", aborted=[100, 100, 100], domain="code"),
        *group(1, "b", 210, 210, kind="long", domain="code"),
        *group(2, "c", 10, 10),
    ]
    write_run(tmp_path / "tail", "eta-1.25-1.25", [1.0] * 3, responses=tail, modelled=True, long_queue_length=[1, 0, 1])
    numbers = numbers_of(length_bias.EXHIBIT, tmp_path)
    assert by_x(numbers, length_bias.ROUNDS, "short") == pytest.approx({"math": -50, "all": -50})
    assert by_x(numbers, length_bias.ROUNDS, "long") == pytest.approx({"code": 5, "all": 5})
    assert by_x(numbers, length_bias.FACTOR_MAP, "1.25") == pytest.approx({"1.25": 100 * (360 / 550 - 1)})
    assert by_x(numbers, length_bias.SURVIVAL, "both race")[128.0] == pytest.approx(100 / 3)
    assert by_x(numbers, length_bias.SURVIVAL, "plain")[256.0] == pytest.approx(100 * 3 / 8)
    assert {point.source for point in numbers.points} == {Source.MODELLED}
    assert "no run with model Qwen2.5-7B, system eta-1.5-1.5, task mix" in numbers.missing


def test_what_the_race_aborts_is_a_lower_bound_beside_what_the_plain_mean_implies(tmp_path):
    write_run(tmp_path / "plain", "eta-1-1", [1.0] * 3, responses=PLAIN)
    race = [*group(0, "a", 100, 200, aborted=[190]), *group(1, "b", 300, 400, aborted=[390])]
    write_run(tmp_path / "tail", "eta-1-1.25", [1.0] * 3, responses=race)
    numbers = numbers_of(length_bias.EXHIBIT, tmp_path)
    assert by_x(numbers, length_bias.RACE, "trained") == {1.0: 200, 2.0: 300}
    assert by_x(numbers, length_bias.RACE, length_bias.AT_LEAST) == {3.0: 290}
    mean = sum((100, 300, 200, 200, 1000, 1000)) / 6
    assert by_x(numbers, length_bias.RACE, length_bias.IMPLIED) == {3.0: pytest.approx(3 * mean - 500)}


def test_shorter_responses_bring_reward_only_if_length_and_reward_are_correlated(tmp_path):
    write_run(tmp_path / "plain", "eta-1-1", [1.0] * 3, responses=PLAIN)
    write_run(tmp_path / "tail", "eta-1-1.25", [1.0] * 3, responses=group(0, "a", 100, 100))
    shifts = by_x(numbers_of(length_bias.EXHIBIT, tmp_path), length_bias.REWARD, "responses race")
    assert shifts[0.0] == pytest.approx(0)
    assert shifts[-0.8] > shifts[-0.4] > 5
    assert shifts[0.4] == pytest.approx(-shifts[-0.4], rel=0.05)


@pytest.mark.parametrize(
    ("exhibit", "first", "study", "num_others"),
    [
        (sensitivity.CORRELATION, 0.0, "lengths-0.0-1.0", 3),
        (sensitivity.TAIL_WEIGHT, 0.0, "lengths-0.3-0.0", 5),
    ],
)
def test_a_variant_is_compared_with_the_plain_batches_of_its_own_study(exhibit, first, study, num_others, tmp_path):
    config = {"run": {"study": study}}
    shares = {"tokens_generated": 200, "tokens_wasted": 50, "decode_slot_steps_idle": 30, "decode_slot_steps_busy": 10}
    write_run(tmp_path / "plain", "verl", [21.0] * 5, config=config, **shares)
    write_run(tmp_path / "tail", "tail", [9.0, 9.0, 9.0, 9.0, 34.0], config=config, **shares)
    write_run(tmp_path / "other", "verl", [1000.0] * 5)  # of no study
    numbers = numbers_of(exhibit, tmp_path)
    found = {(point.series, point.x): point.y for point in numbers.points}
    assert found == pytest.approx(
        {
            ("step", first): 1.5,
            ("rollout", first): 100 / 65,
            ("bubble ratio, plain", first): 75,
            ("bubble ratio, tail", first): 75,
            ("tokens wasted, tail", first): 25,
            ("plain", first): 20,
            ("short", first): 8,
            ("long", first): 33,
            ("tail, mean", first): 13,
        }
    )
    assert len(numbers.missing) == 2 * num_others


def test_a_run_in_which_nothing_decoded_has_no_bubble_ratio(tmp_path):
    write_run(tmp_path / "plain", "verl", [1.0] * 2, tokens_generated=100, tokens_wasted=25)
    [wasted] = numbers_of(bubbles.EXHIBIT, tmp_path).points
    assert (wasted.panel, wasted.y) == ("Qwen2.5-7B\ntokens wasted", 25)


def test_limits_has_the_load_per_gpu_and_the_share_of_the_step_that_is_rollout(tmp_path):
    sizes = {"engine": {"num_engines": 2}, "rollout": {"num_prompts": 32, "num_responses": 8}}
    for study, plain, tail in (("load-0.0", 4.0, 5.0), (limits.CASES["cap 512"], 5.0, 4.0)):
        config = {"run": {"study": study}} | sizes
        for system, time_s in (("verl", plain), ("tail", tail)):
            write_run(tmp_path / study / system, system, [time_s] * 5, config=config, tensor_parallel=1)
    numbers = numbers_of(limits.EXHIBIT, tmp_path)
    assert by_x(numbers, limits.LOAD, "0.0") == {"128": 0.8}
    assert by_x(numbers, limits.STAGES, "step") == {"cap 512": 1.25}
    assert by_x(numbers, limits.STAGES, "rollout") == {"cap 512": pytest.approx(4 / 3)}
    assert by_x(numbers, limits.SHARE, "plain") == {"cap 512": 80}


def test_cases_of_limits_with_longer_training_are_named_by_what_is_set():
    named = {name: float(study.removeprefix("training-")) for name, study in limits.CASES.items() if "training" in name}
    assert list(named) == [f"training, {seconds:g} s/sequence" for seconds in named.values()]


def test_each_assumption_is_compared_with_plain_batches_that_make_the_same_one(tmp_path):
    def write(system, study, step_s, tokens, wasted=0):
        config = {"run": {"study": study}}
        tokens = {"tokens_trained": tokens, "tokens_generated": 200, "tokens_wasted": wasted}
        write_run(tmp_path / study / system, system, [step_s] * 3, model="Qwen2.5-14B", config=config, **tokens)

    write("verl", "assumptions-0.6-0.3-0.0", 6.0, 100)
    write("ours", "assumptions-0.6-0.3-0.0", 3.0, 95, wasted=20)
    write("ours", "assumptions-0.0-0.3-0.0", 4.0, 95, wasted=20)  # plain batches draft nothing
    write("verl", "assumptions-0.6-0.8-0.0", 9.0, 120)
    write("ours", "assumptions-0.6-0.8-0.0", 3.0, 120)
    numbers = numbers_of(assumptions.EXHIBIT, tmp_path)
    acceptance, correlation = (
        f"{ladder.SPEEDUP}: {name}" for name in (assumptions.ACCEPTANCE, assumptions.CORRELATION)
    )
    assert by_x(numbers, acceptance, "ours") == {0.0: 1.5, 0.6: 2.0}
    assert by_x(numbers, correlation, "ours") == {0.3: 2.0, 0.8: 3.0}
    assert by_x(numbers, f"{ladder.LENGTH}: {assumptions.CORRELATION}", "ours") == {0.3: 0.95, 0.8: 1.0}
    assert by_x(numbers, f"{ladder.WASTE}: {assumptions.DRIFT}", "ours") == {0.0: 10.0}
    assert assumptions.draw(numbers).axes
