"""Is Megatron-core there? Answered without importing it or torch, before anything starts."""

from __future__ import annotations

import importlib.util

from rollpacker.core.errors import UserError


def check_megatron() -> None:
    """Look for Megatron-core.

    Raises:
        UserError: It is not installed.
    """
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        raise UserError(
            "trainer.name=megatron, but Megatron-core is not installed.",
            "Extra rollpacker[megatron] installs it.",
            "Install the extra, or choose trainer=fsdp.",
        )
