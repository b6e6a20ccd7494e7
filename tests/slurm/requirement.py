"""Where a machine cannot run the tests against real programs, they are skipped, or fail where they must run."""

import os
from typing import NoReturn

import pytest

VARIABLE = "ROLLPACKER_REQUIRE_SLURM"
"""Set by .ci/run: what cannot run there has not been tested at all."""


def cannot_run(reason: str) -> NoReturn:
    """Skip the test for this reason, or fail it where it must run."""
    if os.environ.get(VARIABLE):
        pytest.fail(f"{VARIABLE} is set, so this test must run, and cannot. {reason}", pytrace=False)
    pytest.skip(reason)
