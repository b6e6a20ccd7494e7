r"""Names of a mapping's entries in keys of arguments, of any signs: reward.domains."openai/gsm8k"=math.

Hydra's grammar takes letters, digits, `_`, `-` and `$` there. Other names are escaped before Hydra reads a word, each
sign as `$` and two hexadecimal digits per byte, and unescaped in what it composed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_PLAIN = re.compile(r"[A-Za-z_][\w-]*|0|[1-9]\d*", re.ASCII)
"""Names that Hydra reads as they are."""
_PART = re.compile(r'"((?:[^"\\]|\\.)*)"(?=[.=]|$)|([^.=]*)')
"""A part of a key, in quotes, in which a backslash stands before a quote and before a backslash, or without."""
_MARK = "$$"
"""What an escaped name begins with."""


def key_below(mapping: str, name: str) -> str:
    """The key of an entry of a mapping, with the name in quotes where it needs them."""
    if _PLAIN.fullmatch(name):
        return f"{mapping}.{name}"
    inner = name.replace("\\", r"\\").replace('"', r"\"")
    return f'{mapping}."{inner}"'


def word_below(mapping: str, name: str, value: str) -> str:
    """An argument that sets an entry of a mapping, as a shell takes it."""
    return shlex.quote(f"{key_below(mapping, name)}={value}")


def escaped(word: str, mappings: Iterable[str]) -> str:
    """An argument as Hydra's grammar takes it.

    Args:
        word: In its key, below a mapping, a name in quotes has any sign, and one without all but `=` and `.`, which
            leads into the entry.
        mappings: The keys that are mappings.
    """
    for mapping in mappings:
        if found := re.match(rf"[+~]*{re.escape(mapping)}(?=\.)", word):
            end, key = found.end(), found[0]
            while word.startswith(".", end):
                part = _PART.match(word, end + 1)
                assert part is not None
                name = part[2] if part[1] is None else re.sub(r"\\(.)", r"\1", part[1])
                key, end = f"{key}.{_escaped_name(name)}", part.end()
            return key + word[end:]
    return word


def unescaped(value: object) -> object:
    """The value of a mapping that Hydra composed, with the names as they were given."""
    if isinstance(value, dict):
        return {
            _unescaped_name(name) if isinstance(name, str) else name: unescaped(each) for name, each in value.items()
        }
    return value


def unescaped_names(text: str) -> str:
    """A text with the escaped names in it as they were given."""
    return re.sub(r"\$\$(?:[\w-]|\$[0-9a-f]{2})+", lambda found: _unescaped_name(found[0]), text, flags=re.ASCII)


def _escaped_name(name: str) -> str:
    if not name or _PLAIN.fullmatch(name) or _unescaped_name(name) != name:  # the last: copied from what Hydra wrote
        return name
    return _MARK + re.sub(r"[^A-Za-z0-9_-]", lambda sign: "".join(f"${byte:02x}" for byte in sign[0].encode()), name)


def _unescaped_name(name: str) -> str:
    """What was escaped to this name; the name itself where nothing was."""
    if not name.startswith(_MARK):
        return name
    try:
        found = re.sub(
            r"(?:\$[0-9a-f]{2})+",
            lambda signs: bytes.fromhex(signs[0].replace("$", "")).decode(),
            name.removeprefix(_MARK),
        )
    except UnicodeDecodeError:
        return name
    return found if _escaped_name(found) == name else name
