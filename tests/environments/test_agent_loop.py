"""Agent loops of one's own: what they ask is all that was sampled, and what they append; or it is refused."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.config.python_names import UnusableFunction
from rollpacker.environments.agent_loop import LoopError, LoopPrompts
from rollpacker.environments.loop import Loop
from rollpacker.environments.process import Environment

PROMPT = [1, 2, 3]
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}

OWN = """
import asyncio

from rollpacker.environments.agent_loop import AgentLoopBase, AgentLoopOutput


class Base(AgentLoopBase):
    def __init__(self, appends=(7, 8), **others):
        super().__init__(**others)
        self.appends = list(appends)

    async def run(self, sampling_params, prompt_ids, **row):
        tokens, mask = list(prompt_ids), []
        while True:
            output = await self.server_manager.generate("r", prompt_ids=tokens, sampling_params=sampling_params)
            tokens, mask = tokens + output.token_ids, mask + [1] * len(output.token_ids)
            if not output.token_ids or output.token_ids[-1] == 0:
                return self.output(tokens, mask, row)
            tokens, mask = tokens + self.appends, mask + [0] * len(self.appends)

    def output(self, tokens, mask, row):
        at = len(tokens) - len(mask)
        return AgentLoopOutput(
            prompt_ids=tokens[:at], response_ids=tokens[at:], response_mask=mask, reward_score=row.get("reward")
        )


class Changes(Base):
    async def run(self, sampling_params, prompt_ids, **row):
        output = await self.server_manager.generate(prompt_ids=prompt_ids, sampling_params=sampling_params)
        try:
            await self.server_manager.generate(prompt_ids=[*prompt_ids, *output.token_ids[:-1], 99])
        except Exception:
            return self.output([*prompt_ids, *output.token_ids], [1] * len(output.token_ids), row)


class Renders(Base):
    async def run(self, sampling_params, prompt_ids, **row):
        await self.server_manager.generate(prompt_ids=[5, *prompt_ids])


class Hotter(Base):
    async def run(self, sampling_params, prompt_ids, **row):
        sampling_params["temperature"] = 2.0
        await self.server_manager.generate(prompt_ids=prompt_ids, sampling_params=sampling_params)


class Two(Base):
    async def run(self, sampling_params, prompt_ids, **row):
        await asyncio.gather(*(self.server_manager.generate(prompt_ids=prompt_ids) for _ in range(2)))


class Silent(Base):
    async def run(self, sampling_params, prompt_ids, **row):
        return None


class Raises(Base):
    async def run(self, sampling_params, prompt_ids, **row):
        raise KeyError("no such row")


class Exits(Base):
    def output(self, tokens, mask, row):
        if "reward" not in row:
            raise SystemExit(3)
        return super().output(tokens, mask, row)


class Masks(Base):
    def output(self, tokens, mask, row):
        return super().output(tokens, [0] * len(mask), row)


class Drops(Base):
    def output(self, tokens, mask, row):
        return super().output(tokens[:-1], mask[:-1], row)


class Sync:
    def run(self, sampling_params):
        pass
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("loops") / "own.py"
    file.write_text(OWN)
    (file.parent / "config.json").write_text('{"vocab_size": 100}')
    return file


def test_the_size_of_a_vocabulary_is_that_of_the_decoder_wherever_the_configuration_has_it(tmp_path):
    for text, num_words in (
        ('{"vocab_size": 9, "text_config": {"vocab_size": 8}}', 9),
        ('{"text_config": {"vocab_size": 8}}', 8),
        ('{"text_config": null}', 1 << 31),
    ):
        (tmp_path / "config.json").write_text(text)
        assert LoopPrompts(str(tmp_path), {}).num_words == num_words


def loop_of(own: Path, name: str, *, max_turns: int = 9, needs_reward: bool = True, **arguments: Any) -> Loop:
    return Loop(f"{own}:{name}", arguments, str(own.parent), {}, max_turns=max_turns, needs_reward=needs_reward)


def reset(loop: Loop, max_tokens: int = 100, **options: Any) -> list[int]:
    return loop.reset(
        options=options, messages=(), text="x", prompt_ids=PROMPT, max_tokens=max_tokens, sampling_params=PARAMS
    )[0]


def turn(*token_ids: int) -> dict[str, Any]:
    return {"text": "", "token_ids": list(token_ids), "logprobs": [-1.0] * len(token_ids), "finish_reason": "stop"}


