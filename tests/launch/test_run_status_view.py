from __future__ import annotations

from typing import Any

import pytest

from tests.launch.runs import BEGAN_AT, NOW, a_job, a_run, a_status, a_submission


@pytest.mark.parametrize(
    ("job", "status", "word"),
    [
        (a_job("PENDING"), None, "waiting"),
        (a_job("PENDING", num_restarts=1), a_status("preempted"), "requeued"),
        (a_job("REQUEUED", num_restarts=1), a_status("running"), "requeued"),
        (a_job("RUNNING"), None, "starting"),
        (a_job("RUNNING", num_restarts=1), a_status("preempted", updated_at=BEGAN_AT - 60), "starting"),
        (a_job("RUNNING"), a_status("running"), "running"),
        (a_job("RUNNING"), a_status("finished"), "ending"),
        (a_job("COMPLETING"), a_status("running"), "ending"),
        (a_job("COMPLETED"), a_status("finished"), "finished"),
        (a_job("COMPLETED"), None, "unknown"),
        (a_job("FAILED", exit_code=1), a_status("failed"), "failed"),
        (a_job("FAILED", exit_code=75), a_status("preempted"), "preempted"),
        (a_job("FAILED", exit_code=1), None, "failed"),
        (a_job("FAILED", exit_code=1), a_status("running", updated_at=BEGAN_AT - 60), "failed"),
        (a_job("OUT_OF_MEMORY"), a_status("running"), "died"),
        (a_job("CANCELLED"), a_status("running"), "cancelled"),
        (a_job("UNKNOWN", start_time=None), a_status("running"), "died"),
        (a_job("UNKNOWN", start_time=None), a_status("finished"), "finished"),
        (a_job("UNKNOWN", start_time=None), None, "unknown"),
        (None, a_status("running"), "running"),
        (None, a_status("interrupted"), "interrupted"),
        (None, None, "unknown"),
    ],
)
def test_slurm_knows_whether_a_run_goes_on_and_the_run_knows_how_it_went(job: Any, status: Any, word: str) -> None:
    assert a_run(submission=a_submission(), job=job, status=status).state == word


@pytest.mark.parametrize(("is_locked", "word"), [(True, "running"), (False, "died"), (None, "running")])
def test_a_run_without_a_job_is_believed_as_long_as_its_process_may_be_there(is_locked: Any, word: str) -> None:
    assert a_run(status=a_status("running"), is_locked=is_locked).state == word


def test_the_status_of_an_earlier_submission_says_nothing_about_this_one() -> None:
    failed_before = a_status("failed", reason="no space", updated_at=a_submission().submitted_at - 60)

    run = a_run(submission=a_submission(), job=a_job("PENDING", reason="Priority"), status=failed_before)

    assert (run.state, run.reason) == ("waiting", "jobs of higher priority come first (Priority)")


@pytest.mark.parametrize(
    ("slurms", "ours"),
    [
        ("Resources", "no nodes are free (Resources)"),
        ("QOSMaxJobsPerUserLimit", "a limit of the account or QOS is reached (QOSMaxJobsPerUserLimit)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:gpu01",
            "nodes that it needs are down, drained or reserved (ReqNodeNotAvail, UnavailableNodes:gpu01)",
        ),
        (
            "job requeued in held state",
            "it was requeued and is held; `scontrol release` releases it (job requeued in held state)",
        ),
        (
            "MaxMemPerLimit",
            "its partition does not allow so much memory: cancel it, and ask for less (MaxMemPerLimit)",
        ),
        ("MaxPoweredUpNodes", "MaxPoweredUpNodes"),
        ("Prolog", "Prolog"),
        ("", ""),
    ],
)
def test_why_a_run_waits_is_said_in_words_and_in_slurms_word(slurms: str, ours: str) -> None:
    assert a_run(job=a_job("PENDING", reason=slurms)).reason == ours


