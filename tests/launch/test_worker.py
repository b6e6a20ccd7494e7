"""How the program of a rollout worker is started."""

import math
import sys

import pytest

from rollpacker.core.errors import UserError
from rollpacker.launch import worker as launched
from rollpacker.runtime.job.elastic_folder import LEASE_WAIT_S
from rollpacker.runtime.ray import elastic_node
from rollpacker.runtime.ray.elastic_node import Outcome
from tests.runtime.allocations import allocation


@pytest.mark.parametrize(
    ("is_job", "is_element"),
    [(True, True), (True, False), (False, False)],
    ids=["of the run's array", "in a job of a person", "from a shell"],
)
def test_a_worker_that_no_script_begins_again_waits_for_a_run_as_long_as_it_takes(
    tmp_path, monkeypatch, is_job, is_element
):
    if is_element:
        monkeypatch.setenv(launched.ELEMENT_VARIABLE, "4712_3")
    given = []
    monkeypatch.setattr(elastic_node, "serve_worker", lambda *words: given.append(words) or Outcome.ENDS)
    monkeypatch.setattr(launched, "current_allocation", lambda _: allocation(tmp_path) if is_job else None)
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path)])
    assert launched.main() == Outcome.ENDS
    assert given[0][3] == (LEASE_WAIT_S if is_element else math.inf)


def test_a_worker_without_a_folder_is_told_what_to_say(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["worker"])
    assert launched.main() == UserError.exit_code
    assert "rollpacker.launch.worker RUN_DIR" in capsys.readouterr().err
