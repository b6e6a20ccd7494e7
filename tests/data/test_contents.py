"""A prompt that asks something else, or is held against something else, has another checksum."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.core.ids import Domain
from rollpacker.data.contents import contents_of
from rollpacker.protocols.references import AnswerReference, CodeReference, FileLine
from rollpacker.protocols.rollout import Prompt

MATH, CODE = Domain("math"), Domain("code")
LINE = FileLine(path=Path("here.jsonl"), number=1, offset_bytes=0, num_bytes=9, digest=b"cases")
SUM = Prompt(
    key="sum",
    domain=MATH,
    messages=({"role": "user", "content": "1 + 1?"},),
    text=None,
    reference=AnswerReference(text="2"),
    row={"level": 1},
)
PROGRAM = replace(SUM, key="program", domain=CODE, reference=CodeReference(entry_point=None, packages=(), line=LINE))


@pytest.mark.parametrize(
    "change",
    [
        {"key": "total"},
        {"messages": ({"role": "user", "content": "1 + 2?"},)},
        {"text": "1 + 1?"},
        {"reference": AnswerReference(text="3")},
        {"row": {"level": 2}},
    ],
    ids=str,
)
def test_what_a_prompt_says_changes_the_checksum_of_its_domain_alone(change):
    before, after = contents_of([SUM, PROGRAM]), contents_of([replace(SUM, **change), PROGRAM])
    assert before[MATH] != after[MATH]
    assert before[CODE] == after[CODE]


@pytest.mark.parametrize(("change", "is_edited"), [({"path": Path("there.jsonl")}, False), ({"digest": b"x"}, True)])
def test_test_cases_count_and_not_where_they_lie(change, is_edited):
    moved = replace(PROGRAM, reference=replace(PROGRAM.reference, line=replace(LINE, **change)))
    assert (contents_of([moved]) != contents_of([PROGRAM])) is is_edited


def test_the_order_of_prompts_does_not_count():
    other = replace(SUM, key="total")
    assert contents_of([SUM, PROGRAM, other]) == contents_of([other, PROGRAM, SUM])


def test_edits_that_are_alike_do_not_cancel_each_other():
    pair = [replace(SUM, key=key, reference=AnswerReference(text=text)) for key, text in (("sum", "2"), ("half", "3"))]
    swapped = [replace(one, reference=other.reference) for one, other in zip(pair, reversed(pair), strict=True)]
    alike = [replace(prompt, reference=AnswerReference(text="4")) for prompt in pair]
    shouted = [replace(prompt, messages=({"role": "user", "content": "1 + 1!"},)) for prompt in pair]
    assert len({contents_of(prompts)[MATH] for prompts in (pair, swapped, alike, shouted)}) == 4
