"""Held-out files: read as sets, refused where training sees their prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollpacker.config.sections.data import DataSection, PromptFile
from rollpacker.config.sections.evaluation import EvaluationSection
from rollpacker.core.errors import DataError
from rollpacker.data.held_out import check_apart, load_held_out, notes_of_suffixes
from rollpacker.data.prompts import load_prompts
from tests.data.files import write_parquet


def write(path: Path, *questions: str, **fields: Any) -> Path:
    lines = [
        {"id": f"{path.stem}-{number}", "domain": "math", "prompt": question, "ground_truth": "1"} | fields
        for number, question in enumerate(questions)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def section(*entries: Any, **keys: Any) -> EvaluationSection:
    return EvaluationSection(path=list(entries), **keys)


def test_each_file_is_a_set_named_after_it_or_as_it_says(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.jsonl", f"{name}?", "And?") for name in ("aime24", "gsm8k")]
    held_out = load_held_out(section(files[0], {"path": str(files[1]), "name": "gsm"}))
    assert {name: [prompt.text for prompt in prompts] for name, prompts in held_out.items()} == {
        "aime24": ["aime24?", "And?"],
        "gsm": ["gsm8k?", "And?"],
    }


def test_what_a_set_leaves_out_is_as_the_section_says() -> None:
    given = section("a.jsonl", {"path": "b.jsonl", "temperature": 0, "num_samples": 4}, num_samples=2, top_p=0.9)
    assert [(rule.name, rule.num_samples, rule.temperature, rule.top_p, rule.top_k) for rule in given.rules] == [
        ("a", 2, 1.0, 0.9, 0),
        ("b", 4, 0.0, 0.9, 0),
    ]


def test_a_set_that_shares_a_question_with_training_is_refused_with_both_lines(tmp_path: Path) -> None:
    trained = write(tmp_path / "train.jsonl", "What is 1 + 1?", "What is 2 + 2?", "What is 3 + 3?")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " What is\n2 + 2? "}]
    held_out = write(tmp_path / "test.jsonl", "What is 4 + 4?")
    line = {"id": "x", "domain": "math", "messages": messages, "ground_truth": "4"}
    held_out.write_text(held_out.read_text() + json.dumps(line) + "\n")
    with pytest.raises(DataError, match=r"test\.jsonl, line 2 asks what .*train\.jsonl, line 2 asks"):
        check_apart(load_prompts([PromptFile(path=trained)]), load_held_out(section(held_out)))


@pytest.mark.parametrize(
    ("suffix_of_training", "held_out_question", "suffix_of_held_out"),
    [
        ("Briefly.", "What is 2 + 2?", None),
        (None, "What is 2 + 2?", "Briefly."),
        ("Briefly.", "What is 2 + 2?", "At length."),
        ("Briefly.", "What is 2 + 2? Briefly.", None),
    ],
)
def test_a_suffix_makes_no_other_question(
    tmp_path: Path, suffix_of_training: str | None, held_out_question: str, suffix_of_held_out: str | None
) -> None:
    trained = write(tmp_path / "train.jsonl", "What is 1 + 1?", "What is 2 + 2?")
    held_out = write(tmp_path / "test.jsonl", "What is 4 + 4?", held_out_question)
    sets = load_held_out(section({"path": str(held_out), "prompt_suffix": suffix_of_held_out}))
    with pytest.raises(DataError, match=r"test\.jsonl, line 2 asks what .*train\.jsonl, line 2 asks"):
        check_apart(load_prompts([PromptFile(path=trained, prompt_suffix=suffix_of_training)]), sets)


def test_one_suffix_makes_no_question_of_another(tmp_path: Path) -> None:
    trained, held_out = write(tmp_path / "train.jsonl", "What is 1 + 1?"), write(tmp_path / "test.jsonl", "And 2 + 2?")
    sets = load_held_out(section({"path": str(held_out), "prompt_suffix": "Briefly."}))
    check_apart(load_prompts([PromptFile(path=trained, prompt_suffix="Briefly.")]), sets)


def test_sets_that_are_asked_without_the_suffix_of_training_are_noted() -> None:
    data = DataSection(path=["train.jsonl"], prompt_suffix="Briefly.")
    of_one_file = DataSection(path=[{"path": "train.jsonl", "prompt_suffix": "Briefly."}])
    given = section("a.jsonl", {"path": "b.jsonl", "prompt_suffix": "At length."})
    for each in (data, of_one_file):
        [note] = notes_of_suffixes(given, each)
        assert note.startswith("Held-out prompts of a get no prompt_suffix")
    assert notes_of_suffixes(given, DataSection(path=["train.jsonl"])) == ()
    assert notes_of_suffixes(section({"path": "a.jsonl", "prompt_suffix": "Briefly."}), data) == ()


def test_how_many_more_are_shared_is_said(tmp_path: Path) -> None:
    trained, held_out = (write(tmp_path / f"{name}.jsonl", "a", "b", "c") for name in ("train", "test"))
    with pytest.raises(DataError, match="and 2 more prompts of test are trained on"):
        check_apart(load_prompts([PromptFile(path=trained)]), load_held_out(section(held_out)))


def test_one_file_for_both_is_named_once(tmp_path: Path) -> None:
    trained = write(tmp_path / "train.jsonl", "a", "b", "c")
    with pytest.raises(DataError, match=r"data\.path and evaluation\.path both read \S*/train\.jsonl"):
        check_apart(load_prompts([PromptFile(path=trained)]), load_held_out(section(trained)))


def test_a_set_of_several_splits_is_answered_with_the_key_of_held_out_prompts(tmp_path: Path) -> None:
    for name in ("train", "test"):
        write_parquet(tmp_path / f"{name}.parquet", [{"prompt": "1 + 1 =", "ground_truth": "2"}])
    with pytest.raises(DataError) as caught:
        load_held_out(EvaluationSection(path=[tmp_path]))
    assert caught.value.remedy == "Write evaluation.path=[{path: DIR, split: test}]"


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"prompt": "1 + 1"}, "domain: math"),
        ({"question": "1 + 1", "domain": "math"}, "columns: {prompt: question}"),
    ],
)
def test_what_a_row_lacks_is_answered_with_what_its_own_file_may_say(
    tmp_path: Path, fields: dict[str, str], settings: str
) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps(fields | {"ground_truth": "2"}) + "\n")
    with pytest.raises(DataError) as caught:
        load_held_out(section(tmp_path / "test.jsonl"))
    said = f"Add `{settings}` to the entry of {tmp_path / 'test.jsonl'} in evaluation.path"
    assert caught.value.remedy.startswith(said)
    assert "data." not in caught.value.remedy


def test_a_missing_mark_is_answered_with_the_setting_of_its_own_file(tmp_path: Path) -> None:
    file = write(tmp_path / "test.jsonl", "1 + 1")
    with pytest.raises(DataError) as caught:
        load_held_out(section({"path": str(file), "answer_after": "####"}))
    assert "nothing after the mark answer_after='####'" in caught.value.problem
    assert "data." not in str(caught.value)


def test_sets_that_training_never_sees_pass_and_may_share_prompts_with_each_other(tmp_path: Path) -> None:
    trained = load_prompts([PromptFile(path=write(tmp_path / "train.jsonl", "a", "b"))])
    check_apart(trained, load_held_out(section(write(tmp_path / "one.jsonl", "c"), write(tmp_path / "two.jsonl", "c"))))
    check_apart(trained, {})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"path": []}, "names no file"),
        ({"path": ["a/x.jsonl", "b/x.jsonl"]}, "two sets named x"),
        ({"path": [{"path": "x.jsonl", "samples": 3}]}, "has the keys path, samples"),
        ({"path": [{"name": "x"}]}, "has the keys name"),
        ({"path": ["x.jsonl"], "temperature": 0.001}, "neither 0 nor at least 0.01"),
        ({"path": [{"path": "x.jsonl", "temperature": 0.009}]}, "neither 0 nor at least 0.01"),
        ({"path": ["x.jsonl"], "top_p": 0}, "greater than 0"),
        ({"path": ["x.jsonl"], "num_samples": 2, "pass_at": [4, 8]}, "at most 2 responses to a prompt"),
        ({"path": [{"path": "x.jsonl", "name": "a/b"}]}, "pattern"),
    ],
)
def test_settings_that_mean_nothing_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationSection(**keys)
