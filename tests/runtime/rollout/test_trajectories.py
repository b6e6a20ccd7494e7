"""What is kept of trajectories: the reward of each turn with its tokens, waits for environments, and failures."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollpacker.core.commands import BeginRound, CloseEnvironment, OpenEnvironment, RoundKind, StepEnvironment
from rollpacker.core.environment_events import EnvironmentBegan, EnvironmentFailed, EnvironmentStepped
from rollpacker.core.environments import FINISHED, STOPPED
from rollpacker.core.errors import DataError
from rollpacker.core.ids import ENVIRONMENT, HELD_OUT, Domain, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.protocols.environment import (
    EnvironmentAnswer,
    EnvironmentNews,
    EnvironmentParts,
    EnvironmentReset,
    EnvironmentTurn,
)
from rollpacker.protocols.rollout import FinishReason, Prompt, Response, TokenizedPrompt, Turn, spans_after
from rollpacker.rewards.overlong import OverlongPunishment
from rollpacker.runtime.rollout.batch import Batch
from rollpacker.runtime.rollout.episodes import EnvironmentStay
from rollpacker.runtime.rollout.request_book import RequestBook
from rollpacker.runtime.rollout.trajectories import Trajectories
from rollpacker.runtime.run.rollouts import load_rollouts, save_rollouts
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.driving import driving
from tests.runtime.scripted import ScriptedEngine

REQUEST = RequestId(0, PromptId(0, "a"), 0)
ENGINE = EngineId("engine-0")
STOP_S = 20.0


class Service:
    """Answers what the test says."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[EnvironmentNews] = asyncio.Queue()
        self.asked: list[tuple[str, int]] = []
        self.seeds: list[int] = []

    def reset(self, _request: RequestId, call: int, start: EnvironmentReset) -> None:
        self.asked.append(("reset", call))
        self.seeds.append(start.seed)

    def step(self, _request: RequestId, call: int, turn: EnvironmentTurn) -> None:
        self.asked.append((turn.text, call))

    def end(self, _request: RequestId, *, has_hung: bool = False) -> None:
        self.asked.append(("end of a hang" if has_hung else "end", -1))

    async def collect(self) -> list[EnvironmentNews]:
        return [await self.answers.get()]

    async def close(self) -> None: ...


class Unreachable(Service):
    """On a node that is gone."""

    async def close(self) -> None:
        await asyncio.Event().wait()


REFUSALS = {"refused": "Change the messages.", "not extendable": "Give another template."}


def rendered(_prompt: Prompt, text: str, turn: object) -> list[int]:
    if text in REFUSALS:
        raise DataError(f"The model's chat template refuses the messages of turn {turn}.", "", REFUSALS[text])
    return [9] * len(text)


