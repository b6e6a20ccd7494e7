"""What the exhibits of rollout workers make of runs: numbers that can be worked out by hand."""

import matplotlib.pyplot as plt
import pytest

from rollpacker.analysis.exhibits import (
    elastic_all_lost,
    elastic_discounts,
    elastic_ladder,
    elastic_lengths,
    elastic_losses,
    elastic_pulls,
    elastic_recovery,
    elastic_staircase,
    elastic_workers,
)
from rollpacker.analysis.numbers import Source, Standing
from tests.analysis.written_runs import forget_steps, numbers_of, series, write_run


def write(folder, study, step_times, **values):
    config = {"run": {"setup": "elastic", "study": study}}
    return write_run(folder / study, "reward", step_times, config=config, modelled=True, **values)


def write_workers(folder, numbers=(0, 1, 4)):
    for number in numbers:
        # the first five steps, in which workers start, are slow and do not count
        write(folder, f"elastic-workers-{number}", [1000.0] * 5 + [10.0] * 5, tokens_trained=100_000 + 20_000 * number)


def test_throughput_counts_all_time_of_the_later_steps_and_a_dollar_buys_it(tmp_path):
    write_workers(tmp_path)
    numbers = numbers_of(elastic_workers.EXHIBIT, tmp_path)
    ours = [point for point in numbers.points if point.source is not Source.PAPER]
    assert {point.source for point in ours} == {Source.MODELLED}
    throughput = {point.x: point.y for point in ours if point.panel == elastic_workers.THROUGHPUT}
    assert throughput == {0.0: 10_000, 1.0: 12_000, 4.0: 18_000}
    assert {point.x: point.y for point in ours if point.panel == elastic_workers.COST} == {
        0.0: 1,
        1.0: pytest.approx(1.2 / (1 + 5.32 / 83.79)),
        4.0: pytest.approx(1.8 * 83.79 / 105.07),
    }
    assert (numbers.frame()["relative_error"].dropna().abs() < 1e-9).tolist() == [True] * 6
    standings = {claim.text: claim.standing for claim in numbers.claims}
    assert standings["Qwen3-8B with 4 workers: trained tokens per second"] is Standing.REPRODUCED
    assert standings["Qwen3-8B with 2 workers: trained tokens per second"] is Standing.UNKNOWN
    assert "no run with setup elastic, study elastic-workers-2" in numbers.missing


def test_a_worker_pays_from_the_discount_on_at_which_a_dollar_buys_as_much_as_without(tmp_path):
    write_workers(tmp_path)
    numbers = numbers_of(elastic_discounts.EXHIBIT, tmp_path)
    by_discount = dict(series(numbers, elastic_discounts.COST)["4 workers"])
    assert by_discount[0.0] == pytest.approx(1.8 / 2)
    assert by_discount[100.0] == pytest.approx(1.8)
    (claim,) = numbers.claims
    assert claim.ours.y == pytest.approx(20)


def test_an_overhead_is_what_the_same_step_takes_longer_than_without_the_loss(tmp_path):
    for kept, at_100_s, at_200_s in (("True", 110.0, 105.0), ("False", 140.0, 120.0)):
        write(tmp_path, f"elastic-losses-{kept}-9999-0", [100.0] * 12)
        write(tmp_path, f"elastic-losses-{kept}-10-100", [100.0] * 10 + [at_100_s, 500.0])
        write(tmp_path, f"elastic-losses-{kept}-10-200", [100.0] * 10 + [at_200_s, 500.0])
    numbers = numbers_of(elastic_losses.EXHIBIT, tmp_path)
    assert series(numbers, elastic_losses.RATIO)["ours"] == [("100 s", 0.25), ("200 s", 0.25)]
    assert series(numbers, elastic_losses.RATIO)["paper"] == [("100 s", 0.67), ("200 s", 0.24)]
    overheads = {"100 s, kept": 10, "100 s, again": 40, "200 s, kept": 5, "200 s, again": 20}
    assert dict(series(numbers, elastic_losses.OVERHEAD)["ours"]) == overheads


def test_recovery_compares_the_throughput_from_the_loss_on(tmp_path):
    for study, later_s in (("adaptive", 10.0), ("fixed", 12.5), ("forgetting", 20.0), ("off", 8.0)):
        write(tmp_path, f"elastic-recovery-{study}", [1.0] * 8 + [later_s] * 4, tokens_trained=1000)
    numbers = numbers_of(elastic_recovery.EXHIBIT, tmp_path)
    ours = dict(series(numbers, elastic_recovery.THROUGHPUT)["ours"])
    without = {"without seeding": pytest.approx(0.8), "without memory": 0.5}
    assert ours == {"with seeding": 1, **without, "stream trainer alone": 1.25}


