from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollpacker.config.compose import compose, compose_score
from rollpacker.config.effects import keys_without_effect
from rollpacker.config.keys import default_tree, legal_keys
from rollpacker.config.roots import SCORE, TRAIN, conf_dir, groups, option_notes, option_summary
from rollpacker.config.schema import RunConfig

INPUTS = ["model.path=model", "data.path=prompts.jsonl"]
WHOLE = {"experiment", "setup", "variant"}
"""Groups whose options set keys of every section."""
FILES = sorted(conf_dir().rglob("*.yaml"))
OPTIONS = [(group.name, option) for group in groups(TRAIN).values() for option in group.options]


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values by dotted key; a mapping whose keys the user makes up is one value."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and f"{prefix}{name}" not in legal_keys(RunConfig):
            leaves |= _leaves(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda option: option)
def test_every_option_of_every_group_composes_and_our_experiments_set_no_key_without_effect(
    group: str, option: str
) -> None:
    judge = ["reward.judge.model.path=judge"]
    needed = {("reward", "modelled"): ["backend=sim"]} | dict.fromkeys(
        [("reward", "judge"), ("experiment", "mixed"), ("setup", "tiny")], judge
    )
    environment = ["environment=gym", "environment.env=package.module:Env"]
    needed |= {("environment", "gym"): environment[1:], ("reward", "environment"): environment}
    needed[("environment", "loop")] = ["environment.loop=package.module:Loop"]
    needed[("environment", "verifiers")] = ["environment.env=reverse-text"]
    needed[("environment", "tools")] = ["environment.tools=[package.module:tool]"]
    needed |= {(each, name): ["backend=sim"] for each, name in OPTIONS if each == "variant"}
    config = compose([*INPUTS, *needed.get((group, option), []), f"{group}={option}"])
    section = getattr(config, group, None)
    assert (getattr(section, "name", None) or option).lower() == option
    if group == "experiment":
        assert keys_without_effect(config) == ()


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda option: option)
def test_a_comment_of_a_whole_line_stands_at_the_top_where_it_describes_the_option(group: str, option: str) -> None:
    lines = (conf_dir() / group / f"{option}.yaml").read_text().splitlines()
    settings = itertools.dropwhile(lambda line: not line or line.startswith("#"), lines)
    assert group == "hardware" or not any(line.startswith("#") for line in settings)  # it has the tables of its fit


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda option: option)
def test_every_key_of_an_option_is_legal_and_repeats_no_default(group: str, option: str) -> None:
    content = yaml.safe_load((conf_dir() / group / f"{option}.yaml").read_text()) or {}
    content.pop("defaults", None)
    content.pop("hydra", None)  # the points of a multirun, which composing the experiment judges
    keys = legal_keys(RunConfig)
    for name, value in _leaves(content, "" if group in WHOLE else f"{group}.").items():
        assert name in keys
        is_repetition_meant = (
            name == f"{group}.name"
            or group in WHOLE  # an experiment pins what it needs
            or name == "elastic.job.time_limit_min"  # for the section to be there
            or (option, name) == ("none", "elastic.max_workers")  # whatever a file of one's own says
        )
        assert is_repetition_meant or value != keys[name].default, f"{name} repeats the schema's default"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(conf_dir())))
def test_every_file_begins_with_a_comment_that_says_what_it_is(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("# @package")]
    assert lines[0].startswith("# ")
    assert len(lines[0]) > len("# something")


def test_every_folder_of_conf_is_a_group_and_every_default_is_an_option() -> None:
    known = groups(TRAIN)
    assert {*known, "hydra"} == {folder.name for folder in conf_dir().iterdir() if folder.is_dir()}
    for group in (known | groups(SCORE)).values():
        assert group.default is None or group.default in group.options


def test_the_summary_of_an_option_is_the_first_sentence_of_its_file() -> None:
    assert option_summary("reward", "walk") == "The demo's own checker of worked-out arithmetic."


def test_summary_and_notes_of_an_option_are_the_whole_comment_of_its_file() -> None:
    for group in (groups(TRAIN) | groups(SCORE)).values():
        for option in group.options:
            lines = (conf_dir() / group.name / f"{option}.yaml").read_text().splitlines()
            comment = " ".join(line[1:] for line in lines if line.startswith("#") and "@package" not in line)
            told = f"{option_summary(group.name, option)} {option_notes(group.name, option)}"
            assert told.split() == comment.split(), f"{group.name}={option}"
    assert option_notes("engine", "vllm").startswith("Needs the extra rollpacker[vllm]")


def test_without_a_word_the_run_is_the_schemas_defaults_and_tail_batching() -> None:
    config = compose(INPUTS)
    defaults = default_tree(RunConfig)
    defaults["model"]["path"], defaults["data"]["path"] = "model", "prompts.jsonl"
    defaults["run"]["dir"] = str(config.run.dir)
    defaults["system"] |= {
        "name": "rollpacker",
        "batching": "tail",
        "reward": "scheduled",
        "planner": True,
        "stream": True,
    }
    defaults["model"]["shape"] = defaults["reward"]["judge"]["model"]["shape"] = None
    defaults["hardware"] = defaults["workload"] = defaults["cluster"] = defaults["environment"] = None
    defaults["elastic"]["job"] = None
    assert config == RunConfig.model_validate(defaults)


def test_the_systems_differ_in_their_scheduling_only() -> None:
    verl, rollpacker = (compose([*INPUTS, "run.dir=x", f"system={name}"]) for name in ("verl", "rollpacker"))
    assert (verl.system.batching, verl.system.reward) == ("plain", "batch")
    assert (rollpacker.system.batching, rollpacker.system.reward) == ("tail", "scheduled")
    assert verl.model_copy(update={"system": rollpacker.system}) == rollpacker


def test_a_score_needs_no_model() -> None:
    config = compose_score(["data.path=p", "responses=r", "out=o", "reward=walk"])
    assert config.reward.name == "walk"
