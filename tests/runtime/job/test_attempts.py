"""A job goes back into the queue as long as its attempts come to something."""

import pytest

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import Preempted, WorldError
from rollpacker.runtime.job.attempts import JobAttempts, request_requeue
from rollpacker.runtime.job.deadline import RECENT_CHECKPOINTS, PreemptionDeadline
from tests.runtime.allocations import allocation


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


class Job:
    """A job that is started again and again; each start is a clock that stands where a test puts it."""

    def __init__(self, tmp_path):
        self.tmp_path = tmp_path
        self.requeue_file = tmp_path / "17.requeue"
        self.num_starts = 0

    def start(self, first_step, *, end_time=1060.0, job_id="17", restart_count=None, **cluster):
        """Begin an attempt at second 1000."""
        self.here = allocation(
            self.tmp_path,
            job_id=job_id,
            restart_count=self.num_starts if restart_count is None else restart_count,
            end_time=end_time,
        )
        self.num_starts += 1
        self.requeue_file.unlink(missing_ok=True)
        self.deadline = PreemptionDeadline(lambda: 1000.0, end_time)
        self.attempts = JobAttempts(self.tmp_path / "run", self.here, ClusterSection(name="slurm", **cluster))
        self.attempts.begin(self.num_starts - 1, first_step, self.deadline, 1000.0)

    def leave(self, finished_steps, *, now=1050.0, interrupted_step_s=0.0):
        self.deadline.reason = "asked"
        self.deadline.interrupted_step_s = interrupted_step_s
        return self.attempts.leave(finished_steps, 10, self.deadline, now)


def test_an_attempt_that_finished_steps_goes_back_into_the_queue_again_and_again(job):
    for first_step in range(6):
        job.start(first_step)
        assert isinstance(job.leave(first_step + 1), Preempted)
        assert job.requeue_file.exists()


def test_the_second_attempt_in_a_row_without_a_step_is_the_last_and_says_which_time_was_too_short(job):
    job.start(3)
    assert isinstance(job.leave(3, interrupted_step_s=40.0), Preempted)
    assert job.requeue_file.exists()
    job.start(3)
    error = job.leave(3, interrupted_step_s=42.0)
    assert isinstance(error, WorldError)
    assert not job.requeue_file.exists()
    assert "left 60 s to an attempt, 50 s of them for its checkpoint and its end" in error.problem
    assert "the longest step seen took or had run 42 s" in error.problem
    assert "cluster.time_limit_min=4" in error.remedy  # 8 s to start, a step of twice 42 s, 50 s, and a minute more


def test_progress_between_two_futile_attempts_begins_the_count_anew(job):
    for first_step, finished in ((0, 0), (0, 2), (2, 2)):
        job.start(first_step)
        assert isinstance(job.leave(finished), Preempted)
        assert job.requeue_file.exists()
    job.start(2)
    assert isinstance(job.leave(2), WorldError)


def test_attempts_that_died_count_and_the_next_one_is_not_begun(job):
    job.start(4)
    job.start(4)
    with pytest.raises(WorldError, match="started 2 times in a row") as caught:
        job.start(4)
    assert "run/logs" in str(caught.value)


@pytest.mark.parametrize(("saved_steps", "is_requeued"), [(4, False), (5, True)])
def test_a_lost_node_requeues_the_job_unless_the_next_start_would_be_refused(job, saved_steps, is_requeued):
    job.start(4)
    request_requeue(job.here)
    job.attempts.end(4)
    assert job.requeue_file.exists()
    job.start(4)
    request_requeue(job.here)
    why = job.attempts.end(saved_steps)
    assert job.requeue_file.exists() is is_requeued
    assert ("max_attempts_without_progress=2" in why) is not is_requeued


def test_the_bound_is_the_configurations(job):
    for _ in range(3):
        job.start(0, max_attempts_without_progress=4)
        assert isinstance(job.leave(0), Preempted)
    job.start(0, max_attempts_without_progress=4)
    assert isinstance(job.leave(0), WorldError)


def test_a_job_that_is_submitted_anew_counts_anew(job):
    job.start(4)
    job.start(4)
    job.start(4, job_id="18", restart_count=0)
    assert isinstance(job.leave(4), Preempted)


def test_starting_again_and_again_inside_one_allocation_is_nobodys_loop(job):
    for _ in range(5):
        job.start(4, restart_count=0)


def test_an_attempt_plans_with_the_steps_of_the_last_one_and_with_recent_checkpoints(job):
    job.start(0)
    job.deadline.expect(12.0, ())
    unmeasured_s = job.deadline.reserve_s
    job.deadline.checkpoint_took(600.0)
    slow_s = job.deadline.reserve_s
    job.leave(1)
    for first_step in range(1, RECENT_CHECKPOINTS + 1):
        job.start(first_step)
        assert (job.deadline.longest_step_s, job.deadline.reserve_s) == (12.0, slow_s)
        job.deadline.checkpoint_took(3.0)
        job.leave(first_step + 1)
    job.start(RECENT_CHECKPOINTS + 1)
    assert job.deadline.reserve_s < unmeasured_s


def test_a_job_that_may_not_be_requeued_says_so(job):
    job.start(0, requeue=False)
    error = job.leave(2)
    assert isinstance(error, Preempted)
    assert "cluster.requeue=false" in str(error)
    assert not job.requeue_file.exists()


def test_without_a_time_limit_the_reason_names_none(job):
    job.start(0, end_time=None)
    job.leave(0, interrupted_step_s=5.0)
    job.start(0, end_time=None)
    error = job.leave(0, interrupted_step_s=5.0)
    assert isinstance(error, WorldError)
    assert "time limit" not in str(error)
    assert "rollout.num_prompts" in error.remedy


def test_a_broken_record_of_attempts_is_said(job):
    job.start(0)
    (job.tmp_path / "run" / "jobs" / "17.json").write_text("[{]")
    with pytest.raises(WorldError, match="cannot be read"):
        job.start(0)
