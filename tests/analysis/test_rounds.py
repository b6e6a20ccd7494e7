"""The exhibits that show rollouts step by step: how unbalanced they are, and what each kind of round is like."""

from rollpacker.analysis.exhibits import fig02b, fig04, fig10
from rollpacker.analysis.numbers import Standing
from tests.analysis.written_runs import numbers_of, series, write_run


def test_a_rollout_is_unbalanced_by_its_longest_response_and_by_the_engines_that_wait_for_it(tmp_path):
    responses = [
        {"engine": engine, "launched_at_s": 10.0, "finished_at_s": ended_s, "length_tokens": length}
        for engine, ended_s, length in (("a", 20.0, 100), ("a", 30.0, 200), ("b", 50.0, 400), ("b", 110.0, 1000))
    ]
    write_run(tmp_path, "verl", [100.0, 100.0], model="Qwen2.5-14B", task="math", responses=responses)
    numbers = numbers_of(fig02b, tmp_path)
    running = dict(series(numbers, fig02b.RUNNING)["math"])
    assert [running[passed] for passed in (0.0, 8.0, 10.0, 20.0, 38.0, 40.0, 98.0)] == [100, 100, 75, 50, 50, 25, 25]
    assert series(numbers, fig02b.RATIO) == {"math": [(1.0, 1000 / 300), (2.0, 1000 / 300)]}
    assert series(numbers, fig02b.IDLE) == {"math": [(1.0, 40.0), (2.0, 40.0)]}
    assert "no run with model Qwen2.5-14B, system verl, task code" in numbers.missing


def test_short_and_long_rounds_are_series_of_their_own_beside_plain_ones(tmp_path):
    times = [3.0, 5.0, 3.0, 5.0, 21.0]
    write_run(tmp_path / "tail", "tail", times, response_length_max_tokens=700)
    write_run(tmp_path / "verl", "verl", [10.0], response_length_max_tokens=900)
    numbers = numbers_of(fig04.FIG04B, tmp_path)
    assert series(numbers, "Qwen2.5-7B") == {
        "verl, plain": [(1.0, 9.0)],
        "tail, short": [(1.0, 2.0), (2.0, 4.0), (3.0, 2.0), (4.0, 4.0)],
        "tail, long": [(5.0, 20.0)],
    }
    lengths = series(numbers_of(fig04.FIG04A, tmp_path), "Qwen2.5-7B")
    assert (lengths["verl, plain"], lengths["tail, long"]) == ([(1.0, 900.0)], [(5.0, 700.0)])


def test_seeds_whose_rounds_differ_in_kind_are_not_averaged(tmp_path):
    write_run(tmp_path / "a", "rollpacker", [3.0, 5.0, 3.0, 5.0, 21.0], response_length_max_tokens=700)
    write_run(tmp_path / "b", "rollpacker", [5.0] * 5, seed=1, round_kind="short", response_length_max_tokens=500)
    times, lengths = (numbers_of(exhibit, tmp_path) for exhibit in (fig10.FIG10B, fig10.FIG10A))
    assert series(times, "Qwen2.5-7B")["rollpacker, long"] == [(5.0, 20.0)]
    assert series(times, "Qwen2.5-7B")["rollpacker, short"][3:] == [(4.0, 4.0), (5.0, 4.0)]
    assert series(lengths, "Qwen2.5-7B")["rollpacker, short"][3:] == [(4.0, 600.0), (5.0, 500.0)]


def test_four_short_rounds_to_a_long_one_are_a_claim_of_the_paper(tmp_path):
    write_run(tmp_path / "small", "tail", [1.0] * 10)
    write_run(tmp_path / "large", "tail", [1.0] * 6, model="Qwen2.5-14B", round_kind="short")  # without a long round
    claims = numbers_of(fig04.FIG04A, tmp_path).claims
    assert [claim.standing for claim in claims] == [Standing.REPRODUCED, Standing.UNKNOWN]
