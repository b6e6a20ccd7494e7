"""A forwarder has exactly the methods of its protocol."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, Protocol

import pytest

from rollpacker.protocols.forwarding import Forwarder


class Lamp(Protocol):
    async def light(self, brightness: float) -> str: ...

    async def douse(self) -> str: ...


class FarLamp(Forwarder):
    def __init__(self) -> None:
        super().__init__(Lamp)

    async def _call(self, method: str, *arguments: Any) -> Any:
        return f"{method}{arguments}"

    async def douse(self) -> str:
        return "here"


def test_the_methods_of_the_protocol_are_forwarded_unless_they_are_defined() -> None:
    lamp = FarLamp()
    assert asyncio.run(lamp.light(0.5)) == "light(0.5,)"
    assert asyncio.run(lamp.douse()) == "here"


@pytest.mark.parametrize("name", ["explode", "_light", "__len__"])
def test_no_other_method_is(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(FarLamp(), name)


def test_a_forwarder_can_be_copied() -> None:
    assert asyncio.run(copy.copy(FarLamp()).light(1.0)) == "light(1.0,)"
