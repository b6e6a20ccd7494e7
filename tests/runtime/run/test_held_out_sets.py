"""What is known of the prompts of held-out sets, over attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.ids import Domain
from rollpacker.data.contents import contents_of
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt
from rollpacker.runtime.run.held_out_sets import HeldOutSets, read_sets

if TYPE_CHECKING:
    from pathlib import Path


def a_prompt(text: str) -> Prompt:
    return Prompt(key="one", domain=Domain("math"), messages=(), text=text, reference=AnswerReference(text="1"), row={})


def test_prompts_whose_first_evaluation_was_taken_back_are_those_of_the_next_one(tmp_path: Path) -> None:
    before, now = {"math": [a_prompt("before")]}, {"math": [a_prompt("now")]}
    HeldOutSets(tmp_path, before).evaluated(4)
    edited = HeldOutSets(tmp_path, now)
    assert edited.edited == {"math"}
    edited.evaluated(6)
    assert read_sets(tmp_path) == {"math": (contents_of(now["math"]), 6)}
    resumed = HeldOutSets(tmp_path, now)  # of the checkpoint of step 4
    resumed.evaluated(5)
    assert resumed.edited == set()
    assert resumed.is_as_now("math", 5)
    assert not resumed.is_as_now("math", 4)
    assert HeldOutSets(tmp_path, now).is_as_now("math", 5)
