"""Engines and trainer use shared GPUs in turn, also when the run leaves or an engine does not."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker import pipeline
from rollpacker.core.errors import Preempted
from rollpacker.core.ids import EngineId
from rollpacker.metrics.tables import read_table
from rollpacker.protocols.backend import Fleet
from rollpacker.runtime.job.deadline import CLOSING_S, PreemptionDeadline
from rollpacker.runtime.job.preemption import Preemption
from rollpacker.runtime.rollout.replay import replay
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.test_preemption import config_of


@dataclass
class Ground:
    """The GPUs that some engines share with the trainer, and what happened there."""

    gpus: dict[EngineId, tuple[int, ...]]
    """Of these engines."""
    awake: set[EngineId] = field(default_factory=set)
    trainer_gpus: set[int] = field(default_factory=set)
    """Where the trainer is awake."""
    story: list[str] = field(default_factory=list)
    """What all of them did, without repetitions."""

    @property
    def engines(self) -> frozenset[EngineId]:
        return frozenset(self.gpus)

    @property
    def all_gpus(self) -> set[int]:
        return {gpu for gpus in self.gpus.values() for gpu in gpus}

    def tell(self, event: str) -> None:
        if not self.story or self.story[-1] != event:
            self.story.append(event)


class _Delegate:
    def __init__(self, other: object, ground: Ground) -> None:
        self._other, self._ground = other, ground

    def __getattr__(self, name: str):
        return getattr(self._other, name)


class EngineOnGround(_Delegate):
    """A modelled engine that is awake only while the trainer is not on its GPUs."""

    def __init__(self, name: EngineId, other: object, ground: Ground) -> None:
        super().__init__(other, ground)
        self._name = name

    async def wake(self) -> None:
        assert not self._ground.trainer_gpus
        self._ground.awake.add(self._name)
        self._ground.tell("engines wake")
        await self._other.wake()

    async def sleep(self) -> None:
        assert self._name in self._ground.awake
        await self._other.sleep()
        self._ground.awake.discard(self._name)
        self._ground.tell("engines sleep")

    async def generate(self, requests) -> None:
        assert self._name in self._ground.awake
        self._ground.tell("engines generate")
        await self._other.generate(requests)

    async def close(self) -> None:
        self._ground.awake.discard(self._name)
        await self._other.close()

    async def load_weights(self, weights) -> str:
        assert self._name in self._ground.awake
        self._ground.tell("engines load weights")
        return await self._other.load_weights(weights)


class TrainerOnGround(_Delegate):
    """A modelled trainer that works only where it is awake, and is awake only where all engines sleep."""

    async def wake(self, gpus=None) -> None:
        wanted = self._ground.all_gpus if gpus is None else set(gpus)
        assert not any(wanted & set(self._ground.gpus[engine]) for engine in self._ground.awake)
        assert self._ground.trainer_gpus < wanted
        self._ground.trainer_gpus = wanted
        self._ground.tell("trainer wakes" if gpus is None else "trainer wakes on lent GPUs")

    async def sleep(self) -> None:
        assert self._ground.trainer_gpus
        self._ground.trainer_gpus = set()
        self._ground.tell("trainer sleeps")

    async def accumulate(self, groups, gpus=None) -> None:
        if gpus is None:
            self._work("trainer learns")
        else:
            assert self._ground.trainer_gpus == set(gpus)
            self._ground.tell("trainer learns on lent GPUs")
        await self._other.accumulate(groups, gpus)

    async def complete_batch(self, num_responses=None):
        self._work("trainer learns")
        await self._other.complete_batch(num_responses)

    async def finish_step(self):
        self._work("trainer learns")
        return await self._other.finish_step()

    async def save(self, folder) -> None:
        self._work("trainer saves")
        await self._other.save(folder)

    async def export_weights(self):
        self._work("trainer gives weights")
        return await self._other.export_weights()

    def _work(self, event: str) -> None:
        assert self._ground.trainer_gpus == self._ground.all_gpus
        self._ground.tell(event)


class TurnsBackend(ModelledBackend):
    """The modelled backend, some of whose engines share GPUs with a trainer that has to sleep."""

    def __init__(self, config, num_sharing: int) -> None:
        super().__init__(config)
        self._num_sharing = num_sharing
        self.ground = Ground({})

    @asynccontextmanager
    async def open(self, surroundings):
        async with super().open(surroundings) as workers:
            ((degree, fleet),) = workers.fleets.items()
            self.ground = ground = Ground(dict(list(fleet.gpus.items())[: self._num_sharing]))
            ground.trainer_gpus = ground.all_gpus
            for name in ground.engines:
                await fleet.engines[name].sleep()
            engines = {
                name: EngineOnGround(name, engine, ground) if name in ground.engines else engine
                for name, engine in fleet.engines.items()
            }
            yield replace(
                workers,
                fleets={degree: Fleet(engines=engines, gpus=fleet.gpus)},
                trainer=TrainerOnGround(workers.trainer, ground),
                colocated_engines=ground.engines,
            )


def turns(run_dir: Path, *words: str):
    return config_of(run_dir, "rollpacker", "system.planner=false", "system.stream=false", *words)


def attempt(config, num_sharing: int, *, asked_after_s: float | None = None, remaining_s: float = 0.0) -> TurnsBackend:
    """Make an attempt that is asked to leave so long after its first step began."""
    backend = TurnsBackend(config, num_sharing)

    async def train():
        loop = asyncio.get_running_loop()
        deadline = PreemptionDeadline(loop.time)
        watched = iter([True])

        def ask_later(*_):
            if asked_after_s is not None and next(watched, False):
                loop.call_later(asked_after_s, deadline.ask, "asked", loop.time() + asked_after_s + remaining_s)

        await pipeline.train(config, backend, lambda *_: ask_later, Preemption(deadline))

    with suppress(Preempted):
        run_in_virtual_time(train())
    return backend


STEP = [
    "engines generate",
    "engines sleep",
    "trainer wakes",
    "trainer learns",
    "trainer gives weights",
    "trainer sleeps",
    "engines wake",
    "engines load weights",
]


@pytest.mark.parametrize("num_sharing", [1, 4])
def test_engines_that_share_gpus_sleep_while_the_trainer_learns_and_the_others_never(tmp_path, num_sharing):
    ground = attempt(turns(tmp_path / "run"), num_sharing).ground
    assert ground.story == [*STEP[4:], *STEP * 5, *STEP[1:3], "trainer saves"]
    rows = read_table(tmp_path / "run", "intervals").to_pylist()
    assert [row["activity"] for row in rows if row["step"] == 2 and row["role"] != "engine"].count("hand_over") == 1
    assert {row["num_engines_lent"] for row in read_table(tmp_path / "run", "steps").to_pylist()} == {0}


def test_lent_engines_sleep_before_the_others_and_the_trainer_wakes_there_first(tmp_path):
    config = turns(tmp_path / "run", "system.stream=true")
    ground = attempt(config, 4).ground
    assert ground.awake == set()
    story = " > ".join(ground.story)
    lending = ["engines sleep", "trainer wakes on lent GPUs", "trainer learns on lent GPUs"]
    assert story.count(" > ".join(lending)) == config.run.num_steps
    assert story.count("trainer wakes > trainer learns > trainer gives weights") == config.run.num_steps
    steps = read_table(tmp_path / "run", "steps").to_pylist()
    assert {row["num_engines_lent"] for row in steps} == {len(ground.gpus) // 2}
    assert all(0 < row["tokens_streamed"] <= row["tokens_trained"] for row in steps)
    assert trained(tmp_path / "run") == trained_alone(tmp_path, "system.stream=true")


def trained_alone(folder: Path, *words: str) -> list[tuple[int, str, int]]:
    """What a run trains whose engines and trainer share nothing that could not be shared."""
    pipeline.run(turns(folder / "alone", *words))
    return trained(folder / "alone")


def test_for_a_checkpoint_between_two_steps_the_trainer_has_its_turn(tmp_path):
    ground = attempt(turns(tmp_path / "run", "run.checkpoint_every_steps=2"), 2).ground
    saved = [*STEP[1:3], "trainer saves"]
    assert ground.story == [*STEP[4:], *(STEP * 2 + saved + STEP[4:]) * 2, *STEP, *saved]


def trained(run_dir: Path) -> list[tuple[int, str, int]]:
    rows = read_table(run_dir, "responses").to_pylist()
    return sorted((row["step"], row["prompt"], row["sample"]) for row in rows if row["accepted"])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("unbroken") / "run"
    attempt(turns(run_dir), 2)
    return trained(run_dir), read_table(run_dir, "steps").to_pylist()[-1]["finished_at_s"]


@settings(max_examples=8)
@given(data=st.data())
def test_a_run_that_leaves_at_any_moment_of_a_turn_goes_on_where_it_was(unbroken, data):
    expected, duration_s = unbroken
    with tempfile.TemporaryDirectory() as folder:
        config = turns(Path(folder) / "run", "run.resume=auto")
        for _ in range(2):
            asked_after_s = data.draw(st.floats(0, duration_s / 2))
            remaining_s = data.draw(st.sampled_from([0.0, CLOSING_S, duration_s / 4]))
            attempt(config, 2, asked_after_s=asked_after_s, remaining_s=remaining_s)
        attempt(config, 2)
        assert trained(config.run.dir) == expected
        replay(config.run.dir)
