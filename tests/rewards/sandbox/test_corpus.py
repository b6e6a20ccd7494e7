"""A sample of the corpus that `tests.benchmarks.grading` runs whole."""

import ast
from pathlib import Path

import pytest

from tests.benchmarks.grading import LIMIT_S
from tests.rewards.sandbox import corpus
from tests.rewards.sandbox.programs import reasons_of

NUM_EACH = 24


async def test_correct_programs_pass_and_wrong_ones_fail(tmp_path):
    programs = corpus.generate(NUM_EACH, seed=7)
    reasons = await reasons_of(tmp_path, [(each.fields, each.source) for each in programs], limits_s=(LIMIT_S,))
    assert [
        (program, reason)
        for program, reason in zip(programs, reasons, strict=True)
        if program.is_right != (reason == "correct")
    ] == []


def test_the_oracle_knows_nothing_of_what_it_tries():
    tree = ast.parse(Path(corpus.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name.startswith(("rollpacker", "tests"))]


@pytest.mark.parametrize("is_right", [True, False])
def test_the_corpus_has_every_form_and_many_kinds(is_right):
    chosen = [program for program in corpus.generate(60) if program.is_right == is_right]
    assert {program.form for program in chosen} == set(corpus.FORMS)
    assert len({program.kind for program in chosen}) > 20
