"""Every benchmark says what it measures when it is asked, and refuses what it does not know."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "benchmarks"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))


def run(name, *words):
    """The exit code of a benchmark that ends before it measures."""
    argv, sys.argv = sys.argv, [f"{name}.py", *words]
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(f"tests.benchmarks.{name}", run_name="__main__")
    finally:
        sys.argv = argv
    return ended.value.code


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_answers_help_with_its_docstring_and_a_word_that_it_does_not_know_with_its_usage(name, capsys):
    assert run(name, "--help") == 0
    said = (FOLDER / f"{name}.py").read_text(encoding="utf-8").partition('"""')[2].split()
    assert " ".join(said[:5]) in " ".join(capsys.readouterr().out.split())
    assert run(name, "--no-such-option") == 2
    assert "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "word", "known"),
    [("control_plane", "tial", "tail+"), ("simulator", "qwen", "qwen2.5-7b"), ("streamed_steps", "torhc", "megatron")],
)
def test_a_benchmark_of_several_cases_names_them_when_it_is_asked_for_another(name, word, known, capsys):
    assert run(name, word) == 2
    error = capsys.readouterr().err.rpartition("error: ")[2]
    assert repr(word) in error
    assert known in error
