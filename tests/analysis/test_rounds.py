"""The exhibits that show rollouts step by step: how unbalanced, how long, and where the time goes."""

from rollpacker.analysis.exhibits import fig02b, fig04, fig10
from rollpacker.analysis.numbers import Standing
from tests.analysis.written_runs import forget_steps, numbers_of, ours, series, write_run


def test_a_rollout_is_unbalanced_by_its_longest_response_and_by_the_engines_that_wait_for_it(tmp_path):
    responses = [
        {"engine": engine, "launched_at_s": 10.0, "finished_at_s": ended_s, "length_tokens": length}
        for engine, ended_s, length in (("a", 20.0, 100), ("a", 30.0, 200), ("b", 50.0, 400), ("b", 110.0, 1000))
    ]
    write_run(tmp_path, "verl", [100.0, 100.0], model="Qwen2.5-14B", task="math", responses=responses)
    numbers = numbers_of(fig02b.EXHIBIT, tmp_path)
    running = dict(series(numbers, fig02b.RUNNING)["math"])
    assert [running[passed] for passed in (0.0, 8.0, 10.0, 20.0, 38.0, 40.0, 98.0)] == [100, 100, 75, 50, 50, 25, 25]
    assert series(numbers, fig02b.RATIO) == {"math": [(1.0, 1000 / 300), (2.0, 1000 / 300)]}
    assert series(numbers, fig02b.IDLE) == {"math": [(1.0, 40.0), (2.0, 40.0)]}
    assert "no run with model Qwen2.5-14B, system verl, task code" in numbers.missing


def test_gpus_of_the_paper_are_at_work_until_their_utilisation_is_zero(tmp_path):
    responses = [
        {"engine": engine, "launched_at_s": 0.0, "finished_at_s": ended_s, "length_tokens": 100}
        for engine, ended_s in (("a", 25.0), ("b", 100.0))
    ]
    write_run(tmp_path, "verl", [100.0], model="Qwen2.5-14B", task="code", responses=responses)
    numbers = numbers_of(fig02b.EXHIBIT, tmp_path)
    at_work = {name: dict(shown) for name, shown in series(numbers, fig02b.AT_WORK).items()}
    assert [at_work["code"][passed] for passed in (0.0, 24.0, 26.0, 98.0)] == [100, 100, 50, 50]
    of_paper = at_work[fig02b.FOUR_GPUS]  # idle from 33, 60, 60 and 100 % of 270.9 s
    assert [of_paper[passed] for passed in (0.0, 32.0, 34.0, 58.0, 60.0, 98.0)] == [100, 100, 75, 75, 25, 25]
    [claim] = [claim for claim in numbers.claims if claim.ours]
    assert claim.ours.y == 37.5
    assert abs(claim.paper - 36.9) < 0.1


def test_a_run_that_lost_a_step_has_the_others_where_they_were(tmp_path):
    lost = write_run(tmp_path / "packed", "rollpacker", [3.0, 5.0, 3.0], response_length_max_tokens=700)
    forget_steps(lost, {1})
    assert series(numbers_of(fig10.FIG10B, tmp_path), "Qwen2.5-7B") == {"rollpacker, short": [(1.0, 2.0), (3.0, 2.0)]}


def test_short_and_long_rounds_are_series_of_their_own_beside_plain_ones(tmp_path):
    times = [3.0, 5.0, 3.0, 5.0, 21.0]
    write_run(tmp_path / "packed", "rollpacker", times, response_length_max_tokens=700)
    write_run(tmp_path / "verl", "verl", [10.0], response_length_max_tokens=900)
    numbers = numbers_of(fig10.FIG10B, tmp_path)
    assert series(numbers, "Qwen2.5-7B") == {
        "verl, plain": [(1.0, 9.0)],
        "rollpacker, short": [(1.0, 2.0), (2.0, 4.0), (3.0, 2.0), (4.0, 4.0)],
        "rollpacker, long": [(5.0, 20.0)],
    }
    lengths = series(numbers_of(fig10.FIG10A, tmp_path), "Qwen2.5-7B")
    assert (lengths["verl, plain"], lengths["rollpacker, long"]) == ([(1.0, 900.0)], [(5.0, 700.0)])


def test_seeds_whose_rounds_differ_in_kind_are_not_averaged(tmp_path):
    write_run(tmp_path / "a", "rollpacker", [3.0, 5.0, 3.0, 5.0, 21.0], response_length_max_tokens=700)
    write_run(tmp_path / "b", "rollpacker", [5.0] * 5, seed=1, round_kind="short", response_length_max_tokens=500)
    times, lengths = (numbers_of(exhibit, tmp_path) for exhibit in (fig10.FIG10B, fig10.FIG10A))
    assert series(times, "Qwen2.5-7B")["rollpacker, long"] == [(5.0, 20.0)]
    assert series(times, "Qwen2.5-7B")["rollpacker, short"][3:] == [(4.0, 4.0), (5.0, 4.0)]
    assert series(lengths, "Qwen2.5-7B")["rollpacker, short"][3:] == [(4.0, 600.0), (5.0, 500.0)]


CODE = {"model": "Qwen2.5-14B", "task": "code"}


def test_lengths_of_a_step_are_those_of_what_is_trained_beside_the_papers_boxes(tmp_path):
    lengths = [{"length_tokens": length, "accepted": True} for length in (100, 200, 300, 400, 1000)]
    aborted = {"length_tokens": 5000, "accepted": False}
    write_run(tmp_path / "tail", "tail", [1.0] * 10, responses=[*lengths, aborted], **CODE)
    numbers = numbers_of(fig04.FIG04A, tmp_path)
    shown = ours(numbers, fig04.SYSTEMS["tail"])
    assert {name: shown[name, 5.0] for name in fig04.LEVELS} == {"median": 300, "third quartile": 400, "longest": 1000}
    of_paper = numbers.frame().query("source == 'paper' and panel == 'plain batches' and x == 1.0")
    assert dict(zip(of_paper["series"], of_paper["y"], strict=True)) == {
        "median": 632.5,
        "third quartile": 1182.5,
        "longest": 16384,
    }
    per_long, median = numbers.claims[:2]
    assert (per_long.ours.y, per_long.standing) == (4.0, Standing.REPRODUCED)
    assert median.paper == (499.5 + 493.5 + 485 + 509.5) / 4


def test_the_time_of_five_steps_is_that_of_four_short_rounds_and_a_long_one(tmp_path):
    times = [11.0, 11.0, 11.0, 11.0, 51.0]
    write_run(tmp_path / "tail", "tail", times * 2 + [99.0], exposed_reward_time_s=2.0, **CODE)  # the last: no cycle
    write_run(tmp_path / "verl", "verl", [31.0] * 5, **CODE)
    numbers = numbers_of(fig04.FIG04B, tmp_path)
    shown = {x: y for (_, x), y in ours(numbers, "tail batching: five steps (s)").items()}
    assert shown == {"short\nrollouts": 40, "long\nrollout": 50, "reward": 10, "training": 5, "total": 95}
    assert ours(numbers, "plain batches: five steps (s)")["ours", "total"] == 155
    forget_steps(tmp_path / "tail", {6})  # and with it the second cycle
    assert ours(numbers_of(fig04.FIG04B, tmp_path), "tail batching: five steps (s)")["ours", "total"] == 95
    rows = numbers.frame().set_index(["panel", "x"])
    row = rows[rows["source"] != "paper"].loc[("plain batches: five steps (s)", "total")]
    assert (row["paper"], round(row["relative_error"], 3)) == (1700, round(155 / 1700 - 1, 3))
