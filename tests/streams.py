"""How `make test` shares the tests among processes.

A file stays in one process, so that its tests share what its fixtures start. All that needs the machine's mini cluster
is one unit: it begins first, since it is the longest and mostly waits, and the files that compute run beside it.
"""

from xdist.scheduler import LoadFileScheduling

CLUSTER = "tests/slurm/"


class Streams(LoadFileScheduling):
    """Hands out units of work in the order of collection."""

    def __init__(self, config, log=None):
        config.option.loadscopereorder = False  # xdist would begin with the unit that has the most tests
        super().__init__(config, log)

    def _split_scope(self, nodeid):
        return CLUSTER if nodeid.startswith(CLUSTER) else super()._split_scope(nodeid)


def longest_first(items):
    """Order tests for `Streams`; those of a file stay together."""
    return sorted(items, key=lambda item: not item.nodeid.startswith(CLUSTER))
