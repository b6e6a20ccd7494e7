"""What the real backend says of its start, without a Ray."""

import pytest

from rollpacker.config.compose import compose
from rollpacker.runtime.ray.backend import _actors_in_words

GYM = ("environment=gym", "environment.env=my.py:Maze")
EVALUATION = ("run.num_steps=0", "evaluation.path=e")


@pytest.mark.parametrize(
    ("words", "started"),
    [
        (("reward=math",), "engines, trainer and reward"),
        (GYM, "engines and trainer"),
        (("reward=math", *EVALUATION), "engines and reward"),
        ((*GYM, *EVALUATION), "engines"),
        (("reward=judge", "reward.judge.model.path=j"), "engines, trainer and judges"),
        (
            ("reward=math", "reward.domains={qa: judge}", "reward.judge.model.path=j"),
            "engines, trainer, reward and judges",
        ),
    ],
)
def test_the_start_names_the_actors_that_the_run_has(words, started):
    config = compose(["run.dir=r", "model.path=m", "data.path=d", "placement=none", *words])
    assert _actors_in_words(config) == started
