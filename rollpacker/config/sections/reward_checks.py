"""The ways to score a response, as the configuration writes them: by name, as a function, or by a URL."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from rollpacker.config.keys import nearest
from rollpacker.config.sections.base import Number, Section

OwnCheck = Literal["math", "walk", "sandbox", "judge"]
CheckKind = Literal["math", "walk", "sandbox", "judge", "modelled", "environment", "function", "url"]

_OWN_CHECKS: tuple[OwnCheck, ...] = ("math", "walk", "sandbox", "judge")

_NAME = r"[^\W\d]\w*"
NAMED_IN_PYTHON = rf"(?:.+\.py|{_NAME}(?:\.{_NAME})*):{_NAME}"
"""`FILE.py:NAME` or `PACKAGE.MODULE:NAME`: what a user has written in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One way to score a response."""

    kind: CheckKind
    source: str = ""
    """`FILE.py:NAME` or `PACKAGE.MODULE:NAME` of a function, or a URL; empty of others."""
    key: str = field(default="reward.name", compare=False)
    """Where it is configured."""

    def __str__(self) -> str:
        return self.source or self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedCheck:
    """A check and its share in the reward."""

    check: Check
    part: str = ""
    """Empty where the reward has no parts."""
    weight: float = 1.0


Scoring = tuple[WeightedCheck, ...]
"""How a response is scored: by one check, or by the weighted sum of parts."""


class RewardPart(Section):
    """A part of a reward: one of `name`, `function` and `url`, and its weight."""

    name: Literal["math", "walk", "sandbox"] | None = None
    function: str | None = None
    url: str | None = None
    weight: Number = 1.0

    def check(self, key: str) -> Check:
        """Give its check; `key` is that of the part. Raises `ValueError` where it has none, or several."""
        given = [name for name in ("name", "function", "url") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{key} has {' and '.join(given) or 'no check'}.\n"
                "A part has one check: {name: math, walk or sandbox}, {function: FILE.py:NAME} or {url: http://...}.\n"
                f"Write {key}={{name: math, weight: {self.weight:g}}}, for example."
            )
        if self.function is not None:
            return function_check(f"{key}.function", self.function)
        if self.url is not None:
            return url_check(f"{key}.url", self.url)
        assert self.name is not None
        return Check(kind=self.name, key=f"{key}.name")


def function_check(key: str, source: str) -> Check:
    """Read a function's name; raises `ValueError` where it is none."""
    if not re.fullmatch(NAMED_IN_PYTHON, source):
        raise ValueError(
            f"{_shown(key, source)} names no function.\n"
            "A function is named FILE.py:NAME or PACKAGE.MODULE:NAME.\n"
            + (f"Write {key}={source}:score, for example." if re.fullmatch(r"[^@]+\.py", source) else "Correct it.")
        )
    return Check(kind="function", source=source, key=key)


def url_check(key: str, url: str) -> Check:
    """Read a URL; raises `ValueError` where it is none, or has a password, which no request is sent with."""
    has_user = False
    try:
        parts = urlsplit(url)
        has_user = "@" in parts.netloc
        host = (parts.hostname or "").encode("idna")
        is_ascii = f"{parts.path}{parts.query}".isascii()
        is_whole = parts.scheme in {"http", "https"} and bool(host) and parts.port != 0 and is_ascii
    except ValueError:  # of a port or a host
        is_whole = False
    if has_user:
        raise ValueError(
            f"{key} has a user or a password.\n"
            "Requests are sent without, and run.dir keeps the configuration as it is.\n"
            "Write http://HOST:PORT/PATH, and have the server answer without them."
        )
    if not is_whole or re.search(r"\s", url):
        raise ValueError(
            f"{_shown(key, url)} is no URL.\n"
            "It is http://HOST:PORT/PATH, or https://..., with a port below 65536 and a path in ASCII.\n"
            "Correct it."
        )
    return Check(kind="url", source=url, key=key)


def domain_check(key: str, text: str) -> Check:
    """Read a check of any kind; raises `ValueError` where it is none."""
    if own := next((each for each in _OWN_CHECKS if each == text), None):
        return Check(kind=own, key=key)
    if ":/" in text:
        return url_check(key, text)
    if ":" in text:
        return function_check(key, text)
    close = nearest(text, _OWN_CHECKS)
    raise ValueError(
        f"{key}={text} is no check.\n"
        f"It is one of {', '.join(_OWN_CHECKS)}, or a function as FILE.py:NAME or PACKAGE.MODULE:NAME, or a URL.\n"
        + (f"Write {key}={close[0]}." if close else "Choose one of them.")
    )


def _shown(key: str, text: str) -> str:
    """A key and its value, unless that may have a password."""
    return key if "@" in text else f"{key}={text}"