@dataclass
class World:
    """One trajectory between an engine and an environment, neither of which is there."""

    now_s: float = 0.0
    seed: int = 0
    evaluation_seed: int = 0
    service: Service = field(default_factory=Service)
    book: RequestBook = field(default_factory=RequestBook)
    told: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        prompt = Prompt(key="a", domain=Domain("d"), messages=(), text="a", reference=SimpleNamespace(text="1"))
        self.tokenized = TokenizedPrompt(prompt=prompt, token_ids=np.array([1, 2], dtype=np.int32))
        asked = SimpleNamespace(
            prompt_token_ids=self.tokenized.token_ids, max_response_tokens=30, temperature=1.0, top_p=1.0, top_k=0
        )
        sampling = SimpleNamespace(
            prompt_of=lambda _: self.tokenized,
            max_tokens_of=lambda _: asked.max_response_tokens,
            generation=lambda *_: asked,
            seed=self.seed,
            evaluation=SimpleNamespace(seed=self.evaluation_seed),
        )
        texts = SimpleNamespace(
            action=lambda turn: " ".join(map(str, turn)),
            spelled=lambda turn: " ".join(map(str, turn)),
            observation=rendered,
        )
        self.trajectories = Trajectories(
            EnvironmentParts(service=self.service, texts=texts),
            SimpleNamespace(book_of=lambda _: self.book, sampling=sampling),
            SimpleNamespace(now=lambda: self.now_s),
            self.told.append,
            pytest.fail,
            stop_s=STOP_S,
        )

    def order(self, command: Any, at_s: float) -> None:
        self.now_s = at_s
        self.trajectories.carry_out(command)

    async def answer(self, call: int, at_s: float, **answer: Any) -> None:
        await self.hear(EnvironmentAnswer(request=REQUEST, call=call, **answer), at_s)

    async def hear(self, news: EnvironmentNews, at_s: float) -> None:
        self.now_s = at_s
        self.service.answers.put_nowait(news)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def generate(self, num_tokens: int, at_s: float, reason: FinishReason = FinishReason.STOP) -> None:
        """An engine writes a turn."""
        begun = self.book.launched(REQUEST, ENGINE, at_s).begun
        before = begun.num_tokens if begun else 0
        ids = [*(begun.token_ids if begun else ()), *range(100 + before, 100 + before + num_tokens)]
        response = Response(
            request=REQUEST,
            engine=ENGINE,
            finish_reason=reason,
            token_ids=np.array(ids, dtype=np.int32),
            logprobs=np.zeros(len(ids), dtype=np.float32),
            spans=spans_after(begun.spans if begun else (), 0, len(ids)),
            queue_time_s=0.0,
            generation_time_s=0.0,
        )
        self.book.came_back(response, at_s)

    def batch(self, **more: Any) -> Batch:
        begin = BeginRound(
            round=0,
            step=0,
            kind=RoundKind.PLAIN,
            **{f"num_{what}_{each}": 1 for what in ("prompts", "responses") for each in ("launched", "needed")},
        )
        prompts = {"a": self.tokenized}
        return Batch(begin=begin, policy_version=0, began_at_s=0.0, prompts=prompts, book=self.book, **more)


@pytest.fixture
async def world():
    world = World()
    scheduler = SimpleNamespace(beside=SimpleNamespace(environments=None))
    world.trajectories.start(scheduler)
    await asyncio.sleep(0)
    yield world
    await world.trajectories.stop()


def score() -> Any:
    return SimpleNamespace(request=REQUEST)


@pytest.mark.parametrize(("epoch", "follows"), [(0, "seed"), (HELD_OUT, "evaluation_seed")])
def test_the_seed_of_an_environment_follows_that_of_the_run_and_held_out_that_of_the_evaluation_alone(epoch, follows):
    def seed_of(**seeds: int) -> int:
        world = World(**seeds)
        world.order(OpenEnvironment(request=RequestId(0, PromptId(epoch, "set/a"), 0), call=0), 0.0)
        [seed] = world.service.seeds
        return seed

    changed = {name for name in ("seed", "evaluation_seed") if seed_of(**{name: 1}) != seed_of()}
    assert changed == {follows}


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
async def test_a_last_turn_that_was_cut_is_no_whole_answer_whatever_its_environment_says(world, reason):
    world.order(OpenEnvironment(request=REQUEST, call=0), 1.0)
    await world.answer(0, 2.0, observation="go")
    world.generate(28, 3.0, reason)
    world.order(StepEnvironment(request=REQUEST, call=1), 4.0)
    await world.answer(1, 5.0, is_terminated=True)
    world.trajectories.reward(score())
    assert world.book.requests[REQUEST].response.finish_reason is reason


