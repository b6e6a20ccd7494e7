"""What the router knows of an engine of the fleet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Closing(StrEnum):
    """Why an engine gets no launch."""

    LENT = "lent"
    """Its GPUs are the trainer's until the next step."""
    RETIRING = "retiring"
    """Engines of another degree take its place."""
    ARRIVING = "arriving"
    """Others of its set are yet to join, which share what waits."""
    DRAINING = "draining"
    """Its worker is about to leave."""


@dataclass(slots=True)
class EngineFacts:
    """What an engine has."""

    policy_version: int
    kv_tokens: int
    """Capacity of its KV cache; 0 where it is not known."""
