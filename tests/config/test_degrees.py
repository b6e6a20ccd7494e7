"""Where larger engines can finish a round, and where not."""

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError

MODELLED = ["backend=sim", "setup=paper", "model=qwen2.5-14b", "system=ours-exact", "run.dir=runs/x"]
REAL = ["model.path=model", "data.path=prompts.jsonl", "system=verl", "system.planner=true", "engine=vllm"]
TWO = "engine.degrees=[1,2]"
TAIL = "system.escalate_tail=true"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([*MODELLED, "system.dynamic_sampling=true"], "nobody knows what is left"),
        ([*MODELLED, "engine.switch=restart"], "stand by"),
        ([*MODELLED, "elastic=sim"], "those of workers"),
        (REAL, "no larger engines"),
        ([*REAL, TWO], "What larger engines save"),
    ],
)
def test_larger_engines_that_could_not_finish_a_round_are_refused_with_the_reason(words, why):
    with pytest.raises(ConfigError, match=why) as refused:
        compose([*words, TAIL, "run.dir=runs/x"])
    assert "system.escalate_tail=false" in str(refused.value)


def test_a_modelled_run_has_every_degree_that_fits():
    assert compose([*MODELLED, TAIL]).system.escalate_tail
