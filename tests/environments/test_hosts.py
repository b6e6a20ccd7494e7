"""Environments over several hosts, some of which are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.environments.hosts import EnvironmentHosts, Order
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.environment import EnvironmentAnswer, EnvironmentReset, EnvironmentTurn
from rollpacker.protocols.rollout import FinishReason

START = EnvironmentReset(seed=1, options={})
TURN = EnvironmentTurn(text="", spelled="", token_ids=(), logprobs=(), finish_reason=FinishReason.STOP)


class Host:
    """Answers every call at once, until it dies or fails."""

    def __init__(self, name: str) -> None:
        self.name, self.has_died, self.is_closed = name, False, False
        self.told: list[tuple[str, RequestId]] = []
        self._answers: Arrivals[EnvironmentAnswer] = Arrivals()
        self._error: EngineFailed | None = None

    def die(self) -> None:
        self.has_died = True
        self.fail("its node is gone")

    def fail(self, why: str) -> None:
        self._error = EngineFailed(why)
        self._answers.close()

    async def tell(self, orders: Sequence[Order]) -> None:
        if self._error:
            raise self._error
        for method, (request, *call), _ in orders:
            self.told.append((method, request))
            if method != "end":
                self._answers.put([EnvironmentAnswer(request=request, call=call[0], observation=self.name)])

    async def collect(self) -> Sequence[EnvironmentAnswer]:
        answers = await self._answers.collect()
        if self._error:
            raise self._error
        return answers

    async def close(self) -> None:
        self.is_closed = True


def request(number: int) -> RequestId:
    return RequestId(0, PromptId(0, "p"), number)


@asynccontextmanager
async def hosts_of(*hosts: Host) -> AsyncIterator[EnvironmentHosts]:
    environments = EnvironmentHosts(hosts)
    try:
        yield environments
    finally:
        await environments.close()


async def answers(environments: EnvironmentHosts, number: int) -> dict[RequestId, EnvironmentAnswer]:
    found: dict[RequestId, EnvironmentAnswer] = {}
    async with asyncio.timeout(5.0):
        while len(found) < number:
            found |= {each.request: each for each in await environments.collect()}
    return found


async def test_a_trajectory_opens_where_the_fewest_are_and_stays_there():
    first, second = Host("first"), Host("second")
    async with hosts_of(first, second) as environments:
        for number in range(4):
            environments.reset(request(number), 0, START)
        where = {each.sample: answer.observation for each, answer in (await answers(environments, 4)).items()}
        assert where == {0: "first", 1: "second", 2: "first", 3: "second"}
        environments.end(request(1))
        environments.end(request(3))
        environments.reset(request(4), 0, START)
        environments.step(request(0), 1, TURN)
        found = await answers(environments, 2)
        assert found[request(4)].observation == "second"
        assert found[request(0)].observation == "first"
    assert second.told[-2:] == [("end", request(3)), ("reset", request(4))]
    assert first.is_closed
    assert second.is_closed


async def test_what_was_on_a_lost_host_fails_and_opens_on_another():
    first, second = Host("first"), Host("second")
    async with hosts_of(first, second) as environments:
        for number in range(3):
            environments.reset(request(number), 0, START)
        await answers(environments, 3)
        first.die()
        found = await answers(environments, 2)
        assert {each: answer.failure for each, answer in found.items()} == {
            request(0): "environment_lost",
            request(2): "environment_lost",
        }
        environments.step(request(2), 1, TURN)  # an engine had it, and knew nothing
        assert (await answers(environments, 1))[request(2)].failure == "environment_lost"
        environments.end(request(0))  # as the scheduler says of all that fail
        environments.reset(request(0), 2, START)
        assert (await answers(environments, 1))[request(0)].observation == "second"


@pytest.mark.parametrize("has_died", [True, False], ids=["the last is lost", "one cannot start environments"])
async def test_without_a_host_that_works_the_run_ends_with_the_reason(has_died):
    hosts = [Host("only")] if has_died else [Host("first"), Host("second")]
    async with hosts_of(*hosts) as environments:
        if has_died:
            hosts[0].die()
        else:
            hosts[0].fail("no module named maze")
        with pytest.raises(EngineFailed, match="its node is gone" if has_died else "no module named maze"):
            async with asyncio.timeout(5.0):
                await environments.collect()
        environments.reset(request(0), 0, START)
        environments.end(request(0))
