"""RL post-training for shared Slurm clusters that packs long-tail rollouts (RollPacker, NSDI '26).

Read `pipeline.py` first: it is the whole RL loop on one screen. `train` and `load` are for notebooks and scripts:
`rollpacker help python`. They are imported when they are used, so that `import rollpacker` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollpacker.api import Run, load, train

__version__ = "0.1.0"

__all__ = ["Run", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    if name in {"Run", "load", "train"}:
        return getattr(import_module("rollpacker.api"), name)
    raise AttributeError(f"module 'rollpacker' has no attribute {name!r}")
