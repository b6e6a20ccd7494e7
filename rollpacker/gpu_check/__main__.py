"""The process of one row: does it and writes what became of it. `python -m rollpacker.gpu_check WORK`, WORK in JSON."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from rollpacker.core.foreign_errors import failure_of
from rollpacker.gpu_check.inputs import Bench
from rollpacker.gpu_check.outcomes import NotPossible, Outcome, Refuted
from rollpacker.metrics.files import write_atomically
from rollpacker.processes.lifetimes import set_parent_death_signal


def main() -> None:
    """Do the row; a failure is an outcome like any other."""
    set_parent_death_signal(signal.SIGTERM)
    os.environ["HF_HUB_OFFLINE"] = "1"  # read by what this process and those that it starts import
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the server that forks workers must not touch a GPU
    work = json.loads(sys.argv[1])
    bench = Bench(
        folder=Path(work["folder"]),
        model=work["model"] and Path(work["model"]),
        num_gpus=work["num_gpus"],
        has_gpus=work["has_gpus"],
    )
    module, _, function = work["function"].partition(":")
    try:
        figures = asyncio.run(getattr(importlib.import_module(module), function)(bench, **work["arguments"]))
        outcome = Outcome(status="passed", figures={name: float(value) for name, value in figures.items()})
    except NotPossible as error:
        outcome = Outcome(status="not possible", why=str(error))
    except Refuted as error:
        outcome = Outcome(status="failed", why=str(error))
    except Exception as error:  # noqa: BLE001  # the process boundary
        traceback.print_exc()
        outcome = Outcome(status="failed", why=failure_of(error, "it raised").problem)
    write_atomically(Path(work["answer"]), json.dumps(asdict(outcome)).encode())


if __name__ == "__main__":
    main()
