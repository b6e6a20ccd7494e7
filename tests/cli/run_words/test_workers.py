"""What `check` says of rollout workers and environments."""

import pytest

from rollpacker.cli.run_words.environment import environment_words
from rollpacker.cli.run_words.workers import worker_words
from tests.sim.composed import composed

SIZE = ("setup=elastic", "run.dir=x")
REAL = ("model.path=x", "data.path=x.jsonl", "run.dir=runs/x")
SLURM = (*REAL, "elastic=slurm", "elastic.job.partition=preemptible", "elastic.max_workers=3")


@pytest.mark.parametrize(
    ("words", "is_job", "expected"),
    [
        ((*SIZE, "elastic=sim"), False, "0 to 4, with 1 engine of 2 GPUs each"),
        ((*SIZE, "elastic=sim"), False, "MODELLED: 4 nodes from the beginning to the end; an engine starts in 60 s"),
        ((*SIZE, "elastic=sim"), False, "generate for a learned time of each round, then are lent"),
        ((*SIZE, "elastic=sim", "elastic.modelled.availability=staircase"), False, "one node more every 1800 s"),
        ((*SIZE, "elastic=sim", "elastic.modelled.availability=random"), False, "up for 7200 s and away for 600 s"),
        ((*SIZE, "elastic=sim", "elastic.seeding=off"), False, "generate to the end of each round"),
        (SLURM, True, "a job array of 12 elements in preemptible, of which as many run as are of use"),
        ((*SLURM, "elastic.job.least_time_min=20"), True, "each for 240 minutes, or 20 in a gap"),
        (SLURM, False, "started by you: python -m rollpacker.launch.worker runs/x"),
    ],
)
def test_workers_their_source_and_what_the_own_engines_do_meanwhile_are_named(words, is_job, expected):
    assert expected in worker_words(composed(*words), is_job=is_job)


def test_environments_their_number_and_their_limits_are_named():
    walks = "environment.env=rollpacker.environments.walk_turns:WalkTurns"
    config = composed(*REAL, "environment=gym", walks, "environment.max_turns=7", "system=verl")
    words = environment_words(config)
    assert "WalkTurns answers up to 7 turns of a response" in words
    assert "64 at a time" in words
    assert "begins again up to 2 times" in words
    of_job = ("cluster=slurm", "cluster.environment_nodes.num_nodes=2")
    assert "of its own, on nodes of their own" in environment_words(composed(*REAL, "environment=gym", walks, *of_job))
    tools = "environment.tools=[rollpacker.environments.calculator:calculate]"
    words = environment_words(composed(*REAL, "environment=tools", tools, "system=verl"))
    assert words.startswith("tools (rollpacker.environments.calculator:calculate) answers up to 20 turns")


def test_modelled_environments_are_named_as_such_with_what_they_take():
    words = ("backend=sim", "setup=flash", "workload=agents", "system=verl", "run.dir=x")
    slow = ("workload.environment.fail_slow_share=0.01", "workload.environment.pace=batch")
    assert environment_words(composed(*words)) == (
        "MODELLED text-world: 20 turns, each answered with 100 tokens after 10 ± 10 s (normal, not below 0); a turn "
        "may take 3600 s, or begins again, up to 2 times"
    )
    said = environment_words(composed(*words, *slow))
    assert "0.01 of them stall once for 210 s more" in said
    assert said.endswith("all trajectories wait for the environments of all after each turn")
