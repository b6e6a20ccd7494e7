"""Who waited for environments, as the page says it."""

from types import SimpleNamespace

import pandas as pd
import pytest

from rollpacker.report.environments import NUM_LONGEST, EnvironmentWaits, section


def part(*waits):
    columns = ("role", "activity", "subject", "step", "started_at_s", "ended_at_s")
    rows = [("engine", "generate", None, 0, 0.0, 99.0), *(("environment", *wait) for wait in waits)]
    return SimpleNamespace(intervals=pd.DataFrame(rows, columns=columns))


@pytest.fixture
def waits():
    found = EnvironmentWaits()
    found.add(part(*(("step", f"r0:a@0#{number}", 0, 1.0, 1.0 + number) for number in range(1, 9))))
    found.add(part(("reset", "r1:b@0#0", 1, 10.0, 10.5), ("environment_timeout", "r1:b@0#1", 1, 10.0, 70.0)))
    return found


def test_the_longest_waits_are_named_over_all_steps_the_longest_first(waits):
    assert waits.longest[0] == (60.0, 1, "r1:b@0#1", "environment_timeout")
    assert [wait[0] for wait in waits.longest[1:]] == [8.0, 7.0, 6.0, 5.0]
    assert len(waits.longest) == NUM_LONGEST


def test_each_kind_of_wait_has_a_row_and_the_sentence_counts_responses(waits):
    steps = pd.DataFrame(
        {
            "num_turns_mean": [4.0, 8.0],
            "environment_time_mean_s": [1.0, 3.0],
            "num_responses": [3, 1],
            "rollout_time_s": [10.0, 20.0],
            "num_environment_restarts": [0, 1],
            "num_episodes_given_up": [0, 2],
        }
    )
    run = SimpleNamespace(story=SimpleNamespace(environments=waits, steps=steps))
    shown = section([run])
    assert [(activity, cells[0]) for _, activity, cells in shown["environment_rows"]] == [
        ("environment timeout", "1"),
        ("reset", "1"),
        ("step", "8"),
    ]
    ((_, sentence),) = shown["environment_sentences"]
    assert "had 5 turns and waited 1.5 s" in sentence
    assert "1 time the response began again, and 2 were given up" in sentence


def test_a_run_without_environments_shows_nothing():
    nothing = EnvironmentWaits()
    nothing.add(part())
    run = SimpleNamespace(story=SimpleNamespace(environments=nothing))
    assert not any(section([run]).values())
