"""Who waited for environments, as the page says it."""

from collections import Counter
from types import SimpleNamespace

import pandas as pd
import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.report.cuts import AT_LIMIT, AT_MAX_TURNS, BY_ENVIRONMENT
from rollpacker.report.environments import NUM_LONGEST, EnvironmentWaits, section
from rollpacker.report.page import render
from rollpacker.report.story import read_story
from tests.sim.test_environment import RUN
from tests.sim.test_systems import SMALL


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
    assert waits.longest[0] == (60.0, 1, "b #1", "environment_timeout")
    assert [wait[0] for wait in waits.longest[1:]] == [8.0, 7.0, 6.0, 5.0]
    assert len(waits.longest) == NUM_LONGEST


def run_of(waits, *, num_cut=(), config=None, **columns):
    steps = pd.DataFrame(
        {
            "num_turns_mean": [4.0, 8.0],
            "environment_time_mean_s": [1.0, 3.0],
            "num_responses": [3, 1],
            "num_prompts": [3, 1],
            "num_prompts_dropped": [0, 0],
            "rollout_time_s": [10.0, 20.0],
            "num_environment_restarts": [0, 1],
            "num_episodes_given_up": [0, 2],
        }
        | columns
    )
    story = SimpleNamespace(environments=waits, steps=steps, config=config or {}, num_cut=dict(num_cut))
    return SimpleNamespace(story=story)


def sentence_of(run):
    ((_, sentence),) = section([run])["environment_sentences"]
    return sentence


def test_each_kind_of_wait_has_a_row_and_the_sentence_counts_responses(waits):
    run = run_of(waits)
    assert [(activity, cells[0]) for _, activity, cells in section([run])["environment_rows"]] == [
        ("environment timeout", "1"),
        ("reset", "1"),
        ("step", "8"),
    ]
    sentence = sentence_of(run)
    assert "had 5 turns and waited 1.5 s" in sentence
    assert sentence.endswith("1 time the response began again, and 2 were given up.")


def test_prompts_that_were_dropped_and_batches_that_shrank_are_named(waits):
    config = {"rollout": {"num_prompts": 3}}
    sentence = sentence_of(run_of(waits, config=config, num_prompts_dropped=[0, 2]))
    assert sentence.endswith(
        "2 prompts were dropped because environments failed. 1 of 2 steps trained fewer than 3 prompts, the smallest "
        "batch 1."
    )
    config["system"] = {"dynamic_sampling": True}
    sentence = sentence_of(run_of(waits, config=config, num_prompts_dropped=[0, 1]))
    assert "1 prompt was dropped because environments failed or rewards were equal." in sentence


def test_what_cut_trained_responses_is_told_unless_it_was_the_limit_of_tokens(waits):
    num_cut = {"a": Counter({AT_LIMIT: 7, AT_MAX_TURNS: 1}), "b": Counter({AT_MAX_TURNS: 2, BY_ENVIRONMENT: 1})}
    sentence = sentence_of(run_of(waits, num_cut=num_cut))
    assert sentence.endswith("Trained responses: 3 ended at environment.max_turns, 1 ended by the environment.")


def test_a_run_without_environments_shows_nothing():
    nothing = EnvironmentWaits()
    nothing.add(part())
    run = SimpleNamespace(story=SimpleNamespace(environments=nothing))
    assert not any(section([run]).values())


def test_tokens_that_environments_wrote_are_said_to_be_among_the_generated_ones(tmp_path):
    pipeline.run(compose([*RUN, "system=verl", f"run.dir={tmp_path}"]))
    assert "generated, those that environments wrote too," in render([read_story(tmp_path)])
    pipeline.run(compose([*SMALL, "system=verl", f"run.dir={tmp_path / 'alone'}"]))
    assert "that environments wrote" not in render([read_story(tmp_path / "alone")])
