"""What vLLM and its processes read from the environment: the one place that sets it, before vLLM is imported.

A process hosts one engine and ends with it, so nothing is put back. What the user has set for vLLM stays, unless the
engine would not work with it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from rollpacker.engines.vllm.lifeline import OWNER_VARIABLE

if TYPE_CHECKING:
    from rollpacker.config.sections.engine import EngineSection


def prepare_environment(section: EngineSection) -> None:
    """Set what vLLM's import and its processes look at."""
    for name, value in _defaults(section).items():
        os.environ.setdefault(name, value)
    os.environ.update(
        {
            OWNER_VARIABLE: str(os.getpid()),
            "HF_HUB_OFFLINE": "1",  # models are local directories; a lookup would hang on a cluster
            "OMP_NUM_THREADS": str(section.num_threads),
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads, which a fork would lose
        }
    )


def is_eager(section: EngineSection) -> bool:
    """Return whether the model runs uncompiled: as configured, else only without a GPU."""
    chosen = section.vllm.enforce_eager
    return not torch.cuda.is_available() if chosen is None else chosen


def _defaults(section: EngineSection) -> dict[str, str]:
    defaults = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        # idle workers wait for SIGTERM, which comes after this time: nothing is lost by not waiting the usual 5 s
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
        # threads that are bound to cores of their own starve the actors with which they share a machine
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    if not torch.cuda.is_available() and is_eager(section):
        defaults["TORCHDYNAMO_DISABLE"] = "1"  # vLLM compiles parts of its sampler even then: 7 to 30 s at first use
    return defaults
