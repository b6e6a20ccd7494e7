"""Exceptions of an engine, a trainer or a reward in words for a person: a sentence and, of ours, what to do.

Foreign ones become one line, without the escape codes and the traceback that libraries put into their texts.
"""

from __future__ import annotations

import re

from rollpacker.core.errors import EngineRaised, RollpackerError

_ESCAPE_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LONGEST = 400
"""Characters of a message that are shown; the log has all of it."""

_OUT_OF_MEMORY = "Lower trainer.max_tokens_per_microbatch or engine.max_num_seqs, or take more memory."


def failure_of(error: BaseException, what: str, log: str = "") -> EngineRaised:
    """Say that a worker failed, by which exception, and where to read more.

    Args:
        error: Of any library: only its class's name and its text count, so that it need not pickle.
        what: The beginning of the sentence, such as `trainer failed in start()`.
        log: The file that has the traceback.
    """
    if isinstance(error, RollpackerError):
        return EngineRaised(f"{what}: {error.problem}", error.allowed, error.remedy)
    kind, text = type(error).__name__, one_line(str(error))
    is_memory = isinstance(error, MemoryError) or kind == "OutOfMemoryError"  # torch's, which is no MemoryError
    return EngineRaised(
        f"{what}: {kind}{f': {text}' if text else ''}",
        f"The traceback is in {log}." if log else "",
        _OUT_OF_MEMORY if is_memory else "",
    )


def one_line(text: str) -> str:
    """The first line that says something, and what it announces, without escape codes and control characters."""
    plain = _ESCAPE_CODE.sub("", text)
    first, *rest = [line.strip() for line in plain.splitlines() if line.strip()] or [""]
    if first.endswith(":") and rest:
        first = f"{first} {rest[0]}"
    shown = "".join(character if character.isprintable() else " " for character in first)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} ..."
