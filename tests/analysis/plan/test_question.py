"""What of a run the plan leaves as it was asked for, however its key is written."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize(
    ("words", "source", "longest"),
    [
        (["workload=base"], "log-normal, median 900 tokens, sigma 1, not measured", 900 * math.exp(4.5)),
        (["workload=base", "workload.sigma=0"], "log-normal, median 900 tokens, sigma 0, not measured", 900),
        (["workload=math"], "the paper's quantiles (Fig 2a)", 16384),
        (["workload.lengths={file}"], "{file}, quantiles", 5000),
    ],
)
def test_lengths_are_said_to_be_of_the_source_that_they_are_drawn_from(tmp_path, words, source, longest):
    file = tmp_path / "quantiles.csv"
    file.write_text("p,tokens\n0.5,100\n1,5000\n")
    others = [word for word in WORDS if not word.startswith("workload=")]
    question, keys = split_arguments([*others, *(word.format(file=file) for word in words)])
    limit = "rollout.max_response_tokens=8192"
    lengths = space_of(question, [*keys, limit], tmp_path / "plan")[1]
    assert lengths.source == source.format(file=file)
    assert lengths.longest == pytest.approx(longest)
    assert not lengths.is_extrapolated


def test_a_limit_that_nobody_chose_is_replaced_by_the_longest_of_log_normal_lengths(tmp_path):
    with pytest.raises(ConfigError, match=r"longer than rollout\.max_response_tokens=256") as caught:
        space(tmp_path, "workload=base")
    assert caught.value.remedy.startswith(f"Add rollout.max_response_tokens={math.ceil(900 * math.exp(4.5))},")


def test_a_limit_that_nobody_chose_is_refused_without_a_number_where_the_lengths_are_those_of_turns(tmp_path):
    with pytest.raises(ConfigError, match=r"max_response_tokens=256 with workload\.environment\.") as caught:
        space(tmp_path, "workload=agents")
    assert caught.value.remedy.startswith("Add rollout.max_response_tokens=N,")


@pytest.mark.parametrize(("num_gpus", "fewer"), [(631, 630), (200_000_000, 620 * 161_280)])
def test_gpus_for_which_no_number_of_engines_can_be_tried_are_refused_with_the_next_smaller_one(
    tmp_path, num_gpus, fewer
):
    with pytest.raises(ConfigError, match=rf"(?s)gpus={num_gpus}\..*Write gpus={fewer}\."):
        space(tmp_path, f"gpus={num_gpus}", "rollout.max_response_tokens=4096")
