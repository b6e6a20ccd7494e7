"""The guardian ends what a run started, however the run ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rollpacker.runtime.ray import guardian

GUARDIAN = guardian.__file__

# Like Ray: a daemon with children in process groups of their own, all in one session.
FAMILY = """
import os, subprocess, sys, time
children = [subprocess.Popen(["sleep", "300"], process_group=0) for _ in range(3)]
open(sys.argv[1], "w").write(str(os.getsid(0)))
time.sleep(300)
"""


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def start_guardian(tmp_path, command):
    temp_dir = tmp_path / "private"
    temp_dir.mkdir()
    process = subprocess.Popen([sys.executable, GUARDIAN, str(temp_dir), *command], stdin=subprocess.PIPE)
    return process, temp_dir


def started_session(tmp_path):
    file = tmp_path / "session"
    wait_until(lambda: file.exists() and file.read_text())
    return int(file.read_text())


def test_a_closed_pipe_ends_every_process_of_the_session_and_removes_its_folder(tmp_path):
    process, temp_dir = start_guardian(tmp_path, [sys.executable, "-c", FAMILY, str(tmp_path / "session")])
    session = started_session(tmp_path)
    wait_until(lambda: len(guardian.processes_of_session(session)) == 4)
    process.stdin.close()
    assert process.wait(60) == 0
    assert guardian.processes_of_session(session) == []
    assert not temp_dir.exists()


def test_kill_9_of_the_run_ends_the_session_too(tmp_path):
    run = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, {GUARDIAN!r}, {str(tmp_path / "private")!r}, sys.executable, "-c",
                  {FAMILY!r}, {str(tmp_path / "session")!r}], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(300)
"""
    process = subprocess.Popen([sys.executable, "-c", run])
    session = started_session(tmp_path)
    process.kill()
    process.wait()
    wait_until(lambda: guardian.processes_of_session(session) == [])


SLURM_SIGNALS = [signal.SIGTERM, signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, *SLURM_SIGNALS])
def test_a_signal_does_not_end_the_guardian_before_its_run(tmp_path, number):
    process, _ = start_guardian(tmp_path, [sys.executable, "-c", FAMILY, str(tmp_path / "session")])
    session = started_session(tmp_path)
    process.send_signal(number)
    time.sleep(0.1)
    assert process.poll() is None
    process.stdin.close()
    process.wait(60)
    assert guardian.processes_of_session(session) == []


def test_a_command_that_fails_by_itself_gives_its_exit_status(tmp_path):
    process, temp_dir = start_guardian(tmp_path, [sys.executable, "-c", "raise SystemExit(3)"])
    assert process.wait(60) == 3
    assert not temp_dir.exists()


def test_the_children_of_the_guardian_keep_the_default_signal_handling(tmp_path):
    file = tmp_path / "handling"
    look = f"import signal; open({str(file)!r}, 'w').write(str(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL))"
    process, _ = start_guardian(tmp_path, [sys.executable, "-c", look])
    process.wait(60)
    assert file.read_text() == "True"


def test_what_slurm_sends_to_every_process_of_a_job_ends_none_of_the_session(tmp_path):
    process, _ = start_guardian(tmp_path, [sys.executable, "-c", FAMILY, str(tmp_path / "session")])
    session = started_session(tmp_path)
    wait_until(lambda: len(guardian.processes_of_session(session)) == 4)
    family = guardian.processes_of_session(session)
    for pid in family:
        for number in SLURM_SIGNALS:
            os.kill(pid, number)
    time.sleep(0.1)
    assert guardian.processes_of_session(session) == family
    process.stdin.close()
    assert process.wait(60) == 0
    assert guardian.processes_of_session(session) == []


def test_kill_9_of_the_guardian_ends_its_command(tmp_path):
    process, _ = start_guardian(
        tmp_path,
        [
            sys.executable,
            "-c",
            f"import os, time; open({str(tmp_path / 'session')!r}, 'w').write(str(os.getpid())); time.sleep(300)",
        ],
    )
    session = started_session(tmp_path)
    process.kill()
    process.wait()
    wait_until(lambda: guardian.processes_of_session(session) == [])


def test_a_session_lists_this_process():
    assert os.getpid() in guardian.processes_of_session(os.getsid(0))


def test_a_name_that_the_kernel_cut_within_a_character_hides_no_process():
    rename = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, 'обработка'.encode()); print(flush=True); time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", rename], stdout=subprocess.PIPE, start_new_session=True) as named:
        named.stdout.readline()
        assert guardian.processes_of_session(named.pid) == [named.pid]
        named.kill()
