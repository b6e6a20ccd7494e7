"""A program that runs to its end."""

import sys

import pytest

from rollpacker.processes.programs import Outcome, run_program


def run(script: str, **options) -> Outcome:
    return run_program([sys.executable, "-c", script], **{"deadline_s": 60.0, **options})


def test_what_it_says_is_read_whatever_its_bytes_are():
    outcome = run("import sys; sys.stdout.buffer.write(b'a\\xff'); sys.exit('not so\\nbut so')")
    assert outcome == Outcome(output="a\ufffd", complaint="not so\nbut so", exit_code=1)
    assert not outcome.is_success
    assert outcome.reason == "but so"


def test_one_that_says_nothing_is_known_by_its_exit_code():
    assert run("raise SystemExit(3)").reason == "exit code 3"


def test_it_cannot_wait_for_a_person_and_gets_no_other_variables():
    outcome = run("import os; print(os.environ.get('HOME')); input()", environment={})
    assert outcome.output == "None\n"
    assert outcome.reason.startswith("EOFError")


def test_one_that_does_not_end_is_killed_at_its_deadline():
    outcome = run("import time; time.sleep(1000)", deadline_s=0.2)
    assert outcome.exit_code is None
    assert outcome.reason == "nothing for 0 s"


def test_one_that_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError):
        run_program(["no-such-program"], deadline_s=1.0)
