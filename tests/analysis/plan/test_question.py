"""What of a run the plan leaves as it was asked for, however its key is written."""

from __future__ import annotations

import pytest

from rollpacker.analysis.plan.question import space_of, split_arguments

WORDS = [
    "model=qwen2.5-7b",
    "gpus=4",
    "systems=verl,rollpacker",
    "workload=math",
    "workload.num_prompts=100",
    "rollout.num_prompts=4",
    "rollout.num_responses=2",
]


def space(tmp_path, *words):
    question, keys = split_arguments([*WORDS, *words])
    return space_of(question, keys, tmp_path / "plan")[0]


@pytest.mark.parametrize("prefix", ["", "++"])
def test_a_degree_or_a_limit_that_is_given_stays_with_hydras_prefix_too(prefix, tmp_path):
    limit = "rollout.max_response_tokens=256"  # the default, which is refused where nobody gave it
    degrees = ("engine.tensor_parallel=2", "trainer.tensor_parallel=1")
    found = space(tmp_path, *(f"{prefix}{word}" for word in (limit, *degrees)))
    assert set(found.degrees_by_gpus.values()) == {(2,)}
    assert {config.trainer.tensor_parallel for config in found.bases.values()} == {1}


def test_degrees_that_are_not_given_are_searched_for_the_engines_and_chosen_for_the_trainer(tmp_path):
    found = space(tmp_path, "rollout.max_response_tokens=4096")
    assert found.degrees_by_gpus[4] == (1, 2, 4)
    assert {config.trainer.tensor_parallel for config in found.bases.values()} == {2}


@pytest.mark.parametrize(("num_responses", "varies_rho"), [(1, True), (2, False)])
def test_the_correlation_within_a_prompt_is_a_guess_where_the_file_does_not_tell_it(
    tmp_path, num_responses, varies_rho
):
    file = tmp_path / "lengths.csv"
    rows = [f"{prompt},{100 + prompt}\n" for prompt in range(16)] * num_responses
    file.write_text(f"prompt,length_tokens\n{''.join(rows)}")
    words = [word for word in WORDS if not word.startswith("workload")]
    words += [f"workload.lengths={file}", "rollout.max_response_tokens=256"]
    question, keys = split_arguments(words)
    assert space_of(question, keys, tmp_path / "plan")[0].varies_rho is varies_rho
