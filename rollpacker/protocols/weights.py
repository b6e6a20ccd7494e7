"""A policy's weights on their way from the trainer to the engines, and the checksum that proves they arrived."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """One policy version's parameters under their Hugging Face names, tied tensors once."""

    policy_version: int
    checksum: str
    """As `checksum` computes it."""
    num_bytes: int
    payload: Any
    """A mapping of name to CPU tensor, or a transport's reference to one; only the transport looks inside."""


def checksum(named_buffers: Iterable[tuple[str, memoryview]]) -> str:
    """CRC-32 over names and bytes, as eight hexadecimal digits.

    It detects a wrong, stale or torn transfer, not an attacker, and reads several GB/s. The buffers must come in
    the order of their names; both ends sort, so that neither has to trust the other's order.
    """
    crc = 0
    for name, buffer in named_buffers:
        crc = zlib.crc32(buffer, zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"
