"""Implements the methods of a protocol by one call, for an object that stands for another one.

Invariant: exactly the public methods of the protocol are forwarded; any other name is an `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any


class Forwarder:
    """Passes the async methods of a protocol to `_call`; a subclass defines those that need more.

    A type checker sees no forwarded method: give the object the protocol's type where it is made.
    """

    def __init__(self, protocol: type) -> None:
        self._forwarded = frozenset(name for name in dir(protocol) if not name.startswith("_"))

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Carry out one method."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_") or name not in self._forwarded:
            raise AttributeError(f"{type(self).__name__} has no {name}.")
        return partial(self._call, name)
