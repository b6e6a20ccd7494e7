"""The call that a job makes on each of its nodes: one validated point of a sweep, and the function that trains it.

The call is pickled as plain values and the function's name, so that it is read by whatever Python the node has, and a
requeued job runs the configuration that was validated when it was submitted. submitit makes the call of a job; as a
program, this file makes one of this machine.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from submitit.core.utils import DelayedSubmission

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import EXIT_INTERRUPTED, InternalError, RollpackerError

Task = Callable[[DictConfig], None]
"""Validates and trains one point, and prints its errors."""


class PointCall:
    """Trains one point in this process."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        self._task = task
        self._values: Mapping[str, Any] = config.model_dump(mode="json")

    @property
    def values(self) -> Mapping[str, Any]:
        """The configuration, as plain data."""
        return self._values

    def __call__(self) -> None:
        self._task(OmegaConf.create(dict(self._values)))


class PointProcess(PointCall):
    """Trains one point as all that its process does, and ends it with the exit code that the command line would have.

    submitit gives every failure the exit code 1; a SystemExit passes through it.
    """

    def __call__(self) -> None:
        try:
            super().__call__()
        except RollpackerError as error:
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except Exception:  # noqa: BLE001 - the process boundary: an unexpected exception is our bug
            traceback.print_exc()
            sys.exit(InternalError.exit_code)


if __name__ == "__main__":
    DelayedSubmission.load(sys.argv[1]).result()
