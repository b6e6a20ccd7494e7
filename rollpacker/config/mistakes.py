"""Several mistakes of the user as one error, so that a configuration is validated as a whole."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence

from rollpacker.core.errors import ConfigError, UserError


class SeveralMistakes(ConfigError):
    """A numbered list."""

    listed: tuple[UserError, ...] = ()


def raise_mistakes(mistakes: Sequence[UserError]) -> None:
    """Raise the mistakes together; does nothing when there are none."""
    if mistakes:
        raise combined(mistakes)


def combined(mistakes: Sequence[UserError]) -> UserError:
    """The mistake itself for one, and a list of several, each once; what a list among them has belongs to this one."""
    single = [each for one in mistakes for each in (one.listed if isinstance(one, SeveralMistakes) else (one,))]
    different = list({str(mistake): mistake for mistake in single}.values())
    if len(different) == 1:
        return different[0]
    listed = "\n".join(_as_item(number, mistake) for number, mistake in enumerate(different, start=1))
    error = SeveralMistakes(f"{len(different)} mistakes:\n{listed}")
    error.listed = tuple(different)
    return error


@contextlib.contextmanager
def collected(mistakes: list[UserError]) -> Iterator[None]:
    """Add the mistake that the block raises to the list, instead of raising it."""
    try:
        yield
    except UserError as mistake:
        mistakes.append(mistake)


def raise_interruption(error: BaseException) -> None:
    """Raise the KeyboardInterrupt in whose wake the error came; does nothing when there was none."""
    earlier = error.__context__
    while earlier is not None:
        if isinstance(earlier, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        earlier = earlier.__context__


def _as_item(number: int, mistake: UserError) -> str:
    first, *rest = [part for part in (mistake.problem, mistake.allowed, mistake.remedy) if part]
    return f"{number}. {first}" + "".join("\n" + textwrap.indent(part, "   ") for part in rest)
