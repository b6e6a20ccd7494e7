"""Tries a loss and an advantage of the user's before anything starts, in a process of its own, which loads torch."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rollpacker.config.sections.losses import WITHOUT_RATIO, is_own
from rollpacker.core.errors import ConfigError
from rollpacker.processes.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.sections.trainer import TrainerSection

_LIMIT_S = 60.0
"""To load torch, and whatever the user's module imports; from a slow disk it may take longer the first time."""


def try_own_functions(
    section: TrainerSection, max_staleness: int, *, has_equal_groups: bool = True
) -> tuple[str, ...] | None:
    """Have a resolved section's own functions compute a few numbers; gives what its own loss names, None without one.

    Args:
        section: With the functions.
        max_staleness: Of the tokens that are trained.
        has_equal_groups: An advantage may get a group of equal rewards, and has to take it.

    Raises:
        ConfigError: One cannot be imported, takes other parameters, raises, hangs, or returns something else; or the
            loss and the section correct for what sampled a token twice, or of stale tokens not at all.
    """
    named = {"loss": section.loss, "advantage": section.advantage}
    own = {key: source for key, source in named.items() if source is not None and is_own(source)}
    if not own:
        return None
    words = [own.get("loss", ""), own.get("advantage", "")]
    answer = _answer(words if has_equal_groups else [*words, "differing"])
    if answer["problem"]:
        suspects = [f"trainer.{key}={source}" for key, source in own.items() if answer["key"] in {key, None}]
        raise ConfigError(
            f"{' or '.join(suspects)} cannot be used: {answer['problem']}.",
            "See rollpacker/trainers/own_functions.py for what it takes and returns.",
            "Correct the name or the function.",
        )
    if "loss" not in own:
        return None
    reads = tuple(answer["reads"])
    _check_correction(section, reads, max_staleness)
    return reads


def _check_correction(section: TrainerSection, reads: Sequence[str], max_staleness: int) -> None:
    """What `check_stale_tokens` refuses of a loss of ours, of one whose parameters are these."""
    if "behaviour" in reads and section.mismatch not in WITHOUT_RATIO:
        raise ConfigError(
            f"trainer.mismatch={section.mismatch} with trainer.loss={section.loss}, which reads `behaviour`.",
            "These are the log-probabilities with which the engine sampled the tokens. The loss corrects for them, and "
            "trainer.mismatch would do so once more.",
            "Leave out trainer.mismatch, or take `proximal` as a parameter in the place of `behaviour`. A run that "
            "began with both cannot be resumed in this version: start another.",
        )
    if max_staleness and section.mismatch == "none" and "behaviour" not in reads:
        raise ConfigError(
            f"trainer.loss={section.loss} has no parameter `behaviour`, with trainer.mismatch=none and "
            f"system.max_staleness={max_staleness}.",
            "Tokens of older policies are trained, whose log-probabilities are `behaviour`: without these the loss "
            "would learn from them as if the current policy had drawn them.",
            "Take `behaviour` as a parameter, or set trainer.mismatch=token_truncate.",
        )


def _answer(words: Sequence[str]) -> Any:
    """What the process printed; `key` is None where it does not say which of the functions has the problem."""
    trial = run_program([sys.executable, "-P", "-m", "rollpacker.trainers.own_functions", *words], deadline_s=_LIMIT_S)
    if trial.exit_code is None:
        problem = (
            f"its trial took longer than {_LIMIT_S:g} s. It hangs; or torch, or what it imports itself, is loaded from "
            "a slow disk, which is faster the next time"
        )
        return {"key": None, "problem": problem}
    try:
        answer = json.loads(trial.output.splitlines()[-1])
    except (IndexError, ValueError):
        answer = None
    if isinstance(answer, dict) and answer.keys() >= {"key", "problem", "reads"}:
        return answer
    return {"key": None, "problem": f"its process ended: {trial.reason}"}
