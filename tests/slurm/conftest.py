"""Real Slurm clusters of two nodes. Each is started when a test first asks for it, and is empty when a test gets it."""

from collections.abc import Iterator

import pytest

from slurm.mini_cluster import MiniCluster
from slurm.mini_configuration import ClusterShape
from slurm.mini_machine import ClusterUnavailableError, require_available
from tests.e2e.conftest import inputs, made_once, plain_run  # noqa: F401  (fixtures)
from tests.slurm.requirement import cannot_run
from tests.slurm.small_runs import unbroken  # noqa: F401  (a fixture)


def _start(shape: ClusterShape) -> Iterator[MiniCluster]:
    try:
        require_available(shape)
    except ClusterUnavailableError as error:
        cannot_run(str(error))
    with MiniCluster(shape) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _running_cluster() -> Iterator[MiniCluster]:
    yield from _start(ClusterShape())


@pytest.fixture(scope="session")
def _running_terminating_cluster() -> Iterator[MiniCluster]:
    yield from _start(ClusterShape(preempt_send_user_signal=False))


@pytest.fixture
def cluster(_running_cluster: MiniCluster) -> Iterator[MiniCluster]:
    """Two nodes of 8 CPUs and 4 GPUs, accounting; a preempted job gets the signal that it asked for."""
    yield _running_cluster
    _running_cluster.reset()


@pytest.fixture
def terminating_cluster(_running_terminating_cluster: MiniCluster) -> Iterator[MiniCluster]:
    """The same, but a preempted job gets SIGTERM, whatever it asked for."""
    yield _running_terminating_cluster
    _running_terminating_cluster.reset()
