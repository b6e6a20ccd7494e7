"""Where a machine cannot run the tests against real programs, they are skipped, or fail where they must run."""

import os
from typing import NoReturn

import pytest

from slurm.mini_configuration import ClusterShape
from slurm.mini_machine import ClusterUnavailableError, require_available

VARIABLE = "ROLLPACKER_REQUIRE_SLURM"
"""Set by .ci/run: what cannot run there has not been tested at all."""


def cannot_run(reason: str) -> NoReturn:
    """Skip the test for this reason, or fail it where it must run."""
    if os.environ.get(VARIABLE):
        pytest.fail(f"{VARIABLE} is set, so this test must run, and cannot. {reason}", pytrace=False)
    pytest.skip(reason)


def require_slurm(shape: ClusterShape | None = None) -> None:
    """Skip the test, or fail it, where this machine cannot run such a cluster; None: as `ClusterShape()`."""
    try:
        require_available(shape or ClusterShape())
    except ClusterUnavailableError as error:
        cannot_run(str(error))
