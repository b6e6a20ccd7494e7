"""When a run leaves its machines: as late as it can, as early as it must, at a time that a virtual clock says."""

import asyncio
import signal
from functools import partial

import pytest

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.runtime.job.deadline import (
    CHECKPOINT_SLACK,
    CLOSING_S,
    RECENT_CHECKPOINTS,
    UNSEEN_CHECKPOINT_S,
    PreemptionDeadline,
    StepInterrupted,
)
from rollpacker.runtime.job.signals import SIGNALS, UNKNOWN_GRACE_S, SignalListener, meaning_of
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.allocations import allocation

STEP_S = 20.0
CHECKPOINT_S = 4.0
LAST_MOMENT_S = CHECKPOINT_SLACK * CHECKPOINT_S + CLOSING_S
"""Before the machines are gone a checkpoint begins."""


def in_virtual_time(story):
    """Tell a story of one deadline from second 0; gives what it returns."""

    async def told():
        return await story(asyncio.get_running_loop())

    return run_in_virtual_time(told())


def deadline_after_a_step(loop, end_time=None):
    deadline = PreemptionDeadline(loop.time, end_time)
    deadline.expect(STEP_S, [CHECKPOINT_S])
    return deadline


async def ends(deadline, duration_s):
    """Take a step of so long; returns when it ended, and whether it was interrupted."""
    try:
        async with deadline.in_step():
            await asyncio.sleep(duration_s)
            deadline.commit()
    except StepInterrupted:
        return asyncio.get_running_loop().time(), True
    deadline.step_ended()
    return asyncio.get_running_loop().time(), False


def ask_at(loop, deadline, time_s, remaining_s):
    loop.call_at(time_s, lambda: deadline.ask("asked", loop.time() + remaining_s))


def test_without_a_request_steps_follow_each_other():
    async def story(loop):
        deadline = deadline_after_a_step(loop)
        assert deadline.may_begin(is_first=True)
        ended = await ends(deadline, 1000.0)
        return ended, deadline.may_begin(is_first=False), deadline.longest_step_s

    assert in_virtual_time(story) == ((1000.0, False), True, 1000.0)


def test_a_step_that_can_still_end_goes_on_and_no_other_begins():
    async def story(loop):
        deadline = deadline_after_a_step(loop)
        ask_at(loop, deadline, 5.0, STEP_S - 5 + LAST_MOMENT_S + 0.1)
        ended = await ends(deadline, STEP_S)
        return ended, deadline.may_begin(is_first=False), deadline.reason

    assert in_virtual_time(story) == ((STEP_S, False), False, "asked")


def test_a_step_whose_end_would_come_too_late_is_interrupted_at_once():
    async def story(loop):
        deadline = deadline_after_a_step(loop)
        ask_at(loop, deadline, 5.0, STEP_S - 5 + LAST_MOMENT_S - 0.1)
        return await ends(deadline, STEP_S)

    assert in_virtual_time(story) == (5.0, True)


def test_a_step_that_takes_longer_than_it_seemed_is_interrupted_when_a_checkpoint_just_fits():
    async def story(loop):
        deadline = deadline_after_a_step(loop)
        ask_at(loop, deadline, 5.0, 60.0)
        return await ends(deadline, 1000.0), deadline.interrupted_step_s

    last = 65.0 - LAST_MOMENT_S
    assert in_virtual_time(story) == ((last, True), last)


def test_an_unmeasured_checkpoint_is_planned_with_much_time():
    async def story(loop):
        deadline = PreemptionDeadline(loop.time)
        ask_at(loop, deadline, 5.0, 60.0)
        return await ends(deadline, 1000.0)

    assert in_virtual_time(story) == (65.0 - CHECKPOINT_SLACK * UNSEEN_CHECKPOINT_S - CLOSING_S, True)


