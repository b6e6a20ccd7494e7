"""Weights that an engine's workers cannot load."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rollpacker.transfer.sender import WeightSender

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def torn_updates() -> Iterator[None]:
    """Send the last tensor of every policy in another shape."""
    send = WeightSender.send

    def torn(sender: Any, tensors: Any) -> Any:
        *others, (name, _) = tensors
        return send(sender, [*others, (name, torch.zeros(3))])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WeightSender, "send", torn)
        yield