def test_the_seeds_of_a_staircase_are_one_line_of_means_at_the_mean_end_of_each_step(tmp_path):
    for seed, ends_s, tokens in ((0, [1800.0, 3600.0], 100_000), (1, [1400.0, 4000.0, 5000.0], 140_000)):
        config = {"run": {"setup": "elastic", "study": "elastic-staircase"}}
        of_seed = {"config": config, "seed": seed, "finished_at_s": ends_s, "tokens_trained": tokens}
        write_run(tmp_path / f"{seed}", "reward", [10.0] * len(ends_s), num_members_mean=float(seed), **of_seed)
    for seed, tokens in ((0, 100_000), (1, 200_000)):
        config = {"run": {"setup": "elastic", "study": "elastic-workers-0"}}
        write_run(tmp_path / f"s{seed}", "reward", [10.0] * 6, config=config, seed=seed, tokens_trained=tokens)
    numbers = numbers_of(elastic_staircase.EXHIBIT, tmp_path)
    shown = series(numbers, elastic_staircase.THROUGHPUT)
    assert shown[elastic_staircase.SERIES] == [(0.4444, 12_000), (1.0556, 12_000)]
    assert shown[elastic_staircase.STEADY] == [(0.4444, 15_000), (1.0556, 15_000)]
    assert series(numbers, elastic_staircase.MEMBERS)[elastic_staircase.SERIES] == [(0.4444, 0.5), (1.0556, 0.5)]
    assert {(point.y_low, point.y_high) for point in numbers.points if point.unit == "workers"} == {(0, 1)}


def test_a_staircase_is_held_against_as_many_steady_workers(tmp_path):
    write_workers(tmp_path)
    write(
        tmp_path,
        "elastic-staircase",
        [10.0, 10.0],
        tokens_trained=[100_000, 140_000],
        num_members_mean=[0.0, 2.5],
        finished_at_s=[1800.0, 3600.0],
    )
    shown = series(numbers_of(elastic_staircase.EXHIBIT, tmp_path), elastic_staircase.THROUGHPUT)
    assert shown[elastic_staircase.SERIES] == [(0.5, 10_000), (1.0, 14_000)]
    assert shown[elastic_staircase.STEADY] == [(0.5, 10_000), (1.0, 15_000)]


def test_steps_after_all_were_lost_stand_beside_those_without_workers(tmp_path):
    write(tmp_path, "elastic-all-lost-4", [10.0, 20.0], num_members_mean=[4.0, 0.5])
    write(tmp_path, "elastic-all-lost-0", [15.0, 15.0])
    numbers = numbers_of(elastic_all_lost.EXHIBIT, tmp_path)
    shown = series(numbers, elastic_all_lost.STEP_TIME)
    assert shown == {
        elastic_all_lost.SERIES[4]: [(1.0, 10), (2.0, 20)],
        elastic_all_lost.SERIES[0]: [(1.0, 15), (2.0, 15)],
    }
    assert list(series(numbers, elastic_all_lost.MEMBERS)) == [elastic_all_lost.SERIES[4]]


def test_after_all_were_lost_every_mean_is_over_all_seeds(tmp_path):
    config = {"run": {"setup": "elastic", "study": "elastic-all-lost-0"}}
    for seed, step_times in ((0, [10.0, 20.0]), (1, [30.0])):
        write_run(tmp_path / f"{seed}", "reward", step_times, seed=seed, config=config, modelled=True)
    shown = series(numbers_of(elastic_all_lost.EXHIBIT, tmp_path), elastic_all_lost.STEP_TIME)
    assert shown == {elastic_all_lost.SERIES[0]: [(1.0, 20)]}


def test_the_best_number_of_workers_is_the_one_with_the_most_tokens_per_dollar(tmp_path):
    for number in (0, *elastic_lengths.WORKERS):
        assert not {point.source for point in numbers_of(elastic_lengths.EXHIBIT, tmp_path).points} - {Source.PAPER}
        tokens = {0: 100_000, 3: 160_000}.get(number, 130_000)
        write(tmp_path, f"elastic-lengths-3300-{number}", [10.0] * 10, tokens_trained=tokens)
    numbers = numbers_of(elastic_lengths.EXHIBIT, tmp_path)
    ours = {point.panel: (point.x, point.y) for point in numbers.points if point.source is Source.MODELLED}
    assert ours == {
        elastic_lengths.BEST: (14.0, 3),
        elastic_lengths.THROUGHPUT: (14.0, pytest.approx(1.6)),
        elastic_lengths.COST: (14.0, pytest.approx(1.6 / (1 + 3 * 5.32 / 83.79))),
    }
    assert numbers.frame()["relative_error"].notna().sum() == len(ours)
    assert {point.series for point in numbers.points} == {elastic_workers.SERIES}


