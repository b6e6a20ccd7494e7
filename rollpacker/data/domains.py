"""Domains that settings name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rollpacker.config.entry_names import key_below
from rollpacker.config.keys import nearest
from rollpacker.core.errors import ConfigError


def refuse_unknown_domains(key: str, named: Iterable[str], domains: Collection[str], source: str) -> None:
    """Refuse a setting of a domain that no prompt has.

    Args:
        key: Of the configuration, a mapping of domains.
        named: Its domains.
        domains: Those of the prompts.
        source: Where the prompts come from, in words.

    Raises:
        ConfigError: A domain is not among those of the prompts.
    """
    for name in named:
        if name not in domains:
            close = nearest(name, domains)
            raise ConfigError(
                f"{key} names `{name}`, which no prompt in {source} has as its domain.",
                f"Its domains are {', '.join(domains)}.",
                f"Write {key_below(key, close[0])}." if close else f"Leave out {key_below(key, name)}.",
            )
