"""Which GPUs engines and trainer may share.

Where they share some they take turns, so one side sleeps while the other works. Asynchronous training generates while
it trains, so nobody may sleep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.config.gpu_map import do_share
from rollpacker.config.modelled_gpus import modelled_gpus

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


def check_pools(config: RunConfig) -> None:
    """Raise `ValueError`, with a line for each part, where GPUs do not suit the run."""
    if config.backend.name == "sim":
        is_shared = not modelled_gpus(config).has_pools
        place = "backend.name=sim, whose engines and trainer take turns" if config.placement.maps is None else None
        remedy = "Set placement.engine=rest and placement.trainer=4-7, say, with engine.num_engines=null and "
        remedy += "hardware.num_nodes"
    else:
        maps = config.placement.maps
        is_shared, place = maps is not None and do_share(*maps), None
        remedy = "Choose placement=separate, or name others"
    if is_shared and config.system.is_async and config.trains:
        named = f"placement.engine={config.placement.engine} and placement.trainer={config.placement.trainer}"
        raise ValueError(
            f"system.max_staleness={config.system.max_staleness} with {place or named}.\n"
            "Engines generate while the trainer learns, so each has GPUs of its own.\n"
            f"{remedy}; or set system.max_staleness=0."
        )
