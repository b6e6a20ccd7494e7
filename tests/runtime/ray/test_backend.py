"""What the real backend says of its start, without a Ray."""

import asyncio

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.ids import EngineId
from rollpacker.runtime.ray.backend import _actors_in_words, _weight_sync
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.scripted import ScriptedEngine, confirm, never_confirm

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


def test_an_evaluation_waits_for_a_slow_disk_and_not_for_an_engine_that_never_reads_its_model():
    config = compose(["run.dir=r", "model.path=m", "data.path=d", "placement=none", "reward=math", *EVALUATION])
    deadline_s = config.backend.deadlines.weight_sync_s

    async def read_slowly(weights):
        await asyncio.sleep(deadline_s / 3)
        return weights.checksum

    readings = {"first": confirm, "second": confirm, "slow": read_slowly, "hangs": never_confirm}
    engines = {
        EngineId(name): ScriptedEngine(name, lambda _: None, on_weights=reading) for name, reading in readings.items()
    }
    published = run_in_virtual_time(_weight_sync(config, None).publish(engines))
    assert published.lost.keys() == {"hangs"}
    assert published.time_s < deadline_s
