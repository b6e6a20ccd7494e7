"""What of a run the plan leaves as it was asked for, however its key is written."""

from __future__ import annotations

import pytest

from rollpacker.analysis.plan.question import space_of, split_arguments
from rollpacker.core.errors import ConfigError

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
    assert {degrees for fitting in found.degrees_by_gpus.values() for degrees in fitting.values()} == {(2,)}
    assert {config.trainer.tensor_parallel for config in found.bases.values()} == {1}


def test_degrees_that_are_not_given_are_searched_for_the_engines_and_chosen_for_the_trainer(tmp_path):
    found = space(tmp_path, "rollout.max_response_tokens=4096")
    assert found.degrees_by_gpus[4] == {"verl": (1, 2, 4), "rollpacker": (1, 2, 4)}
    assert {config.trainer.tensor_parallel for config in found.bases.values()} == {2}


def test_each_system_is_tried_at_its_own_degrees_where_some_share_the_gpus_with_a_judge(tmp_path):
    words = [word for word in WORDS if word != "workload=math"]
    words += ["model=qwen2.5-32b", "gpus=8", "hardware=h800", "rollout.max_response_tokens=16384"]
    question, keys = split_arguments(words[1:])
    degrees = space_of(question, keys, tmp_path / "plan")[0].degrees_by_gpus
    assert degrees[8] == {"verl": (1, 2, 4, 8), "rollpacker": (2, 4, 8)}
    with pytest.raises(ConfigError, match=r"No engine of system=rollpacker fits .* less 15\.2 GB of the judge"):
        space_of(question, [*keys, "engine.tensor_parallel=1"], tmp_path / "plan")


def test_a_judge_that_fits_at_no_degree_is_refused_with_its_own_remedy(tmp_path):
    with pytest.raises(ConfigError, match="The judge takes 15 GB of a GPU") as caught:
        space(tmp_path, "workload=judge", "hardware=cpu", "rollout.max_response_tokens=4096")
    assert "reward.judge.tensor_parallel" in caught.value.remedy


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
