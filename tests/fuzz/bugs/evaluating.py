"""Bugs of evaluations, alone and in the idle slots of training rounds: whole modelled runs find them."""

from __future__ import annotations

from dataclasses import replace

from rollpacker.core.evaluation import Evaluation
from rollpacker.core.filling import Filling
from rollpacker.core.routing import Router
from tests.fuzz.bugs.harness import Bug, Worlds, around


def _fill_a_race(begin_round, machine, command):
    needed = {
        "num_prompts_launched": command.num_prompts_needed,
        "num_responses_launched": command.num_responses_needed,
    }
    return begin_round(machine, replace(command, **needed))


def _forget(lose, filling, engine):
    lose(filling, engine)
    return []


FILL_A_RACE = Bug(
    name="a round that races is filled",
    patch=around(Evaluation, "begin_round", _fill_a_race),
    worlds=Worlds.RUNS,
    first=1,
)

_OTHERS = (
    (
        "held-out requests take the slots of training",
        around(Router, "rooms", lambda _, router, num_slots, __: dict.fromkeys(router.engines, num_slots)),
        1,
    ),
    ("what a lost engine had of an evaluation is forgotten", around(Filling, "lose", _forget), 24),
    (
        "an evaluation is made once",
        around(
            Evaluation,
            "has_its_turn",
            lambda right, machine, event: machine._last < 0 and right(machine, event),
        ),
        0,
    ),
)

BUGS = (
    FILL_A_RACE,
    *(Bug(name=name, patch=patch, worlds=Worlds.RUNS, first=seed) for name, patch, seed in _OTHERS),
)
