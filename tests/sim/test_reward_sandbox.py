"""Programs share cores by processor sharing, wait for places, and are killed at their limit."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.sim.sandbox import Program, Sandbox


def program(work_s: float, limit_s: float = 1000.0) -> Program:
    return Program(work_s=work_s, limit_s=limit_s)


def run_out(sandbox: Sandbox, arrivals: list[tuple[float, Program]]) -> list[Program]:
    """Add each program at its time, and give all in the order of their ends; checks on the way."""
    over: list[Program] = []
    for at_s, arriving in [*sorted(arrivals, key=lambda each: each[0]), (math.inf, None)]:
        while sandbox.next_at_s is not None and sandbox.next_at_s <= at_s:
            over += sandbox.advance(sandbox.next_at_s)
            sandbox.check()
        if arriving is not None:
            sandbox.add([arriving], at_s)
            sandbox.check()
    return over


def test_programs_on_cores_of_their_own_take_their_own_time():
    programs = [program(work_s) for work_s in (3, 1, 2)]
    over = run_out(Sandbox(num_places=3, num_cores=3), [(0, each) for each in programs])
    assert [(each.work_s, each.ended_at_s) for each in over] == [(1, 1), (2, 2), (3, 3)]


def test_three_programs_share_two_cores():
    # at rate 2/3 until the first ends at 1.5 s; then two cores for two programs
    programs = [program(work_s) for work_s in (1, 2, 3)]
    over = run_out(Sandbox(num_places=8, num_cores=2), [(0, each) for each in programs])
    assert [each.ended_at_s for each in over] == pytest.approx([1.5, 2.5, 3.5])


def test_a_newcomer_slows_those_that_run():
    first, second = program(2), program(2)
    run_out(Sandbox(num_places=2, num_cores=1), [(0, first), (1, second)])
    # alone until 1 s, then both at half speed until the first ends at 3 s, then the second alone
    assert (first.ended_at_s, second.ended_at_s) == pytest.approx((3, 4))


def test_without_a_place_a_program_waits_and_its_time_counts_from_its_start():
    programs = [program(2) for _ in range(5)]
    over = run_out(Sandbox(num_places=2, num_cores=2), [(0, each) for each in programs])
    assert over == programs
    assert [(each.started_at_s, each.ended_at_s, each.time_s) for each in over] == [
        (0, 2, 2), (0, 2, 2), (2, 4, 2), (2, 4, 2), (4, 6, 2),
    ]  # fmt: skip


def test_an_endless_program_is_killed_at_its_limit_and_slows_others_until_then():
    endless, quick = program(math.inf, limit_s=3), program(2, limit_s=30)
    run_out(Sandbox(num_places=2, num_cores=1), [(0, endless), (0, quick)])
    assert (endless.was_killed, endless.time_s, endless.ended_at_s) == (True, 3, 3)
    assert (quick.was_killed, quick.ended_at_s) == (False, 3.5)  # 1.5 s of work in 3 s, the rest alone


def test_the_limit_is_wall_clock_time_so_a_crowd_makes_programs_fail():
    alone = program(2, limit_s=3)
    run_out(Sandbox(num_places=4, num_cores=1), [(0, alone)])
    crowd = [program(2, limit_s=3) for _ in range(2)]
    run_out(Sandbox(num_places=4, num_cores=1), [(0, each) for each in crowd])
    assert not alone.was_killed
    assert [each.was_killed for each in crowd] == [True, True]


def test_a_program_that_ends_at_its_limit_was_not_killed():
    exact = program(30, limit_s=30)
    run_out(Sandbox(num_places=1, num_cores=1), [(0.1, exact)])
    assert not exact.was_killed


loads = st.lists(
    st.tuples(
        st.floats(0, 20),
        st.one_of(st.floats(0, 10), st.just(math.inf)),
        st.floats(0.1, 12),
    ),
    min_size=1,
    max_size=40,
)


@given(loads, st.integers(1, 6), st.integers(1, 8))
def test_work_is_conserved_limits_hold_and_no_core_is_idle_while_a_program_could_use_it(load, num_cores, num_places):
    arrivals = [(at_s, program(work_s, limit_s)) for at_s, work_s, limit_s in load]
    sandbox = Sandbox(num_places=num_places, num_cores=num_cores)
    over = run_out(sandbox, arrivals)
    assert len(over) == len(load)
    assert (sandbox.num_running, sandbox.num_waiting) == (0, 0)
    for each in over:
        assert each.was_killed or each.work_s <= each.time_s * (1 + 1e-6) + 1e-6
        assert each.time_s <= each.limit_s * (1 + 1e-6) + 1e-6
        assert not each.was_killed or each.work_s > 0
    # what a brute-force integration of busy places gives: each program held one place from start to end
    assert sandbox.busy_core_s == pytest.approx(_busy_core_s(over, num_cores), abs=1e-5)
    done = sum(each.work_s for each in over if not each.was_killed)
    assert done <= sandbox.busy_core_s * (1 + 1e-6) + 1e-6


def _busy_core_s(over: list[Program], num_cores: int) -> float:
    """From starts and ends alone."""
    times = sorted({each.started_at_s for each in over} | {each.ended_at_s for each in over})
    total = 0.0
    for begin, end in itertools.pairwise(times):
        num_running = sum(each.started_at_s <= begin and each.ended_at_s >= end for each in over)
        total += min(num_running, num_cores) * (end - begin)
    return total


@given(loads, st.integers(1, 6))
def test_processor_sharing_ends_programs_when_a_brute_force_integration_does(load, num_cores):
    arrivals = [(at_s, program(work_s, limit_s)) for at_s, work_s, limit_s in load]
    run_out(Sandbox(num_places=len(load), num_cores=num_cores), arrivals)
    for begun_s, each in arrivals:
        assert each.started_at_s == begun_s
        got = _received_s(each, [other for _, other in arrivals], num_cores)
        if each.was_killed:
            assert got <= each.work_s + 1e-5
        else:
            assert got == pytest.approx(each.work_s, abs=1e-5)


def _received_s(program: Program, programs: list[Program], num_cores: int) -> float:
    """What a program computed between its start and its end, by the numbers that ran beside it."""
    times = sorted({each.started_at_s for each in programs} | {each.ended_at_s for each in programs})
    got = 0.0
    for begin, end in itertools.pairwise(times):
        if program.started_at_s <= begin and end <= program.ended_at_s:
            num_running = sum(each.started_at_s <= begin and end <= each.ended_at_s for each in programs)
            got += (end - begin) * min(1.0, num_cores / num_running)
    return got
