"""The program of a rollout worker: `python -m rollpacker.launch.worker RUN_DIR`, once on its node.

It reads the run's own record of its configuration, so that nothing but the folder is handed to it. Its exit code says
whether its element of the job array should queue again (`runtime.ray.elastic_node.Outcome`).
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from rollpacker.config.record import read_record
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import InternalError, RollpackerError
from rollpacker.runtime.job.allocation import current_allocation

PATIENCE_S = 120.0
"""For the run's record; its job started before this one."""

_POLL_S = 0.5


def element_here() -> str:
    """The name of this element of a job array; outside of one, of this process."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"e{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else f"e{os.getpid()}_0"


def main() -> int:
    """Serve one run; returns the exit code."""
    from rollpacker.runtime.ray.elastic_node import Outcome, serve_worker

    run_dir = Path(sys.argv[1])
    deadline = time.monotonic() + PATIENCE_S
    while (record := read_record(run_dir)) is None:
        if time.monotonic() > deadline:
            return Outcome.NO_RUN
        time.sleep(_POLL_S)
    try:
        config = RunConfig.model_validate(record)
        config = config.model_copy(update={"run": config.run.model_copy(update={"dir": run_dir.absolute()})})
        return serve_worker(config, current_allocation(os.environ), element_here())
    except RollpackerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except Exception:  # noqa: BLE001 - the process boundary: an unexpected exception is our bug
        traceback.print_exc()
        return InternalError.exit_code


if __name__ == "__main__":
    sys.exit(main())