async def test_each_turns_reward_is_kept_with_its_tokens_and_the_waits_with_their_times(world):
    world.order(OpenEnvironment(request=REQUEST, call=0), 1.0)
    await world.answer(0, 3.0, observation="go")
    world.generate(4, 4.0)
    world.order(StepEnvironment(request=REQUEST, call=1), 5.0)
    await world.answer(1, 6.0, observation="yes", reward=0.25)
    world.generate(3, 7.0)
    world.order(StepEnvironment(request=REQUEST, call=2), 8.0)
    await world.answer(2, 12.0, reward=-1.0, is_terminated=True)
    world.order(CloseEnvironment(request=REQUEST, reason=FINISHED), 12.0)
    assert world.trajectories.reward(score()).reward == -0.75
    episode = world.book.episodes[REQUEST]
    assert episode.turns == [Turn(2, 6, 0.25), Turn(9, 12, -1.0)]
    assert (episode.waited_s, episode.num_restarts) == (2.0 + 1.0 + 4.0, 0)
    response = world.book.requests[REQUEST].response
    assert response.spans == tuple(VersionSpan(*each) for each in ((ENVIRONMENT, 2), (0, 4), (ENVIRONMENT, 3), (0, 3)))
    assert all(response.mask[turn.begin : turn.end].all() for turn in episode.turns)
    assert world.book.stays == [
        EnvironmentStay(request=REQUEST, activity=activity, began_at_s=began_s, ended_at_s=ended_s)
        for activity, began_s, ended_s in (("reset", 1.0, 3.0), ("step", 5.0, 6.0), ("step", 8.0, 12.0))
    ]
    assert [stretch.end for stretch in world.book.stretches] == ["turn"]
    assert world.book.num_continued == 0, "a turn is no move"


async def test_the_wait_for_a_process_and_a_reset_are_told_apart(world):
    began = EnvironmentBegan(request=REQUEST, call=0)
    world.order(OpenEnvironment(request=REQUEST, call=0), 1.0)
    await world.hear(began, 4.0)
    await world.answer(0, 6.0, observation="go")
    await world.hear(began, 7.0)
    assert [(stay.activity, stay.began_at_s, stay.ended_at_s) for stay in world.book.stays] == [
        ("start", 1.0, 4.0),
        ("reset", 4.0, 6.0),
    ]
    assert world.book.episodes[REQUEST].waited_s == 5.0
    assert [type(event) for event in world.told] == [EnvironmentBegan, EnvironmentStepped, EnvironmentBegan]


async def test_a_failed_attempt_counts_as_waited_and_its_turns_do_not_count(world):
    world.order(OpenEnvironment(request=REQUEST, call=0), 0.0)
    await world.answer(0, 1.0)
    world.generate(4, 2.0)
    world.order(StepEnvironment(request=REQUEST, call=1), 2.0)
    await world.answer(1, 3.0, reward=1.0)
    world.generate(1, 4.0)
    world.order(StepEnvironment(request=REQUEST, call=2), 4.0)
    world.order(CloseEnvironment(request=REQUEST, reason="environment_timeout", begins_again=True), 9.0)
    assert world.service.asked[-1] == ("end of a hang", -1)
    world.order(OpenEnvironment(request=REQUEST, call=3), 9.0)
    await world.answer(2, 9.5, reward=7.0, observation="late")
    await world.answer(3, 10.0)
    await world.answer(3, 10.5, observation="twice")
    world.generate(2, 11.0)
    world.order(StepEnvironment(request=REQUEST, call=4), 11.0)
    await world.answer(4, 12.0, failure="environment_crashed")
    episode = world.book.episodes[REQUEST]
    assert (episode.turns, episode.waited_s, episode.num_restarts) == ([], 1.0 + 1.0 + 5.0 + 1.0 + 1.0, 1)
    assert [stay.activity for stay in world.book.stays] == [
        *("reset", "step", "environment_timeout", "reset", "environment_crashed")
    ]
    assert [type(event) for event in world.told[-2:]] == [EnvironmentStepped, EnvironmentFailed]
    world.order(CloseEnvironment(request=REQUEST, reason="environment_crashed"), 12.0)
    assert (world.book.num_restarts, world.book.num_given_up) == (1, 1)
    assert [stretch.end for stretch in world.book.stretches] == ["turn", "failed"]


