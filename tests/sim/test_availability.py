"""When the nodes of modelled rollout workers come and go."""

import itertools
import statistics

import pytest

from rollpacker.core.errors import DataError
from rollpacker.sim.availability import constant, counted, on_and_off, read_counts, staircase


def counts(changes):
    """How many places are up after each change; every change changes its place."""
    up, found = set(), []
    for change in changes:
        assert (change.place in up) != change.is_up
        (up.add if change.is_up else up.remove)(change.place)
        found.append((change.at_s, len(up)))
    return found


def test_constant_places_are_all_up_from_the_beginning():
    assert counts(constant(3)) == [(0, 1), (0, 2), (0, 3)]


def test_a_staircase_rises_to_all_places_then_the_oldest_leaves_and_comes_back():
    changes = list(itertools.islice(staircase(3, 100), 7))
    assert counts(changes) == [(100, 1), (200, 2), (300, 3), (400, 2), (500, 3), (600, 2), (700, 3)]
    assert [change.place for change in changes[3:]] == [0, 0, 1, 1]
    assert list(staircase(0, 100)) == []


def test_as_many_places_are_up_as_a_file_says(tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text("time_s,count\n0,2\n50.5,5\n60,5\n90,1\n95,3\n")
    after = dict(counts(counted(read_counts(file), seed=0)))
    assert after == {0: 2, 50.5: 5, 90: 1, 95: 3}
    left = {
        frozenset(change.place for change in counted(read_counts(file), seed) if not change.is_up) for seed in range(9)
    }
    assert len(left) > 1  # chance says which ones


@pytest.mark.parametrize(
    "text",
    [
        *("", "time_s,count\n", "time_s\n1\n", "time_s,count\n5,1\n4,1\n", "time_s,count\n0,-1\n"),
        *("time_s,count\nnan,1\n", "time_s,count\n0,100001\n", f"time_s,count\n0,{'1' * 200_000}\n"),
    ],
    ids=range(8),
)
def test_a_file_that_gives_no_counts_is_refused_by_name(tmp_path, text):
    file = tmp_path / "counts.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=r"counts\.csv"):
        read_counts(file)


def test_a_file_of_counts_may_begin_as_excel_writes_it_and_count_as_many_as_a_run_may_have(tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text("\ufefftime_s,count\n0,0\n1,50000\n2,100000\n", encoding="utf-8")
    assert sum(1 for _ in counted(read_counts(file), seed=0)) == 100_000


@pytest.mark.parametrize(("num_places", "burst"), [(20, 1), (20, 4), (2, 8)])
def test_random_places_are_up_and_down_for_the_times_that_were_asked_for(num_places, burst):
    changes = on_and_off(num_places, mean_up_s=1000, mean_down_s=250, burst=burst, seed=1)
    since, up_s, down_s = {}, [], []
    for change in itertools.islice(changes, 40_000):
        if change.place in since:
            (down_s if change.is_up else up_s).append(change.at_s - since[change.place])
        since[change.place] = change.at_s
    assert statistics.mean(up_s) == pytest.approx(1000, rel=0.05)
    assert statistics.mean(down_s) == pytest.approx(250, rel=0.05)


def test_chance_depends_on_the_seed_alone():
    def first(seed):
        return list(itertools.islice(on_and_off(4, mean_up_s=9, mean_down_s=9, burst=2, seed=seed), 50))

    assert first(1) == first(1) != first(2)
