"""Values survive the way through a word of the command line, and advice on a word can be followed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rollpacker.config.compose import compose
from rollpacker.config.entry_names import escaped, word_below
from rollpacker.config.multirun import compose_sweep, point_names
from rollpacker.config.words import in_hydra, key_of, quoted
from rollpacker.core.errors import ConfigError

INPUTS = ["model.path=m", "data.path=p.jsonl"]
TEXTS = [
    "verl",
    "a b",
    "it's",
    'say "x"',
    "true",
    "null",
    "12",
    "x,y",
    "a\\",
    "",
    "[1]",
    "k=v",
    "a:b",
    "ü",
    r"\boxed{}",
]


def test_numbers_of_numpy_are_numbers() -> None:
    assert [in_hydra(each) for each in (np.float64(1e-3), np.float32(0.5), np.int64(3))] == ["0.001", "0.5", "3"]


@pytest.mark.parametrize("value", [None, True, 3, -0.5, 1e-6, *TEXTS])
def test_a_value_reaches_the_configuration_as_it_is(value: object) -> None:
    word = f"key={in_hydra([value, {'name': value}])}"
    parsed = OverridesParser.create().parse_override(word)
    found = json.loads(json.dumps(parsed.value(), default=lambda text: text.text))
    assert found == [value, {"name": value}]


@pytest.mark.parametrize("name", ["a:b", "a b", "x,y", "k=v", "[1]", "{a}", r"a\b"])
def test_a_name_with_signs_of_hydras_own_stays_as_it_is(name: str) -> None:
    assert compose([*INPUTS, f"data.domain_weights={in_hydra({name: 1})}"]).data.domain_weights == {name: 1}


@pytest.mark.parametrize("name", ["é", "1", "true", ""])
def test_a_name_that_hydra_cannot_read_is_refused_with_a_way_round(name: str) -> None:
    with pytest.raises(ConfigError, match="config=FILE"):
        in_hydra({name: 1})


@pytest.mark.parametrize("name", ["a b", r"back\slash", "it's", 'say "x"', "a${run.seed}b", r"\${now}", "end\\"])
def test_a_path_of_any_signs_is_the_same_path_as_the_value_of_a_word(name: str) -> None:
    assert compose([*INPUTS, f"run.dir={quoted(Path(name))}"]).run.dir == Path(name)


@pytest.mark.parametrize(
    "text", [r"Think, and put it in \boxed{}.", "it's here, and", 'a "quoted" one,', "end}, \\", "{x,"]
)
def test_the_advice_on_quotes_gives_the_text_that_was_meant(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose([*INPUTS, f"data.prompt_suffix={text}"])
    (word,) = shlex.split(caught.value.remedy.removeprefix("Write "))
    assert compose([*INPUTS, word]).data.prompt_suffix == text


def test_a_list_that_cannot_be_read_is_not_advised_to_become_a_text() -> None:
    with pytest.raises(ConfigError, match="Quote the texts in it"):
        compose(["model.path=m", "data.path=[it's.jsonl, b.jsonl]"])


def test_the_key_of_a_word_has_no_prefix_of_hydra() -> None:
    assert [key_of(word) for word in ("run.dir=x", "+run.dir=x", "++run.dir=x", "~run.dir")] == ["run.dir"] * 4


DOMAINS = [
    "math",
    "openai/gsm8k",
    "Counting & Probability",
    "é",
    "a.b",
    "a=b",
    "it's",
    r"a\b",
    'say "x"',
    "a${x}",
    "1x",
    "007",
    "$$math",
    "b$$c",
    "$$a$ff",
]


@pytest.mark.parametrize("name", DOMAINS)
def test_a_domain_of_any_signs_is_set_by_the_word_that_messages_advise(name: str) -> None:
    (word,) = shlex.split(word_below("data.domain_weights", name, "2"))
    assert compose([*INPUTS, word]).data.domain_weights == {name: 2}


def test_a_name_in_a_file_or_in_braces_is_as_it_was_given(tmp_path: Path) -> None:
    weights = {"$$math": 1.0, "math": 2.0, "b$$c": 3.0, "bc": 4.0}
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps({"data": {"domain_weights": weights}}))
    assert compose([*INPUTS, f"config={file}"]).data.domain_weights == weights
    braces = ",".join(f"{name}: {weight:g}" for name, weight in weights.items())
    assert compose([*INPUTS, f"data.domain_weights={{{braces}}}"]).data.domain_weights == weights


def test_a_word_that_was_copied_from_what_hydra_composed_means_the_same() -> None:
    word = escaped('data.domain_weights."a b"=2', ["data.domain_weights"])
    assert word == "data.domain_weights.$$a$20b=2"
    assert compose([*INPUTS, word]).data.domain_weights == {"a b": 2}


def test_a_domain_without_an_equals_sign_needs_no_quotes_of_its_own() -> None:
    words = ["data.domain_weights.openai/gsm8k=2", "reward=math", "reward.domains.Counting & Probability=math"]
    config = compose([*INPUTS, *words])
    assert config.data.domain_weights == {"openai/gsm8k": 2}
    assert config.reward.domains == {"Counting & Probability": "math"}


@pytest.mark.parametrize("value", ["x", "1,2", "a b", "]"])
def test_a_wrong_value_of_a_domain_is_refused_with_the_name_as_it_was_given(value: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.domain_weights\.openai/gsm8k="):
        compose([*INPUTS, f"data.domain_weights.openai/gsm8k={value}"])


def test_points_of_a_multirun_name_a_domain_as_it_was_given() -> None:
    points = compose_sweep([*INPUTS, "data.domain_weights.openai/gsm8k=1,2"]).points
    assert point_names(points) == ("data.domain_weights.openai/gsm8k=1", "data.domain_weights.openai/gsm8k=2")
