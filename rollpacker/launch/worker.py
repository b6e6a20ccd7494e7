"""The program of a rollout worker: `python -m rollpacker.launch.worker RUN_DIR`, once on its node.

It reads the run's own record of its configuration, so that nothing but the folder is handed to it. Its exit code says
whether its element of the job array should queue again (`runtime.ray.elastic_node.Outcome`).
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from rollpacker.core.errors import InternalError, RollpackerError
from rollpacker.runtime.job.allocation import current_allocation


def element_here() -> str:
    """The name of this element of a job array; outside of one, of this process."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"e{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else f"e{os.getpid()}_0"


def main() -> int:
    """Serve one run; returns the exit code."""
    from rollpacker.runtime.ray.elastic_node import serve_worker

    try:
        return serve_worker(Path(sys.argv[1]), current_allocation(os.environ), element_here())
    except RollpackerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except Exception:  # noqa: BLE001 - the process boundary: an unexpected exception is our bug
        traceback.print_exc()
        return InternalError.exit_code


if __name__ == "__main__":
    sys.exit(main())