async def test_an_observation_that_the_chat_template_refuses_fails_its_environment_and_is_logged_once(world, caplog):
    for call, observation in ((0, "refused"), (2, "refused"), (4, "not extendable")):
        world.order(OpenEnvironment(request=REQUEST, call=call), 0.0)
        await world.answer(call, 1.0, observation="go")
        world.generate(4, 2.0)
        world.order(StepEnvironment(request=REQUEST, call=call + 1), 2.0)
        await world.answer(call + 1, 3.0, observation=observation, reward=1.0)
        world.order(CloseEnvironment(request=REQUEST, reason="environment_error", begins_again=call < 4), 3.0)
    refused = [event for event in world.told if isinstance(event, EnvironmentFailed)]
    assert refused == [EnvironmentFailed(request=REQUEST, call=call, reason="environment_error") for call in (1, 3, 5)]
    assert (world.book.num_restarts, world.book.num_given_up) == (2, 1)
    assert [stay.activity for stay in world.book.stays] == ["reset", "environment_error"] * 3
    first, second = [record.getMessage() for record in caplog.records]
    assert "The environment of r0:a@0#0 failed: " in first
    assert re.search(r"the messages of turn .*\. Change the messages, or change what the environment answers", first)
    assert "Give another template, or change" in second


async def test_one_that_is_stopped_while_its_environment_acts_is_neither_failed_nor_given_up(world):
    world.order(OpenEnvironment(request=REQUEST, call=0), 0.0)
    world.order(CloseEnvironment(request=REQUEST, reason=STOPPED), 4.0)
    assert world.service.asked[-1] == ("end", -1), "what it does takes no longer than it may"
    await world.answer(0, 5.0)
    assert world.told == []
    assert (world.book.num_restarts, world.book.num_given_up) == (0, 0)
    assert [(stay.activity, stay.ended_at_s) for stay in world.book.stays] == [(STOPPED, 4.0)]


async def test_what_over_long_shaping_takes_off_is_taken_off_the_last_turn(world):
    world.order(OpenEnvironment(request=REQUEST, call=0), 0.0)
    await world.answer(0, 0.0)
    for call, reward in ((1, 0.5), (2, 0.25)):
        world.generate(4, 1.0)
        world.order(StepEnvironment(request=REQUEST, call=call), 1.0)
        await world.answer(call, 1.0, observation="x", reward=reward, is_truncated=call == 2)
    world.trajectories.reward(score())
    batch = world.batch(overlong=OverlongPunishment(max_response_tokens=10, buffer_tokens=5, penalty=1.0))
    batch.accepted[REQUEST.prompt] = (REQUEST,)
    group = batch.group(REQUEST.prompt)
    ((first, last),) = group.turns
    assert group.rewards[0] < 0.75
    assert (first, last[:2]) == (Turn(0, 4, 0.5), (5, 9))
    assert first.reward + last.reward == pytest.approx(group.rewards[0])


async def test_episodes_under_way_move_with_their_group_and_survive_a_checkpoint(world, tmp_path):
    world.order(OpenEnvironment(request=REQUEST, call=0), 0.0)
    await world.answer(0, 1.0)
    world.generate(4, 2.0)
    world.order(StepEnvironment(request=REQUEST, call=1), 2.0)
    await world.answer(1, 3.0, reward=1.0, is_terminated=True)
    save_rollouts(tmp_path, world.book.copy())
    loaded = load_rollouts(tmp_path)
    assert loaded.episodes == world.book.episodes
    book = RequestBook()
    loaded.give([REQUEST], book)
    assert (list(book.episodes), loaded.episodes) == ([REQUEST], {})


def test_the_end_of_a_run_waits_for_environments_that_do_not_answer_no_longer_than_its_deadline():
    async def stop() -> float:
        await World(service=Unreachable()).trajectories.end_environments()
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(stop()) == STOP_S


async def test_environments_end_once_after_the_last_checkpoint_which_does_not_wait_for_them(tmp_path: Path) -> None:
    ended = []

    class Ending(Service):
        async def close(self) -> None:
            ended.append(engine.is_closed)

    engine = ScriptedEngine("engine-0", lambda _: 1)
    parts = EnvironmentParts(service=Ending(), texts=SimpleNamespace())
    async with driving(tmp_path, [engine], environments=parts) as driver:
        await driver.end_engines([engine.engine])
        assert (engine.is_closed, ended) == (True, [])
    assert ended == [True]
