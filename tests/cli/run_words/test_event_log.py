"""`check` says how large the event log of a run will be."""

from __future__ import annotations

import pytest

from rollpacker.cli.run_words.summary import _EVENT_BYTES
from tests.cli.conftest import run
from tests.timeline.runs import modelled_run

REAL = ["check", "model.path=model", "data.path=prompts.jsonl", "reward=math", "run.dir=x"]
SIZE = ["run.num_steps=1000", "rollout.num_prompts=40", "rollout.num_responses=5"]


def test_check_estimates_the_event_log_from_the_responses_of_all_steps(workdir, capsys) -> None:
    text = run([*REAL, *SIZE], capsys)
    assert "events: about 1 kB per response of a batch, 0.2 GB in all start" in text


def test_each_turn_of_an_environment_counts(workdir, capsys) -> None:
    (workdir / "games.py").write_text(
        "class Game:\n"
        "    def reset(self): return 'go', {}\n"
        "    def step(self, action): return 'stop', 0.0, True, False, {}\n"
    )
    words = [word for word in REAL if word != "reward=math"]
    text = run([*words, *SIZE, "environment=gym", "environment.env=games.py:Game"], capsys)
    assert "events: about 1 kB per turn of each response of a batch, 0.2 GB at one turn each" in text


@pytest.mark.parametrize("system", ["verl", "rollpacker"])
def test_the_estimate_is_of_the_size_of_what_a_run_writes(tmp_path, system) -> None:
    words = ["rollout.num_prompts=16", "rollout.num_responses=8", "run.num_steps=5", f"system={system}"]
    log = modelled_run(tmp_path / "run", *words) / "events" / "attempt-000.jsonl"
    assert 0.4 < log.stat().st_size / (5 * 16 * 8) / _EVENT_BYTES < 1.1