def test_a_slow_checkpoint_is_planned_with_until_some_more_were_measured():
    deadline = PreemptionDeadline(lambda: 0.0)
    deadline.checkpoint_took(600.0)
    for _ in range(RECENT_CHECKPOINTS - 1):
        deadline.checkpoint_took(CHECKPOINT_S)
        assert deadline.reserve_s == CHECKPOINT_SLACK * 600.0 + CLOSING_S
    deadline.checkpoint_took(CHECKPOINT_S)
    assert deadline.reserve_s == LAST_MOMENT_S


def test_the_earlier_of_two_deadlines_counts_and_the_first_reason():
    async def story(loop):
        deadline = deadline_after_a_step(loop)
        ask_at(loop, deadline, 5.0, 300.0)
        loop.call_at(6.0, lambda: deadline.ask("asked again", 8.0 + LAST_MOMENT_S))
        loop.call_at(7.0, lambda: deadline.ask("and again", 300.0))
        return await ends(deadline, 1000.0), deadline.reason

    assert in_virtual_time(story) == ((6.0, True), "asked")


def test_a_second_signal_while_the_step_is_being_interrupted_changes_nothing():
    async def story(loop):
        deadline = deadline_after_a_step(loop)
        ask_at(loop, deadline, 5.0, 0.0)
        try:
            async with deadline.in_step():
                try:
                    await asyncio.sleep(1000.0)
                finally:
                    deadline.ask("again", 0.0)
                    await asyncio.sleep(1.0)
                    deadline.ask("and again", 0.0)
        except StepInterrupted:
            return loop.time()

    assert in_virtual_time(story) == 6.0


def test_an_update_that_has_begun_goes_on_to_its_end():
    async def story(loop):
        deadline = deadline_after_a_step(loop)
        ask_at(loop, deadline, 5.0, 0.0)
        async with deadline.in_step():
            await asyncio.sleep(4.0)
            deadline.commit()
            await asyncio.sleep(4.0)
        return loop.time(), deadline.may_begin(is_first=False)

    assert in_virtual_time(story) == (8.0, False)


def test_a_step_that_cannot_end_before_the_time_limit_is_not_begun():
    async def story(loop):
        deadline = deadline_after_a_step(loop, end_time=100.0)
        begun = []
        while deadline.may_begin(is_first=not begun):
            begun.append(loop.time())
            assert not (await ends(deadline, STEP_S))[1]
        return begun, loop.time() + STEP_S + LAST_MOMENT_S > 100.0, deadline.reason

    assert in_virtual_time(story) == (
        [0.0, 20.0, 40.0, 60.0],
        True,
        "the next step may take 20 s, and the time limit leaves 9 s for it",
    )


def test_the_first_step_of_an_attempt_is_tried_and_interrupted_at_the_last_moment():
    async def story(loop):
        deadline = deadline_after_a_step(loop, end_time=STEP_S)
        assert deadline.may_begin(is_first=True)
        ended = await ends(deadline, STEP_S)
        return ended, deadline.reason

    assert in_virtual_time(story) == (
        (STEP_S - LAST_MOMENT_S, True),
        "the time limit came before the end of a step that had run for 9 s",
    )


def test_a_start_is_interrupted_as_soon_as_the_run_is_asked_to_leave():
    async def story(loop):
        deadline = deadline_after_a_step(loop)
        ask_at(loop, deadline, 5.0, 1000.0)
        with pytest.raises(StepInterrupted):
            async with deadline.while_starting():
                await asyncio.sleep(100.0)
        return loop.time()

    assert in_virtual_time(story) == 5.0


def test_a_signal_that_says_what_the_time_limit_said_asks_for_nothing_before_the_first_step_has_ended():
    async def story(loop):
        deadline = deadline_after_a_step(loop, end_time=1000.0)
        async with deadline.while_starting():
            deadline.ask("the limit is near", 1000.0)
            await asyncio.sleep(1.0)
        may_begin = deadline.may_begin(is_first=True)
        await ends(deadline, STEP_S)
        deadline.ask("the limit is near", 1000.0)
        return may_begin, deadline.may_begin(is_first=False)

    assert in_virtual_time(story) == (True, False)


