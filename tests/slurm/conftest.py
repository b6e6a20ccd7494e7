"""Real Slurm clusters of two nodes. Each is started when a test first asks for it, and is empty when a test gets it.

A test that fails while a slurmd crashes is run once more: that of Debian 12 (22.05.8) now and then finds its memory
corrupt ("malloc(): unaligned tcache chunk detected"), whatever runs on it.
"""

from collections.abc import Iterator

import pytest
from _pytest.runner import runtestprotocol

from slurm.mini_cluster import MiniCluster
from slurm.mini_configuration import ClusterShape
from tests.e2e.conftest import inputs, made_once, plain_run  # noqa: F401  (fixtures)
from tests.slurm.requirement import require_slurm
from tests.slurm.small_runs import unbroken  # noqa: F401  (a fixture)

_clusters: list[MiniCluster] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    before = sum(cluster.num_crashes for cluster in _clusters)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    is_crashed = sum(cluster.num_crashes for cluster in _clusters) > before
    if is_crashed and any(report.failed for report in reports):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _start(shape: ClusterShape) -> Iterator[MiniCluster]:
    require_slurm(shape)
    with MiniCluster(shape) as cluster:
        _clusters.append(cluster)
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
