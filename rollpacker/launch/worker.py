"""The program of a rollout worker: `python -m rollpacker.launch.worker RUN_DIR`, once on its node.

It reads the run's own record of its configuration, so that nothing but the folder is handed to it. Its exit code says
whether its element of the job array should queue again (`runtime.ray.elastic_node.Outcome`). One that a person starts
waits for a run until Ctrl-C, in a job or not.
"""

from __future__ import annotations

import math
import os
import sys
import traceback
from pathlib import Path

from rollpacker.core.errors import InternalError, RollpackerError, UserError
from rollpacker.runtime.job.allocation import current_allocation

ELEMENT_VARIABLE = "ROLLPACKER_ELEMENT"
"""Set by the script of a run's own array, which begins a worker again when no run takes it."""


def element_here() -> str:
    """The name of this element of a job array; outside of one, of this process."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"e{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else f"e{os.getpid()}_0"


def main() -> int:
    """Serve one run; returns the exit code."""
    if len(sys.argv) != 2:  # noqa: PLR2004  the program and the folder
        sys.stderr.write("Usage: python -m rollpacker.launch.worker RUN_DIR, where RUN_DIR is the run.dir of a run.\n")
        return UserError.exit_code
    from rollpacker.runtime.job.elastic_folder import LEASE_WAIT_S
    from rollpacker.runtime.ray.elastic_node import serve_worker

    try:
        allocation = current_allocation(os.environ)
        patience_s = LEASE_WAIT_S if ELEMENT_VARIABLE in os.environ else math.inf
        return serve_worker(Path(sys.argv[1]), allocation, element_here(), patience_s)
    except RollpackerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except Exception:  # noqa: BLE001 - the process boundary: an unexpected exception is our bug
        traceback.print_exc()
        return InternalError.exit_code


if __name__ == "__main__":
    sys.exit(main())
