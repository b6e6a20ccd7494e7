"""`check` says what a system's techniques do in a run."""

from __future__ import annotations

import pytest

from rollpacker.cli.run_words.techniques import technique_words
from rollpacker.config.compose import compose
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.sim.run_facts import ModelledRunFacts

TWO = ClusterSize(num_nodes=1, num_cpus=8, num_gpus=2)
SHARED = ["placement=colocated", "trainer=megatron", "trainer.data_parallel=2", "engine.num_engines=2"]


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["system=rollpacker", "system.stream_at=0.9"], True),
        (["system=rollpacker", "system.stream_at=0.6"], False),
        (["system=rlhfuse", "system.stream_at=0.9"], False),
    ],
)
def test_a_share_that_short_rounds_may_not_come_to_is_told(words, is_told):
    config = compose(["model.path=m", "data.path=p.jsonl", "run.dir=r", *SHARED, *words])
    text = technique_words(config, TWO)
    assert ("if the round lasts so long (a short one needs 64%)" in text) == is_told
    assert f"when {config.system.stream_at:.0%} of the requests are finished" in text


@pytest.mark.parametrize(
    ("words", "is_lent"),
    [
        (["engine.num_engines=2"], True),
        (["engine.num_engines=1", "engine.tensor_parallel=2"], False),
        (["engine.num_engines=2", "trainer.tensor_parallel=2"], False),
        (["engine.num_engines=1", "engine.tensor_parallel=2", "system.planner=true", "engine.degrees=[1,2]"], True),
    ],
    ids=str,
)
def test_a_modelled_run_is_said_to_lend_engines_only_where_it_does(words, is_lent):
    base = ["backend=sim", "model=qwen2.5-7b", "run.dir=r", "system=rlhfuse"]
    config = compose([*base, *words])
    text = technique_words(config, ModelledRunFacts(config).cluster())
    assert ("engines are lent to the trainer" in text) == is_lent
    assert ("nothing streams to the trainer" in text) is not is_lent
