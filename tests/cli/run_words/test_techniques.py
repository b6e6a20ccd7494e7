"""`check` says what a system's techniques do in a run."""

from __future__ import annotations

import pytest

from rollpacker.cli.run_words.techniques import technique_words
from rollpacker.config.compose import compose
from rollpacker.runtime.placing.actors import ClusterSize

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
