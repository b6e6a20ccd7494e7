"""What a process does in its job: rank 0 trains, the others lend their nodes to it.

The same program runs once per node. Outside Slurm, and for a modelled run, there is one process and no rank.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rollpacker.runtime.allocation import current_allocation

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


def train(config: RunConfig) -> None:
    """Train, or serve the rank that trains; see `rollpacker.pipeline.run` for what it raises."""
    from rollpacker import pipeline

    pipeline.run(config, current_allocation(os.environ))
