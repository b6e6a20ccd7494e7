"""One engine of vLLM for all tests of a file: it takes some 15 s to start, and as much memory as all else together."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def _own_environment() -> Iterator[None]:
    """vLLM and its engine set variables for the processes that they start; other tests start processes, too."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
