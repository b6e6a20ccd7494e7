"""Several ranks are one trainer; one that fails is named at once, while the others still wait for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rollpacker.core.errors import EngineFailed, ForeignVersion, RollpackerError
from rollpacker.protocols.trainer import BatchShape
from rollpacker.protocols.weights import Weights
from rollpacker.runtime.ray.trainer_group import TrainerGroup
from rollpacker.sim.virtual_time import run_in_virtual_time

SHAPE = BatchShape(
    step=0, policy_version=0, oldest_policy_version=0, num_groups=1, num_responses=2, max_response_tokens=8
)
FOREVER_S = 1e6


class ScriptedRank:
    """Meets the others in every call, unless its script says what happens instead, and after how many seconds."""

    def __init__(self, index: int, meeting: asyncio.Barrier, failure: tuple[float, RollpackerError | str] | None):
        self.name = f"trainer-{index}"
        self.has_died = False
        self.calls: list[tuple[str, Any]] = []
        self._index = index
        self._meeting = meeting
        self._failure = failure

    async def _call(self, method: str, *arguments: Any) -> None:
        self.calls.append((method, *arguments))
        if self._failure is None:
            await self._meeting.wait()
            return
        delay_s, error = self._failure
        await asyncio.sleep(delay_s)
        if isinstance(error, RollpackerError):
            raise error
        self.has_died = True
        raise EngineFailed(f"The process of {self.name} died.", error)

    async def begin_step(self, shape: BatchShape) -> None:
        await self._call("begin_step", shape)

    async def accumulate(self, groups: Any, gpus: Any = None) -> None:
        await self._call("accumulate", groups, gpus)

    async def export_weights(self) -> Weights:
        await self._call("export_weights")
        return Weights(policy_version=self._index, checksum="", num_bytes=0, payload=None)

    async def save(self, folder: Path) -> None:
        await self._call("save", folder)

    async def close(self) -> None:
        await self._call("close")


def in_a_group(*failures, use):
    """Let a test use a group whose ranks have these scripts, in virtual time; gives what it returns, and when."""

    async def told():
        meeting = asyncio.Barrier(len(failures))
        ranks = [ScriptedRank(index, meeting, failure) for index, failure in enumerate(failures)]
        shared = []
        group = TrainerGroup(ranks, share=lambda groups: shared.append(groups) or f"where {groups} are")
        return await use(group, ranks), shared, asyncio.get_running_loop().time()

    return run_in_virtual_time(told())


def test_every_rank_gets_every_call_and_rank_0_answers():
    async def use(group, ranks):
        await group.begin_step(SHAPE)
        weights = await group.export_weights()
        return weights.policy_version, [rank.calls for rank in ranks]

    (version, calls), _, _ = in_a_group(None, None, None, use=use)
    assert version == 0
    assert calls == [[("begin_step", SHAPE), ("export_weights",)]] * 3


def test_groups_are_put_down_once_and_fetched_by_every_rank():
    async def use(group, ranks):
        await group.accumulate("groups", None)
        return [rank.calls for rank in ranks]

    calls, shared, _ = in_a_group(None, None, use=use)
    assert shared == ["groups"]
    assert calls == [[("accumulate", "where groups are", None)]] * 2


def failure_of(*failures):
    """What a caller hears and when, of ranks with these scripts."""

    async def use(group, ranks):
        with pytest.raises(RollpackerError) as raised:
            await group.save(Path("x"))
        return raised.value

    error, _, time_s = in_a_group(*failures, use=use)
    return error, time_s


def test_a_rank_that_dies_is_named_at_once_while_the_others_wait_for_it():
    error, time_s = failure_of(None, (7.0, "killed"), None)
    assert error.problem == "The process of trainer-1 died."
    assert time_s == 7.0


def test_a_rank_that_died_is_to_blame_although_its_neighbours_noticed_first():
    reset = EngineFailed("trainer-0 raised in save().", "", "Connection reset by peer")
    error, time_s = failure_of((1.0, reset), (1.0, reset), (1.5, "killed"))
    assert error.problem == "The process of trainer-2 died."
    assert time_s == 1.5


def test_a_rank_that_raises_is_named_soon_while_the_others_wait_for_it_for_ever():
    error, time_s = failure_of((FOREVER_S, "never"), (1.0, EngineFailed("trainer-1 raised in save().")))
    assert error.problem == "trainer-1 raised in save()."
    assert time_s < 10.0


def test_an_error_of_ours_keeps_its_kind_and_gets_the_ranks_name():
    foreign = ForeignVersion("A token of version 3.", "Version 2 is trained.")
    error, time_s = failure_of((1.0, foreign), (1.0, foreign))
    assert isinstance(error, ForeignVersion)
    assert error.problem == "trainer-0: A token of version 3."
    assert (error.allowed, time_s) == ("Version 2 is trained.", 1.0)


def test_closing_asks_every_rank_although_one_is_dead():
    async def use(group, ranks):
        await group.close()
        return [rank.calls for rank in ranks]

    calls, _, _ = in_a_group((0.0, "killed"), (0.0, "killed"), use=use)
    assert calls == [[("close",)]] * 2


def test_a_caller_who_gives_up_leaves_no_call_behind():
    async def use(group, ranks):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await group.begin_step(SHAPE)
        await asyncio.sleep(0)
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    left, _, _ = in_a_group(None, (FOREVER_S, "never"), use=use)
    assert left == []


def test_two_calls_at_once_reach_every_rank_in_one_order_one_after_the_other():
    async def use(group, ranks):
        await asyncio.gather(group.begin_step(SHAPE), group.accumulate("groups"), group.export_weights())
        return [[call[0] for call in rank.calls] for rank in ranks]

    calls, _, _ = in_a_group(None, None, use=use)
    assert calls == [["begin_step", "accumulate", "export_weights"]] * 2


def test_a_call_waits_until_the_one_before_has_ended_on_all_ranks():
    began = []

    class SlowRank(ScriptedRank):
        async def begin_step(self, _):
            began.append(asyncio.get_running_loop().time())
            await asyncio.sleep(self._index + 1)

    async def told():
        ranks = [SlowRank(index, asyncio.Barrier(2), None) for index in range(2)]
        group = TrainerGroup(ranks, share=lambda groups: groups)
        await asyncio.gather(group.begin_step(SHAPE), group.begin_step(SHAPE))

    run_in_virtual_time(told())
    assert began == [0.0, 0.0, 2.0, 2.0]
