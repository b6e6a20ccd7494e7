from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.core.errors import WorldError
from rollpacker.launch.job_states import JobState, job_states, parse_sacct, parse_squeue
from tests.launch.commands import install_command

RECORDED = Path(__file__).parent / "recorded"
"""What Slurm printed; squeue's rows end in a column that is not asked for, the partition; it was cut out of sacct's."""


def _recorded(name: str, version: str = "22.05") -> str:
    return (RECORDED / f"{name}-{version}.txt").read_text()


def _squeue_row(
    name: str, number: str, state: str, *, reason: str = "None", status: str = "0", nodes: str = "", restarts: int = 0
) -> str:
    return f"{name}|{number}|{state}|{reason}|{status}|2|{nodes}|1795267612|{restarts}|"


def _sacct_row(
    name: str, number: str, state: str, *, reason: str = "None", code: str = "0:0", submitted: int = 1795267612
) -> str:
    return f"{name}|{number}|{state}|{reason}|{code}|2|node[1-2]|{submitted}|{submitted + 60}|{submitted}"


def test_squeue_of_22_05_tells_what_runs_waits_failed_and_was_requeued() -> None:
    jobs = parse_squeue(_recorded("squeue"))

    assert jobs["15_0"] == JobState(
        job_id="15_0",
        state="RUNNING",
        num_nodes=2,
        node_list="node[1-2]",
        start_time=1795267612.0,
    )
    assert jobs["19"].node_list == jobs["15_0"].node_list, "an element also has a number of its own"
    assert (jobs["15_2"].state, jobs["15_2"].reason, jobs["15_2"].start_time) == ("PENDING", "JobArrayTaskLimit", None)
    assert (jobs["16"].reason, jobs["16"].node_list) == ("Resources", "")
    assert (jobs["17"].state, jobs["17"].num_restarts) == ("PENDING", 1)
    assert (jobs["14"].state, jobs["14"].exit_code, jobs["14"].exit_signal) == ("FAILED", 3, None)
    assert jobs["18"].exit_code == 75
    assert (jobs["21"].state, jobs["21"].exit_signal) == ("CANCELLED", 15)


def test_the_number_of_an_array_is_not_taken_for_one_of_its_waiting_elements() -> None:
    assert "15" not in parse_squeue(_recorded("squeue"))


def test_sacct_of_22_05_has_a_row_per_attempt_and_the_last_counts() -> None:
    jobs = parse_sacct(_recorded("sacct"))

    assert (jobs["17"].state, jobs["17"].num_restarts, jobs["17"].node_list) == ("PENDING", 1, "")
    assert (jobs["14"].state, jobs["14"].exit_code, jobs["14"].end_time) == ("FAILED", 3, 1795267612.0)
    assert jobs["21"].state == "CANCELLED"
    assert jobs["15_1"] == JobState(
        job_id="15_1",
        state="RUNNING",
        num_nodes=2,
        node_list="node[1-2]",
        start_time=1795267612.0,
    )


def test_rows_of_accounting_are_ordered_by_when_they_were_submitted() -> None:
    rows = [
        _sacct_row("7", "7", "COMPLETED", submitted=1795267900),
        _sacct_row("7", "7", "PREEMPTED", submitted=1795267700),
        _sacct_row("7", "7", "NODE_FAIL", submitted=1795267612),
    ]

    assert parse_sacct("\n".join(rows))["7"].state == "COMPLETED"
    assert parse_sacct("\n".join(rows))["7"].num_restarts == 2


def test_an_older_job_of_the_same_number_is_no_attempt() -> None:
    rows = [
        _sacct_row("7", "7", "COMPLETED", submitted=1700000000),
        _sacct_row("7", "7", "REQUEUED", submitted=1795267612),
        _sacct_row("7", "7", "RUNNING", submitted=1795267700),
    ]

    assert parse_sacct("\n".join(rows))["7"].num_restarts == 1


def test_squeue_of_24_11_writes_exit_codes_in_another_way() -> None:
    jobs = parse_squeue(_recorded("squeue", "24.11"))

    assert (jobs["1"].exit_code, jobs["1"].exit_signal) == (0, None)
    assert (jobs["2"].exit_code, jobs["2"].exit_signal) == (3, None)
    assert (jobs["3"].exit_code, jobs["3"].exit_signal, jobs["3"].reason) == (0, 9, "RaisedSignal:9(Killed)")
    assert (jobs["6"].state, jobs["6"].reason) == ("PENDING", "job requeued in held state")
    assert jobs["6"].num_restarts == 1
    assert (jobs["4_0"].state, jobs["4_0"].exit_code, jobs["4_0"].node_list) == ("RUNNING", None, "node[1-2]")
    assert jobs["4_2"].reason == "JobArrayTaskLimit"
    assert (jobs["9"].state, jobs["9"].exit_signal) == ("CANCELLED", 15)


