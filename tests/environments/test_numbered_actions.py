"""Environments of gymnasium, as they are: played in texts."""

from __future__ import annotations

import gymnasium
import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.environments.known_parameters import taking_known
from rollpacker.environments.numbered_actions import InTexts
from rollpacker.environments.process import make
from tests.environments.test_trial import try_it

LAKE = {"id": "FrozenLake-v1", "render_mode": "ansi", "is_slippery": False}


def lake() -> InTexts:
    return InTexts(gymnasium.make(**LAKE))


def said(turn: str) -> dict[str, object]:
    return {"step": {"text": turn}}


def test_a_number_in_a_turn_is_the_action_and_an_observation_is_what_is_rendered():
    env = make("gymnasium:make", LAKE)
    begun = env.answer({"reset": {"seed": 1, "options": {}}})
    assert begun["observation"].split() == ["[S]FFF", "FHFH", "FFFH", "HFFG"]
    moved = env.answer(said("From 0 I go right: 2"))
    assert moved["observation"].split() == ["(Right)", "S[F]FF", "FHFH", "FFFH", "HFFG"]
    env.close()


def test_one_that_is_delayed_is_played_in_texts_too():
    env = make("rollpacker.environments.delayed:Delayed", {"env": "gymnasium:make", "arguments": LAKE})
    begun = env.answer({"reset": {"seed": 1, "options": {}}})
    assert begun["observation"].split() == ["[S]FFF", "FHFH", "FFFH", "HFFG"]
    assert env.answer(said("I go right: 2"))["observation"].split()[:2] == ["(Right)", "S[F]FF"]


def test_an_episode_is_won_and_its_reward_is_gymnasiums():
    env = lake()
    env.reset(seed=1)
    *_, last = [env.step(action) for action in "112122"]
    assert last[1:3] == (1, True)


@pytest.mark.parametrize("turn", ["", "right", "4", "-1", "2 or 7", "1.5", "9" * 18 + "2", "9" * 10_000])
def test_a_turn_without_an_action_does_nothing_and_is_told_which_there_are(turn: str):
    env = lake()
    env.reset(seed=1)
    observation, *rest = env.step(turn)
    assert observation == "No action. Write one number, 0 to 3."
    assert rest == [0.0, False, False, {}]
    assert "S[F]FF" in env.step("2")[0]


@pytest.mark.parametrize("turn", ["2.0", "1-2", "Go right.2", "With 0.75: 2", "2. I am 0.75 sure", "\u9009\u62e92"])
def test_the_last_whole_number_is_none_that_is_part_of_another(turn: str):
    env = lake()
    env.reset(seed=1)
    assert "(Right)" in env.step(turn)[0]


def test_actions_may_begin_elsewhere_and_what_is_coloured_stays_to_be_seen():
    class Env:
        render_mode = "ansi"
        action_space = gymnasium.spaces.Discrete(3, start=5)

        def reset(self, **_: object) -> tuple[int, dict[str, object]]:
            return 0, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
            return action, float(action), False, False, {}

        def render(self) -> str:
            return "a\x1b[34;1mb\x1b[0m\x1b[43mc\x1b[0m"

    env = InTexts(Env())
    assert env.reset()[0] == "a<b>[c]"
    assert env.step("7")[1] == 7
    assert "5 to 7" in env.step("3")[0]


def test_one_that_shows_numbers_alone_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="render_mode `ansi`"):
        try_it("gymnasium:make", {"id": "FrozenLake-v1"})
    try_it("gymnasium:make", {"id": "FrozenLake-v1", "render_mode": "ansi"})


class Dice:
    """Numbers as actions, and a `reset` without options."""

    render_mode = "ansi"

    def reset(self, *, seed=None):
        return 3, {"seed": seed}

    def render(self):
        return "a die"


def test_its_reset_may_leave_out_what_the_interface_has_and_it_need_not_be_closed():
    env = InTexts(Dice())
    assert env.reset(seed=7, options={"level": 1}) == ("a die", {"seed": 7})
    env.close()


class Wrapper:
    """Hands on whatever it is given."""

    def reset(self, **kwargs):
        return "go", kwargs


def test_a_reset_of_any_keywords_gets_seed_and_options_alone():
    begun = {"seed": 7, "options": {"level": 1}, "messages": [], "prompt_ids": [1]}
    assert taking_known(Wrapper().reset)(**begun) == ("go", {"seed": 7, "options": {"level": 1}})