_OF_ONE_JOB = (
    "QOSMaxWallDurationPerJobLimit QOSMaxCpuMinutesPerJobLimit QOSMaxGRESPerJob QOSMaxMemoryPerNode QOSMinGRES "
    "QOSMinCpuNotSatisfied QOSNotAllowed AssocMaxNodePerJobLimit AssocMaxBBMinutesPerJob AssocMaxCpuPerNode "
    "AccountNotAllowed InvalidAccount InvalidQOS"
)
_OF_ALL_JOBS = (
    "QOSGrpGRES QOSGrpCPUMinutesLimit QOSGrpGRESRunMinutes QOSMaxJobsPerUserLimit QOSMaxSubmitJobPerUserLimit "
    "QOSMaxGRESPerUser QOSJobLimit AssocGrpMemRunMinutes AssocMaxJobsLimit AssociationResourceLimit "
    "MaxGRESPerAccount MaxGRESRunMinsPerUser MaxSubmitJobsPerAccount"
)


@pytest.mark.parametrize(
    ("reasons", "lifts"), [(_OF_ONE_JOB, False), (_OF_ALL_JOBS, True)], ids=["of one job", "of all jobs"]
)
def test_a_limit_of_each_job_never_lifts_and_one_of_all_jobs_of_a_user_or_account_does(
    reasons: str, lifts: bool
) -> None:
    for reason in reasons.split():
        words = a_run(job=a_job("PENDING", reason=reason)).reason
        assert words.endswith(f"({reason})")
        assert ("so it never starts: cancel it" in words) != lifts
        assert ("limit of the account or QOS is reached" in words) == lifts


@pytest.mark.parametrize("state", ["OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT", "PREEMPTED", "BOOT_FAIL"])
def test_an_end_that_slurm_decided_on_is_told_before_what_the_logs_say(state: str) -> None:
    reason = a_run(job=a_job(state), status=a_status("running"), logged="srun: error: gpu01: task 0: Killed").reason

    assert reason.endswith(f"({state})")
    assert "Killed" not in reason


def test_a_run_that_failed_says_why_itself_and_only_else_its_logs_are_believed() -> None:
    ended = a_job("FAILED", exit_code=1)

    assert a_run(job=ended, status=a_status("failed", reason="disk full"), logged="x").reason == "disk full"
    assert a_run(job=ended, logged="ModuleNotFoundError: No module named 'x'").reason.startswith("ModuleNotFound")
    assert a_run(job=ended).reason == "its job ended with exit code 1"
    assert a_run(job=a_job("FAILED", reason="JobLaunchFailure")).reason == "Slurm says JobLaunchFailure"
    assert a_run(job=a_job("FAILED", exit_signal=9)).reason == "its job was killed by signal 9"
    assert a_run(status=a_status("running"), is_locked=False).reason == "its process is gone and left no reason"


def test_a_cancelled_run_was_cancelled_whatever_it_thinks_of_the_signal() -> None:
    told_to_leave = a_status("preempted", reason="SIGTERM came, with 15 s to leave.")

    assert a_run(job=a_job("CANCELLED"), status=told_to_leave).reason == "its job was cancelled (CANCELLED)"


def test_a_job_that_succeeded_without_a_run_in_this_folder_has_not_finished_it() -> None:
    elsewhere = a_run(submission=a_submission(), job=a_job("COMPLETED"))

    assert elsewhere.reason == "its job ended without an error, and the run left no status in this folder"
    assert a_run(job=a_job("COMPLETED"), logged="status.json cannot be read").reason == "status.json cannot be read"
    assert a_run(job=a_job("UNKNOWN")).reason == ""


def test_what_goes_well_needs_no_reason() -> None:
    assert a_run(job=a_job("RUNNING"), status=a_status("running")).reason == ""
    assert a_run(job=a_job("COMPLETED"), status=a_status("finished")).reason == ""


def test_the_time_of_an_attempt_ends_with_it() -> None:
    assert a_run(job=a_job("RUNNING")).started_and_ended(NOW) == (BEGAN_AT, NOW)
    assert a_run(job=a_job("FAILED", end_time=NOW - 100)).started_and_ended(NOW) == (BEGAN_AT, NOW - 100)
    assert a_run(job=a_job("FAILED")).started_and_ended(NOW) is None, "Slurm without accounting does not tell"
    assert a_run(job=a_job("PENDING", start_time=NOW + 60)).started_and_ended(NOW) is None


def test_a_job_whose_log_could_not_be_opened_names_the_folder_of_its_log() -> None:
    job = a_job("FAILED", exit_code=0, exit_signal=53)
    reason = a_run(submission=a_submission(), job=job).reason
    assert reason == "its node could not write its log in submitted: not seen there, not writable, or full"