def test_a_start_that_takes_until_the_time_limit_says_so():
    async def story(loop):
        deadline = deadline_after_a_step(loop, end_time=50.0)
        with pytest.raises(StepInterrupted):
            async with deadline.while_starting():
                await asyncio.sleep(100.0)
        return loop.time(), deadline.reason

    assert in_virtual_time(story) == (50.0 - LAST_MOMENT_S, "the time limit came while the run was starting")


def test_a_time_out_inside_a_step_stays_a_time_out():
    async def story(loop):
        async with deadline_after_a_step(loop).in_step():
            async with asyncio.timeout(3.0):
                await asyncio.sleep(10.0)

    with pytest.raises(TimeoutError):
        in_virtual_time(story)


URG, TERM = signal.SIGURG, signal.SIGTERM


@pytest.mark.parametrize(
    ("lead_signal", "heard", "now", "deadline"),
    [
        (URG, URG, 880.0, 1000.0),  # 120 s before the limit
        (URG, URG, 821.0, 1000.0),  # Slurm may be a minute early
        (URG, URG, 819.0, 834.0),  # too early to be the limit: preempted
        (URG, TERM, 880.0, 895.0),  # the limit would say URG
        (TERM, TERM, 880.0, 1000.0),
        (TERM, TERM, 500.0, 515.0),
    ],
)
def test_a_signal_means_the_time_limit_only_where_the_limit_is_near(tmp_path, lead_signal, heard, now, deadline):
    cluster = ClusterSection(name="slurm", signal=lead_signal.name.removeprefix("SIG"), signal_lead_s=120)
    reason, read = meaning_of(allocation(tmp_path, end_time=1000.0, grace_s=15.0), cluster, heard, now)
    assert read == deadline
    assert heard.name in reason


@pytest.mark.parametrize(
    ("heard", "has_unsaved_steps", "grace_s", "leaves_s"),
    [
        (signal.SIGTERM, True, 600.0, UNKNOWN_GRACE_S),
        (signal.SIGTERM, True, 15.0, 15.0),
        (signal.SIGTERM, False, 600.0, 600.0),
        (URG, True, 600.0, 600.0),
    ],
)
def test_sigterm_may_be_a_cancellation_where_finished_steps_would_be_lost(
    tmp_path, heard, has_unsaved_steps, grace_s, leaves_s
):
    here, cluster = allocation(tmp_path, grace_s=grace_s), ClusterSection(name="slurm")
    assert meaning_of(here, cluster, heard, 7.0, has_unsaved_steps=has_unsaved_steps)[1] == 7.0 + leaves_s


def test_a_job_without_a_time_limit_has_its_grace(tmp_path):
    assert meaning_of(allocation(tmp_path), ClusterSection(name="slurm"), URG, 7.0)[1] == 7.0 + UNKNOWN_GRACE_S == 37.0


@pytest.fixture
def signals():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield SignalListener()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_the_run_to_leave(number, signals, tmp_path):
    meaning = partial(meaning_of, allocation(tmp_path, grace_s=15.0), ClusterSection(name="slurm"))

    async def story(loop):
        deadline = deadline_after_a_step(loop)
        signals.tell(deadline, meaning, loop.time)
        loop.call_at(5.0, signal.raise_signal, number)
        return await ends(deadline, 100.0), deadline.reason

    (time_s, is_interrupted), reason = in_virtual_time(story)
    assert is_interrupted
    assert time_s == pytest.approx(5.0)
    assert number.name in reason


def test_a_signal_that_came_before_the_run_listened_is_kept(signals, tmp_path):
    signal.raise_signal(signal.SIGTERM)

    meaning = partial(meaning_of, allocation(tmp_path, grace_s=15.0), ClusterSection(name="slurm"))

    async def story(loop):
        deadline = deadline_after_a_step(loop)
        signals.tell(deadline, meaning, loop.time)
        return deadline.reason, deadline.may_begin(is_first=True)

    reason, may_begin = in_virtual_time(story)
    assert "SIGTERM" in reason
    assert not may_begin
