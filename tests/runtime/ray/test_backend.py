"""What the real backend says of its start, without a Ray."""

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.ids import EngineId
from rollpacker.runtime.ray.backend import _actors_in_words, _weight_sync
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.scripted import ScriptedEngine, never_confirm

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


def test_an_engine_that_never_reads_its_model_is_lost_while_an_evaluation_can_still_replace_it():
    config = compose(["run.dir=r", "model.path=m", "data.path=d", "placement=none", "reward=math", *EVALUATION])
    sync = _weight_sync(config, None)
    engines = {
        EngineId("reads"): ScriptedEngine("reads", lambda _: None),
        EngineId("hangs"): ScriptedEngine("hangs", lambda _: None, on_weights=never_confirm),
    }
    published = run_in_virtual_time(sync.publish(engines))
    assert published.lost.keys() == {"hangs"}
    assert published.time_s == pytest.approx(config.weight_sync.timeout_s)
    assert published.time_s < config.backend.deadlines.weight_sync_s
