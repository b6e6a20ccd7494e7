"""`check` says what a step launches, waits for and defers."""

from __future__ import annotations

import pytest

from rollpacker.cli.run_words.rollout import batch_words, rollout_words
from rollpacker.config.compose import compose
from rollpacker.core.ids import Domain
from rollpacker.runtime.rollout.scheduling import supplied_settings

REAL = ["model.path=m", "data.path=d", "run.dir=r"]


@pytest.mark.parametrize(
    ("words", "deferred"),
    [
        (["system=rollpacker", "rollout.num_prompts=4"], "the slowest prompt is deferred\n"),
        (["system=rollpacker", "rollout.num_prompts=8"], "the 2 slower prompts are deferred\n"),
        (["system=ours", "rollout.num_prompts=2"], "the one with the longest responses so far waits for a long round"),
        (["system=ours", "rollout.num_prompts=8"], "the 3 with the longest responses so far wait for a long round"),
    ],
)
def test_one_deferred_prompt_is_one(words: list[str], deferred: str) -> None:
    config = compose([*REAL, *words])
    assert deferred in rollout_words(config, supplied_settings(config, {Domain("math"): 400}))


def test_a_batch_of_one_prompt_has_one_prompt() -> None:
    config = compose([*REAL, "system=verl", "rollout.num_prompts=1", "rollout.num_responses=2"])
    text = batch_words(config, supplied_settings(config, {Domain("math"): 400}))
    assert text == "1 prompt x 2 responses = 2 responses per step"
