"""Reads the held-out sets of `evaluation.path`, and refuses those that are trained on.

Invariant: no held-out prompt asks what a prompt of `data.path` asks; its score would say how well training is
remembered. What counts is the text of the user's messages, white space aside: a template or a system prompt makes no
other question of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import DataError
from rollpacker.data.prompts import load_prompts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    by_text = {_question(prompt): prompt for prompt in trained}
    for name, prompts in held_out.items():
        shared = [prompt for prompt in prompts if _question(prompt) in by_text]
        if shared:
            twin = by_text[_question(shared[0])]
            raise DataError(
                f"{_place(shared[0])} asks what {_place(twin)} asks"
                + (f", and {len(shared) - 1} more prompts of {name} are trained on, too" if len(shared) > 1 else ""),
                "Allowed: a held-out set of which training sees no prompt, or its score says what was remembered",
                "Delete them from one of the two, or name another file in evaluation.path",
            )


def _question(prompt: Prompt) -> str:
    texts = [message["content"] for message in prompt.messages if message["role"] == "user"]
    return " ".join(" ".join(texts).split())


def _place(prompt: Prompt) -> str:
    return str(prompt.line) if prompt.line is not None else f"the prompt {prompt.key!r}"
