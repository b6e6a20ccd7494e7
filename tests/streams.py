"""How `make test` shares the tests among processes.

A file stays in one process, so that its tests share what its fixtures start; each process that tests Slurm has a mini
cluster of its own. What takes minutes begins first: files that wait for Slurm, and between them files that compute.
"""

from itertools import chain
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent
LONGEST = (
    *("slurm/test_time_limit.py", "engines/vllm/test_engine.py", "slurm/test_container.py", "e2e/test_runs.py"),
    *("slurm/test_ray_nodes.py", "e2e/test_elastic_runs.py", "slurm/test_elastic.py", "analysis/test_exhibits.py"),
    *("e2e/test_doors.py", "e2e/test_vllm_runs.py", "e2e/test_colocated.py"),
    *("trainers/megatron/test_megatron_trainer.py", "slurm/test_demo.py", "e2e/test_killed_engines.py"),
    *("slurm/test_preemption.py", "e2e/test_verifiers.py", "e2e/test_evaluated_runs.py", "e2e/test_judge_runs.py"),
    *("e2e/test_recipes.py", "malformed/test_sample.py", "fuzz/test_deliberate_bugs.py", "slurm/test_jobs.py"),
)
"""In this order; they take a minute or more each. While the first one makes the model that most runs train, the others
wait, but for the two after it."""


class Streams(LoadFileScheduling):
    """Hands out the files in the order of collection."""

    def __init__(self, config, log=None):
        config.option.loadscopereorder = False  # xdist would begin with the file that has the most tests
        super().__init__(config, log)


def longest_first(items):
    """Order tests for `Streams`; those of a file stay together."""
    files = {TESTS / name: [] for name in LONGEST}
    assert all(file.exists() for file in files), f"of {LONGEST}, some are not in {TESTS}"
    for item in items:
        files.setdefault(item.path, []).append(item)
    return list(chain.from_iterable(files.values()))