def test_who_cancelled_a_job_is_no_part_of_its_state() -> None:
    assert parse_sacct(_sacct_row("8", "8", "CANCELLED by 1000"))["8"].state == "CANCELLED"


def test_a_job_that_is_being_cleaned_up_is_not_over() -> None:
    assert not parse_squeue(_squeue_row("7", "7", "COMPLETING", nodes="gpu[01-02]"))["7"].is_over


@pytest.mark.parametrize(
    ("states", "is_over"),
    [
        (("PENDING", "RUNNING", "REQUEUED", "REQUEUE_HOLD"), False),
        (("COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED", "NODE_FAIL", "DEADLINE", "UNKNOWN"), True),
    ],
    ids=["not over", "over"],
)
def test_a_state_is_over_or_not(states: tuple[str, ...], is_over: bool) -> None:
    assert {JobState(job_id="1", state=state).is_over for state in states} == {is_over}


def test_one_call_of_each_command_tells_of_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("squeue", "sacct"):
        script = f'echo "$*" >> {tmp_path}/{name}.calls; cat {RECORDED}/{name}-22.05.txt'
        install_command(tmp_path, name, script, monkeypatch)

    jobs, complaint = job_states(["13", "14", "15_0", "17", "99"])

    assert complaint == ""
    assert list(jobs) == ["13", "14", "15_0", "17", "99"]
    assert jobs["13"].end_time == 1795267613.0, "which squeue does not tell"
    assert jobs["17"].num_restarts == 1
    assert (jobs["99"].state, jobs["99"].is_over) == ("UNKNOWN", True)
    for name in ("squeue", "sacct"):
        (call,) = (tmp_path / f"{name}.calls").read_text().splitlines()
        assert "--jobs=13,14,15_0,17,99" in call


def test_accounting_is_asked_about_the_cluster_that_squeue_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sacct does not read SLURM_CLUSTERS; on another cluster the same number is another job."""
    install_command(tmp_path, "squeue", "true", monkeypatch)
    install_command(tmp_path, "sacct", f'echo "$*" >> {tmp_path}/calls', monkeypatch)
    for clusters in ("cm4", ""):
        monkeypatch.setenv("SLURM_CLUSTERS", clusters)
        job_states(["9"])

    there, here = (tmp_path / "calls").read_text().splitlines()
    assert "--clusters=cm4 " in there
    assert "--clusters" not in here


def test_accounting_is_not_asked_while_squeue_knows_every_job_to_run_or_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_command(tmp_path, "squeue", f"cat {RECORDED}/squeue-22.05.txt", monkeypatch)
    install_command(tmp_path, "sacct", "echo 'nobody asked' >&2; exit 1", monkeypatch)

    jobs, complaint = job_states(["15_0", "16"])

    assert (jobs["16"].reason, complaint) == ("Resources", "")


def test_without_accounting_a_forgotten_job_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_command(
        tmp_path, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", monkeypatch
    )
    install_command(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1", monkeypatch)

    assert job_states(["9"]) == ({"9": JobState(job_id="9", state="UNKNOWN")}, "")


@pytest.mark.parametrize(
    ("sacct", "complaint"),
    [
        ("echo 'sacct: error: Connection refused' >&2; exit 1", "`sacct` failed: sacct: error: Connection refused"),
        ("exec sleep 60", "did not answer within"),
    ],
)
def test_while_accounting_does_not_answer_squeue_alone_tells_what_still_runs(
    sacct: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that squeue has forgotten is over, for MinJobAge at least; how it ended is not known."""
    install_command(tmp_path, "squeue", f"cat {RECORDED}/squeue-22.05.txt", monkeypatch)
    install_command(tmp_path, "sacct", sacct, monkeypatch)
    monkeypatch.setattr("rollpacker.launch.slurm_commands.DEADLINE_S", 2.0)

    jobs, told = job_states(["14", "15_0", "16", "99"])

    assert complaint in told
    assert (jobs["14"].state, jobs["14"].exit_code) == ("FAILED", 3)
    assert [jobs[job_id].is_over for job_id in ("15_0", "16", "99")] == [False, False, True]
    assert jobs["99"].state == "UNKNOWN"


def test_a_controller_that_does_not_answer_has_not_forgotten_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_command(tmp_path, "squeue", "echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1", monkeypatch)
    install_command(tmp_path, "sacct", "true", monkeypatch)

    with pytest.raises(WorldError, match="Socket timed out"):
        job_states(["9"])


def test_nothing_is_asked_about_no_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert job_states([]) == ({}, "")


def test_what_a_sites_own_commands_say_beside_their_rows_is_no_job() -> None:
    banner = "** maintenance tomorrow **\n\n| see | the | web |\n"
    assert list(parse_squeue(f"{banner}{_squeue_row('7', '7', 'RUNNING')}\n")) == ["7"]
    assert list(parse_sacct(f"{banner}{_sacct_row('7', '7', 'COMPLETED')}\n")) == ["7"]