@given(st.lists(st.lists(st.integers(1, 9), min_size=1), max_size=5), st.lists(st.integers(1, 9), max_size=4))
def test_a_trajectory_is_its_turns_and_what_the_loop_appends_and_ends_with_its_reward(own, turns, appends):
    loop = Environment(loop_of(own, "Base", appends=appends))
    start = {"options": {"reward": 0.5}, "messages": [], "text": "x", "prompt_ids": PROMPT, "sampling_params": PARAMS}
    for _ in range(2):  # a process serves one trajectory after another
        assert loop.answer({"reset": {"seed": 1, **start}})["observation"] == []
        for each in turns:
            answer = loop.answer({"step": turn(*each)})
            assert (answer["observation"], answer["terminated"]) == (appends, False)
        last = loop.answer({"step": turn(4, 0)})
        assert (last["terminated"], last["reward"]) == (True, 0.5)


def test_a_loop_is_told_that_no_further_turn_may_come_and_ends_itself(own):
    loop = loop_of(own, "Base", max_turns=2)
    reset(loop, reward=1.0)
    assert loop.step(turn(4))[:3] == ([7, 8], 0.0, False)
    assert loop.step(turn(4))[1:3] == (1.0, True)
    loop = loop_of(own, "Base")
    reset(loop, max_tokens=5, reward=1.0)
    assert loop.step(turn(4, 4, 4))[1:3] == (1.0, True), "3 tokens and 2 more leave no place for another"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Renders", "do not go on from the prompt: of 3 tokens so far, the one at 0 is 1, not 5"),
        ("Hotter", "as all of the run"),
        ("Two", "another call is under way"),
        ("Silent", "before it called `generate`"),
        ("Raises", "no such row"),
    ],
)
def test_a_loop_that_begins_with_what_no_training_could_use_is_refused(own, name: str, says: str):
    with pytest.raises((LoopError, KeyError), match=says):
        reset(loop_of(own, name))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Changes", "do not go on from what was sampled or appended: of 5 tokens so far, the one at 4 is 0, not 99"),
        ("Masks", "response_mask is not 1"),
        ("Drops", "the one at 4 is 0, not there"),
        ("Base", "gave no reward_score"),
    ],
)
def test_a_loop_that_changes_masks_or_drops_what_was_sampled_is_refused_even_if_it_catches_that(own, name, says):
    loop = loop_of(own, name)
    reset(loop)
    with pytest.raises(LoopError, match=says):
        loop.step(turn(4, 0))


@pytest.mark.parametrize("token", [-1, 100, 1 << 40])
def test_a_loop_that_appends_a_token_that_the_model_does_not_have_is_refused_and_the_next_one_runs(own, token):
    loop = loop_of(own, "Base", appends=[99, token])
    reset(loop)
    with pytest.raises(LoopError, match=f"appends token {token}; the model has tokens 0 to 99"):
        loop.step(turn(4))
    reset(loop, reward=1.0)
    assert loop.step(turn(4, 0))[1:3] == (1.0, True)


def test_a_loop_that_is_refused_or_under_way_when_its_process_ends_leaves_nothing_on_the_terminal(own, caplog):
    gc.collect()  # loops of other tests
    caplog.clear()
    refused, under_way = loop_of(own, "Renders"), loop_of(own, "Base")
    with pytest.raises(LoopError):
        reset(refused)
    reset(under_way)
    for loop in (refused, under_way):
        Environment(loop).close()
    del loop, refused, under_way
    gc.collect()
    assert caplog.text == ""


def test_a_loop_that_exits_fails_alone_and_the_next_one_runs(own):
    loop = loop_of(own, "Exits")
    reset(loop)
    with pytest.raises(LoopError, match=r"SystemExit: 3 \(own.py"):
        loop.step(turn(4, 0))
    reset(loop, reward=1.0)
    assert loop.step(turn(4, 0))[1:3] == (1.0, True)


def test_without_a_reward_of_its_own_a_loop_needs_none(own):
    loop = loop_of(own, "Base", needs_reward=False)
    reset(loop)
    assert loop.step(turn(4, 0))[1:3] == (0.0, True)


@pytest.mark.parametrize("name", ["Sync", "OWN", "base"])
def test_what_is_no_loop_is_refused_before_a_run(own, name: str):
    with pytest.raises(UnusableFunction, match=r"is no class with `async def run|has no"):
        loop_of(own, name)
