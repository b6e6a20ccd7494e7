"""Reads the held-out sets of `evaluation.path`, and refuses those that are trained on.

Invariant: no held-out prompt asks what a prompt of `data.path` asks; its score would say how well training is
remembered. What counts is the text of the user's messages, white space aside: a template, a system prompt or a
`prompt_suffix` makes no other question of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import DataError
from rollpacker.data.prompts import load_prompts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollpacker.config.sections.data import DataSection
    from rollpacker.config.sections.evaluation import EvaluationSection
    from rollpacker.protocols.rollout import Prompt


def load_held_out(section: EvaluationSection) -> dict[str, tuple[Prompt, ...]]:
    """Read every held-out set, by its name; raises as `load_prompts` does."""
    return {rule.name: load_prompts([rule]) for rule in section.rules}


def check_apart(trained: Iterable[Prompt], held_out: Mapping[str, Sequence[Prompt]]) -> None:
    """Refuse a set that shares a prompt with those that are trained on.

    Raises:
        DataError: One does; the message names both lines.
    """
    if not held_out:
        return
    by_text = {text: prompt for prompt in trained for text in _questions(prompt) if text}
    for name, prompts in held_out.items():
        shared = [prompt for prompt in prompts if not by_text.keys().isdisjoint(_questions(prompt))]
        if shared:
            twin = next(by_text[text] for text in _questions(shared[0]) if text in by_text)
            others = f", and {len(shared) - 1} more prompts of {name} are trained on, too" if len(shared) > 1 else ""
            problem = f"{_place(shared[0])} asks what {_place(twin)} asks{others}"
            remedy = "Delete them from one of the two, or name another file in evaluation.path"
            if shared[0].line is not None and twin.line is not None and shared[0].line.path == twin.line.path:
                problem = f"data.path and evaluation.path both read {twin.line.path}"
                remedy = "Divide it into two files, or name another one in evaluation.path"
            raise DataError(
                problem,
                "Allowed: a held-out set of which training sees no prompt, or its score says what was remembered",
                remedy,
            )


def notes_of_suffixes(section: EvaluationSection, data: DataSection) -> tuple[str, ...]:
    """A note on sets that are asked without a suffix, where training has one; its scores are of another prompt."""
    bare = [rule.name for rule in section.rules if rule.prompt_suffix is None]
    if not bare or not (data.prompt_suffix or any(file.prompt_suffix for file in data.files)):
        return ()
    note = (
        f"Held-out prompts of {', '.join(bare)} get no prompt_suffix, unlike those of training: their score is that of "
        "another wording. evaluation.path=[{path: FILE, prompt_suffix: TEXT}] adds one."
    )
    return (note,)


def _questions(prompt: Prompt) -> tuple[str, str]:
    """Its text without the suffix and with it, since another file may have the suffix in its rows."""
    whole = " ".join(message["content"] for message in prompt.messages if message["role"] == "user")
    bare = whole.removesuffix(prompt.suffix)
    return " ".join(bare.split()), " ".join(whole.split())


def _place(prompt: Prompt) -> str:
    return str(prompt.line) if prompt.line is not None else f"the prompt {prompt.key!r}"