def test_workers_and_a_system_gain_together_a_share_of_the_product_of_what_each_gains(tmp_path):
    for system, number, step_s in (
        ("verl", 0, 40.0),
        ("verl", 4, 20.0),
        ("rollpacker", 0, 20.0),
        ("rollpacker", 4, 12.5),
    ):
        config = {"run": {"setup": "elastic", "study": f"elastic-ladder-{number}"}}
        write_run(tmp_path / f"{system}-{number}", system, [99.0] * 5 + [step_s] * 2, config=config, modelled=True)
    numbers = numbers_of(elastic_ladder.EXHIBIT, tmp_path)
    assert dict(series(numbers, elastic_ladder.SPEEDUP)["ours"])["tail +4"] == pytest.approx(3.2)
    assert series(numbers, elastic_ladder.SHARE)["ours"] == [("tail", pytest.approx(0.8))]


def test_runs_of_a_ladder_are_compared_over_the_later_steps_that_they_share(tmp_path):
    for system, number, later_s in (
        ("verl", 0, [100.0, 40.0, 40.0]),
        ("verl", 4, [100.0, 20.0]),
        ("rollpacker", 0, [500.0, 20.0, 20.0]),
        ("rollpacker", 4, [100.0, 12.5, 99.0]),
    ):
        config = {"run": {"setup": "elastic", "study": f"elastic-ladder-{number}"}}
        folder = write_run(tmp_path / f"{system}-{number}", system, [9.0] * 5 + later_s, config=config, modelled=True)
        if (system, number) == ("rollpacker", 0):
            forget_steps(folder, {1, 5})
    numbers = numbers_of(elastic_ladder.EXHIBIT, tmp_path)
    speedups = dict(series(numbers, elastic_ladder.SPEEDUP)["ours"])
    assert (speedups["plain +4"], speedups["tail"]) == (pytest.approx(140 / 120), 2)
    assert series(numbers, elastic_ladder.SHARE)["ours"] == [("tail", pytest.approx(20 * 20 / (40 * 12.5)))]


def test_pulls_are_those_of_the_later_publications(tmp_path):
    pulls = [(1, 15.0, 90.0), (6, 61.0, 63.0), (6, 61.0, 65.0), (7, 71.0, 74.0), (7, 71.0, 77.0)]
    intervals = [
        {"activity": "catching_up", "step": step, "started_at_s": began, "ended_at_s": ended}
        for step, began, ended in pulls
    ]
    ends = [10.0 * (step + 1) for step in range(8)]
    write(tmp_path, "elastic-workers-2", [10.0] * 8, finished_at_s=ends, intervals=intervals)
    write(tmp_path, "elastic-pulls-2", [10.0] * 8, finished_at_s=ends, intervals=intervals[:3])
    shown = series(numbers_of(elastic_pulls.EXHIBIT, tmp_path), elastic_pulls.PANEL)
    assert shown == {
        elastic_pulls.FIRST: [(2.0, 2.5)],
        elastic_pulls.LAST: [(2.0, 5.0)],
        elastic_pulls.RELAYED: [(2.0, 4.0)],
    }


def test_pulls_of_a_run_that_lost_early_steps_begin_where_those_of_a_whole_one_do(tmp_path):
    intervals = [
        {"activity": "catching_up", "step": step, "started_at_s": began, "ended_at_s": began + wait_s}
        for step, began, wait_s in ((4, 41.0, 9.0), (5, 51.0, 2.0), (6, 61.0, 4.0))
    ]
    ends = [10.0 * (step + 1) for step in range(7)]
    folder = write(tmp_path, "elastic-workers-2", [10.0] * 7, finished_at_s=ends, intervals=intervals)
    for lost in ({1, 2}, {0, 1, 2, 3, 4}):
        forget_steps(folder, lost)
        shown = series(numbers_of(elastic_pulls.EXHIBIT, tmp_path), elastic_pulls.PANEL)
        assert shown[elastic_pulls.LAST] == [(2.0, 3.0)]


def test_a_run_whose_intervals_cannot_be_read_is_named_and_the_others_are_drawn(tmp_path):
    pull = {"activity": "catching_up", "step": 6, "started_at_s": 61.0, "ended_at_s": 63.0}
    ends = [10.0 * (step + 1) for step in range(8)]
    for number in (2, 4):
        write(tmp_path, f"elastic-workers-{number}", [10.0] * 8, finished_at_s=ends, intervals=[pull])
    broken = tmp_path / "elastic-workers-4"
    for part in (broken / "metrics" / "intervals").iterdir():
        part.write_bytes(b"")
    numbers = numbers_of(elastic_pulls.EXHIBIT, tmp_path)
    assert series(numbers, elastic_pulls.PANEL) == {elastic_pulls.FIRST: [(2.0, 2.0)], elastic_pulls.LAST: [(2.0, 2.0)]}
    [unread] = [sentence for sentence in numbers.missing if str(broken) in sentence]
    assert unread.startswith(f"the intervals of {broken} are left out: ")


def test_every_one_is_drawn(tmp_path):
    write_workers(tmp_path, elastic_workers.WORKERS)
    figure = elastic_workers.draw(numbers_of(elastic_workers.EXHIBIT, tmp_path))
    assert len(figure.axes) == 2
    plt.close(figure)
