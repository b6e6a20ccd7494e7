"""A word that names nothing is answered with what to write instead where that is known, and otherwise with no guess."""

from __future__ import annotations

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError

RUN = ["model.path=m", "data.path=d", "run.dir=r"]


def mistake_of(word: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        compose([*RUN, word])
    return caught.value


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("cluster.time=30", "cluster.time_limit_min"),
        ("cluster.walltime=30", "cluster.time_limit_min"),
        ("cluster.nodes=4", "cluster.num_nodes"),
        ("cluster.gpus=8", "cluster.gpus_per_node"),
        ("cluster.gres=1", "cluster.gpus_per_node"),
        ("cluster.cpus=8", "cluster.cpus_per_node"),
        ("cluster.cpus_per_task=8", "cluster.cpus_per_node"),
        ("cluster.mem=64", "cluster.memory_gb_per_node"),
        ("cluster.reservation=x", "cluster.sbatch.reservation"),
        ("cluster.mail_user=me", "cluster.sbatch.mail-user"),
        ("cluster={exclude: x}", "cluster.sbatch.exclude"),
        ("time=30", "cluster.time_limit_min"),
        ("nodes=4", "cluster.num_nodes"),
    ],
)
def test_what_slurm_calls_otherwise_is_answered_with_our_key(word: str, key: str) -> None:
    assert mistake_of(word).remedy == f"Write {key}=..."


def test_what_may_be_an_option_of_sbatch_is_answered_with_where_these_are() -> None:
    listed = "`rollpacker train --help cluster` lists its keys."
    assert mistake_of("cluster.wckey=me").remedy == (
        f"Write cluster.sbatch.wckey=... if it is an option of sbatch; {listed}"
    )


def test_an_option_of_sbatch_that_is_set_anyway_is_to_be_left_out() -> None:
    error = mistake_of("cluster.ntasks=4")
    assert (error.allowed, error.remedy) == ("RollPacker sets this option of sbatch itself.", "Leave it out.")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("reward=my.py:score", "Write reward.function=my.py:score"),
        ("reward=mine.rewards:score", "Write reward.function=mine.rewards:score"),
        ("reward=my.py", "Write reward.function=my.py:NAME"),
        ("reward=http://a:1/b", "Write reward.url=http://a:1/b"),
        ("reward=mth", "Write reward=math."),
        ("hardware=rtx", "Choose one of them."),
    ],
)
def test_an_option_that_a_group_does_not_have_is_answered_with_what_it_may_stand_for(word: str, remedy: str) -> None:
    assert mistake_of(word).remedy == remedy


@pytest.mark.parametrize("word", ["{run.seed=1}", "[run.seed=1]", "(run.seed=1)", "'run.seed=1'", '"run.seed=1"'])
def test_what_closes_what_a_word_begins_with_is_no_part_of_its_value(word: str) -> None:
    assert mistake_of(word).remedy == "Write run.seed=1"
