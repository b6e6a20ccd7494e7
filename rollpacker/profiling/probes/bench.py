"""What every probe needs: the workers, the requests to send, where to note the result; and a timed burst."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.profiling.subject import Subject, now_s
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, Response, TokenizedPrompt

if TYPE_CHECKING:
    from rollpacker.core.ids import RequestId
    from rollpacker.profiling.points import Points
    from rollpacker.profiling.workload import Workload
    from rollpacker.protocols.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Requests that an engine got at once, and their results."""

    responses: Sequence[Response]
    """In the order of the requests."""
    asked_s: float
    """Until the engine had confirmed the requests."""
    elapsed_s: float
    """Until the last response had arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What every probe needs."""

    subject: Subject
    workload: Workload
    points: Points
    collect_interval_s: float
    """How long an actor waits before it answers a `collect` without news."""

    async def burst(
        self,
        engine: Engine,
        requests: Sequence[GenerationRequest],
        scored_with: Mapping[str, TokenizedPrompt] | None = None,
    ) -> Burst:
        """Send requests and await their responses, which are scored on arrival if their prompts are given."""
        began = now_s()
        collecting = asyncio.create_task(self._collect(engine, len(requests), scored_with))
        try:
            await self.subject.within(engine.generate(requests))
            asked_s = now_s() - began
            responses = await collecting
        finally:
            collecting.cancel()
        elapsed_s = now_s() - began
        by_request = {response.request: response for response in responses}
        in_order = [by_request[request.request] for request in requests]
        return Burst(responses=in_order, asked_s=asked_s, elapsed_s=elapsed_s)

    async def burst_on_all(self, *parts: tuple[int, Sequence[int]]) -> list[Burst]:
        """Send every engine requests of its own, at the highest temperature.

        Args:
            parts: In the order in which they are sent: tokens of each prompt, and a limit per request.
        """
        requests = self.workload.requests
        hot = self.workload.hot
        return await asyncio.gather(
            *(
                self.burst(engine, [each for context, limits in parts for each in requests(context, limits, hot)])
                for engine in self.subject.engines.values()
            )
        )

    async def _collect(
        self, engine: Engine, num_responses: int, scored_with: Mapping[str, TokenizedPrompt] | None
    ) -> list[Response]:
        responses: list[Response] = []
        while len(responses) < num_responses:
            news = await self.subject.within(engine.collect())
            responses += news
            if scored_with:
                asked = [to_score(response, response.request, scored_with) for response in news]
                await self.subject.within(self.subject.workers.reward.score(asked))
        return responses


def to_score(response: Response, request: RequestId, prompts: Mapping[str, TokenizedPrompt]) -> ResponseToScore:
    """Return what the reward gets of a response, under the given number."""
    return ResponseToScore(
        request=request,
        prompt=prompts[request.prompt.key].prompt,
        token_ids=response.token_ids,
        is_truncated=response.finish_reason is FinishReason.LENGTH,
    )
