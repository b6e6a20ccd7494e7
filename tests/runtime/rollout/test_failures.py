"""Failures that a fresh engine would meet again end the run; those that it need not meet do not."""

from __future__ import annotations

import pytest

from rollpacker.core.errors import EngineFailed, EngineRaised, PolicyDiverged, RepeatedFailure
from rollpacker.core.ids import EngineId
from rollpacker.engines.checks import logits_not_finite
from rollpacker.runtime.rollout.failures import Failures
from rollpacker.runtime.run.checkpoints import CheckpointStore, with_way_back
from tests.runtime.driving import driving
from tests.runtime.scripted import ScriptedEngine

FIRST, SECOND = EngineId("engine-0"), EngineId("engine-1")


def raised(engine: str, what: str) -> EngineRaised:
    return EngineRaised(f"{engine} stopped generating: {what}", "The traceback is in its log.", "Lower it.")


@pytest.mark.parametrize(
    ("first", "second", "is_repeated"),
    [
        (raised(FIRST, "IndexError: 7"), raised(SECOND, "IndexError: 9"), True),
        (raised(FIRST, "KeyError at 0x7f00aa"), raised(SECOND, "KeyError at 0x11"), True),
        (raised(FIRST, "IndexError: 7"), raised(SECOND, "KeyError: 7"), False),
        (EngineFailed(f"The process of {FIRST} died."), EngineFailed(f"The process of {SECOND} died."), False),
        (EngineFailed("Waited 5 s for it."), EngineFailed("Waited 5 s for it."), False),
    ],
)
def test_only_what_two_engines_raised_alike_is_a_repeated_failure(
    first: EngineFailed, second: EngineFailed, *, is_repeated: bool
) -> None:
    failures = Failures()
    failures.add(FIRST, first, policy_version=3)
    failures.add(FIRST, first, policy_version=3)  # its pump and a call to it may both notice
    assert failures.repeated is None
    failures.add(SECOND, second, policy_version=3)
    assert (failures.repeated is not None) is is_repeated


def test_the_same_failure_with_other_weights_is_not_repeated() -> None:
    failures = Failures()
    failures.add(FIRST, raised(FIRST, "IndexError"), policy_version=3)
    failures.add(SECOND, raised(SECOND, "IndexError"), policy_version=4)
    assert failures.repeated is None


async def test_a_failure_that_the_replacement_repeats_ends_the_round_after_one_restart(tmp_path):
    """Of three that are allowed."""
    brought = []

    async def replace(_slot, name):
        engine = ScriptedEngine(name, lambda _: None)
        engine.fail(raised(name, "The model's logits are not finite numbers."))
        brought.append(name)
        return engine

    engine = ScriptedEngine("engine-0", lambda _: None)
    async with driving(tmp_path, [engine], replace=replace, max_restarts=3) as driver:
        engine.fail(raised("engine-0", "The model's logits are not finite numbers."))
        with pytest.raises(RepeatedFailure, match="engine-0 failed alike with the same weights") as caught:
            await driver.next_batch(0)
    assert len(brought) == 1
    assert "logits are not finite" in caught.value.problem
    assert caught.value.remedy == "Lower it."


def test_an_engine_does_not_say_that_training_diverged_where_nothing_was_trained() -> None:
    error = logits_not_finite("r0:a@0#0")
    assert "If training made them so" in error.remedy


@pytest.mark.parametrize(
    ("error", "steps", "said", "unsaid"),
    [
        (PolicyDiverged("It diverged.", "", "Lower it."), [10, 20], "step-000020/trainer/model", "that failed"),
        (RepeatedFailure("They failed.", "", "Lower it."), [10, 20], "step-000010/trainer/model", "no checkpoint"),
        (RepeatedFailure("They failed.", "", "Lower it."), [20], "that failed are in", "as model.path"),
        (RepeatedFailure("They failed."), [], "no checkpoint of earlier ones", "step-"),
        (PolicyDiverged("It diverged."), [], "no checkpoint of earlier ones", "step-"),
    ],
)
def test_an_error_of_the_policy_names_the_last_checkpoint_with_sound_weights(tmp_path, error, steps, said, unsaid):
    """Engines of policy version 20 failed: a checkpoint after step 20 has their weights."""
    for step in steps:
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    told = with_way_back(error, CheckpointStore(tmp_path, keep=2), policy_version=20)
    assert type(told) is type(error)
    assert told.problem == error.problem
    assert said in told.remedy
    assert unsaid not in told.remedy
