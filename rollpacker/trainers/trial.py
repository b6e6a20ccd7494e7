"""Tries a loss and an advantage of the user's before anything starts, in a process of its own, which loads torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from rollpacker.config.sections.losses import is_own
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.sections.trainer import TrainerSection

_LIMIT_S = 60.0
"""To load torch from a slow disk, and whatever the user's module imports."""


def try_own_functions(
    section: TrainerSection, max_staleness: int, *, has_equal_groups: bool = True
) -> tuple[str, ...] | None:
    """Have a resolved section's own functions compute a few numbers; gives what its own loss reads, None without one.

    Args:
        section: With the functions.
        max_staleness: Of the tokens that are trained.
        has_equal_groups: An advantage may get a group of equal rewards, and has to take it.

    Raises:
        ConfigError: One cannot be imported, takes other parameters, raises, hangs, or returns something else; or the
            loss and the section correct nothing, and stale tokens are trained.
    """
    reads: tuple[str, ...] | None = None
    for key, source in (("loss", section.loss), ("advantage", section.advantage)):
        if source is None or not is_own(source):
            continue
        words = [source, ""] if key == "loss" else ["", source]
        answer = _answer(words if has_equal_groups else [*words, "differing"])
        if answer["problem"]:
            raise ConfigError(
                f"trainer.{key}={source} cannot be used: {answer['problem']}.",
                "See rollpacker/trainers/own_functions.py for what it takes and returns.",
                "Correct the name or the function.",
            )
        if key == "advantage":
            continue
        reads = tuple(answer["reads"])
        if max_staleness and section.mismatch == "none" and "behaviour" not in reads:
            raise ConfigError(
                f"trainer.loss={source} reads {', '.join(reads)}, with trainer.mismatch=none and "
                f"system.max_staleness={max_staleness}.",
                "Tokens of older policies are trained, whose log-probabilities are `behaviour`: without these the loss "
                "would learn from them as if the current policy had drawn them.",
                "Take `behaviour` as a parameter, or set trainer.mismatch=token_truncate.",
            )
    return reads


def _answer(words: Sequence[str]) -> Any:
    try:
        ended = subprocess.run(  # noqa: S603  (the user's own function, by name)
            [sys.executable, "-P", "-m", "rollpacker.trainers.own_functions", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        return json.loads(ended.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"problem": f"it took longer than {_LIMIT_S:g} s", "reads": []}
    except (IndexError, ValueError):
        return {"problem": f"its process ended: {(ended.stderr.strip().splitlines() or ['no word'])[-1]}", "reads": []}
