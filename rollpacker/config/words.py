"""Arguments that one program passes to another: their keys, and values as Hydra reads them; and counts in sentences."""

from __future__ import annotations

import numbers
import re
from collections.abc import Sequence
from pathlib import Path

from rollpacker.core.errors import ConfigError


def key_of(word: str) -> str:
    """The key or the group of an argument, whatever Hydra's prefix is (`+`, `++` or `~`)."""
    return word.lstrip("+~").partition("=")[0]


def replaced(arguments: Sequence[str], by: Sequence[str]) -> list[str]:
    """The arguments of a program, with those of its user in place of the same keys."""
    names = set(map(key_of, by))
    return [*(each for each in arguments if "=" not in each or key_of(each) not in names), *by]


def shown(value: object) -> str:
    """A value as an argument has it, as far as it needs no quotes."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def quoted(path: Path) -> str:
    """A path as the value of an argument, whatever signs it has."""
    return in_quotes(literal(str(path)))


def literal(text: str) -> str:
    """A text in which OmegaConf looks up nothing: `${` with a backslash, and those before it twice."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def in_quotes(text: str) -> str:
    """A text in quotes as Hydra reads them: a backslash counts only before a quote."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text=text, quote=Quote.double).with_quotes()


_MAX_VALUE_CHARACTERS = 60


def shortened(text: str) -> str:
    """A text for a message; of a longer one, such as a path, the end."""
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"...{text[-_MAX_VALUE_CHARACTERS:]}"


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_PLAIN = re.compile(r"[A-Za-z_./][\w./@-]*", re.ASCII)
_NO_TEXTS = {"true", "false", "null", "nan", "inf"}


def in_hydra(value: object) -> str:
    """A value as Hydra reads it in an argument.

    Raises:
        ConfigError: A mapping has a name that Hydra cannot read there.
    """
    if value is None or isinstance(value, bool):
        return shown(value)
    if isinstance(value, numbers.Real):  # also of NumPy
        return repr(int(value) if isinstance(value, numbers.Integral) else float(value))
    if isinstance(value, dict):
        return "{" + ",".join(f"{_in_mapping(name)}:{in_hydra(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(in_hydra, value)) + "]"
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.lower() not in _NO_TEXTS else in_quotes(text)


def _in_mapping(name: object) -> str:
    """A name in a mapping, which takes no quotes."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    escaped = re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", str(name))
    try:
        found = OverridesParser.create().parse_override(f"key={{{escaped}: 0}}").value()
    except HydraException:
        found = None
    if found != {name: 0}:
        raise ConfigError(
            f"`{name}` cannot be the name of an entry in a mapping on a command line.",
            "Hydra takes there ASCII letters, digits, blanks and most signs, and no number, true, false or null.",
            "Write the mapping into a YAML file, and give it as config=FILE.",
        )
    return escaped
