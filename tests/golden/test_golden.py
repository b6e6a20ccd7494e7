"""Every change leaves batches, events, commands, tables and weights of the recorded runs as they are.

`python -m tests.golden` records them anew; columns that were added since are not compared.
"""

import json
from pathlib import Path

import pytest

from tests.golden import modelled, real
from tests.golden.records import differences

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str):
    return json.loads((RECORDED / f"{name}.json").read_text())


@pytest.mark.parametrize("name", modelled.RUNS)
def test_a_modelled_run_gives_the_recorded_events_commands_and_tables(name, tmp_path):
    assert list(differences(recorded(name), modelled.train(name, tmp_path))) == []


def test_a_real_run_gives_the_recorded_batches_and_updates(tmp_path):
    assert list(differences(recorded("real"), real.train(tmp_path), real.TOLERANCE)) == []


def test_a_value_that_changed_is_named_by_its_table_column_and_step():
    was = {"steps": {"tokens_trained": [10, 12], "loss": [0.5, 0.25]}}
    now = {"steps": {"tokens_trained": [10, 13], "loss": [0.5001, 0.25], "added": [1, 1]}}
    assert list(differences(was, now, 1e-3)) == ["steps.tokens_trained, step 1: 12 was recorded, 13 came"]
    assert len(list(differences(was, now))) == 2
    assert list(differences(was, {})) == [
        "steps.tokens_trained has 0 entries, not 2",
        "steps.loss has 0 entries, not 2",
    ]
