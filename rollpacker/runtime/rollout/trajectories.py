"""Trajectories of several turns: what environments are asked and answer, between scheduler and environments.

    Scheduler ── OpenEnvironment, StepEnvironment, CloseEnvironment ──> here ── reset, step, end ──> environments
    Scheduler <───────── EnvironmentStepped, EnvironmentFailed ──────── here <────── collect ─────── environments
    Scheduler ── ScoreResponse ──> here ── RewardComputed: the sum of the trajectory's rewards ──> Scheduler

Where environments give no rewards, as tools do, the run's reward scores what the policy wrote last.

Token in, token out: what an engine sampled stays as it is, in the request's record, and an observation is appended to
it as tokens of its own. The engine that writes the next turn gets them as what was begun before.

Invariant: an observation is appended once, and only where the policy goes on after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rollpacker.core.commands import CloseEnvironment, OpenEnvironment, ScoreResponse, StepEnvironment
from rollpacker.core.environment_events import EnvironmentFailed, EnvironmentStepped, TurnFinished
from rollpacker.core.environments import FINISHED, STOPPED
from rollpacker.core.events import Event, ResponseFinished, RewardComputed
from rollpacker.core.ids import EngineId, RequestId, is_held_out, sampled
from rollpacker.core.scheduler import Scheduler
from rollpacker.protocols.environment import (
    EnvironmentAnswer,
    EnvironmentParts,
    EnvironmentReset,
    EnvironmentService,
    EnvironmentTurn,
    TurnTexts,
)
from rollpacker.protocols.rollout import FinishReason, Response, Verdict
from rollpacker.runtime.rollout.request_book import RequestBook
from rollpacker.runtime.rollout.requests import environment_seed
from rollpacker.runtime.rollout.rounds import Rounds
from rollpacker.runtime.waiting.clock import RunClock

_ENDS = ("terminated", "truncated", "limit")
"""Of an episode whose environment has not failed."""

EnvironmentCommand = OpenEnvironment | StepEnvironment | CloseEnvironment


@dataclass(slots=True, kw_only=True)
class _Episode:
    """A trajectory from its reset on."""

    num_observed: int = 0
    """Tokens that it had before its last turn."""
    rewards: list[float] = field(default_factory=list)
    """By turn."""
    environment_s: float = 0.0
    """What its environment took."""
    end: str = "limit"
    """Why it took no further turn: `terminated`, `truncated`, `limit` of turns or tokens, or how it failed."""


class Trajectories:
    """Carries out the orders to environments.

    Args:
        parts: None where a response is one turn, and no such order comes.
        rounds: Has the records of requests, their limits and their prompts.
        clock: The run's.
        take: Told of what environments answer.
        on_error: Told of what ends the run.
    """

    def __init__(
        self,
        parts: EnvironmentParts | None,
        rounds: Rounds,
        clock: RunClock,
        take: Callable[[Event], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._parts = parts
        self._rounds = rounds
        self._take = take
        self._on_error = on_error
        self._clock = clock
        self._episodes: dict[RequestId, _Episode] = {}
        self._listening: asyncio.Task[None] | None = None

    def start(self, scheduler: Scheduler) -> None:
        """Listen to the environments; those of an earlier attempt are gone."""
        if self._parts is None:
            return
        self._listening = asyncio.create_task(self._listen(self._parts.service), name="pump: environments")
        for request, call in scheduler.beside.environments.acting if scheduler.beside.environments else ():
            self._take(EnvironmentFailed(request=request, call=call, reason="environment_lost"))

    async def stop(self) -> None:
        """End all environments."""
        if self._listening is not None:
            self._listening.cancel()
            with suppress(asyncio.CancelledError):
                await self._listening
        if self._parts is not None:
            await self._parts.service.close()

    # What the scheduler is told

    def ended(self, engine: EngineId, response: Response) -> TurnFinished | ResponseFinished:
        """Say what an engine has finished: a turn, where an environment answers it."""
        kind = ResponseFinished if self._parts is None else TurnFinished
        return kind(request=response.request, engine=engine, num_tokens=response.num_tokens, spans=response.spans)

    def to_score(self, unscored: Sequence[RequestId], scheduler: Scheduler) -> list[RequestId]:
        """Which of an earlier attempt's responses the run's reward scores: of some, only a turn has ended."""
        under_way = scheduler.beside.environments
        if under_way is None or self._parts is None:
            return list(unscored)
        return [] if self._parts.gives_rewards else [each for each in unscored if not under_way.has(each)]

    @property
    def are_any(self) -> bool:
        """Whether environments answer turns."""
        return self._parts is not None

    def reward(self, command: ScoreResponse) -> RewardComputed | None:
        """Give the reward of a trajectory; None where the run's reward scores it."""
        if self._parts is None:
            return None
        request, now = command.request, self._clock.now()
        episode = self._episodes.pop(request, None) or _Episode(end="environment_lost")
        book = self._rounds.book_of(request)
        book.end_trajectory(request, is_whole=episode.end == "terminated", now=now)
        if episode.end in _ENDS and not self._parts.gives_rewards:
            return None
        verdict = Verdict(
            request=request,
            reward=sum(episode.rewards) if episode.end in _ENDS else 0.0,
            reason=episode.end,
            time_s=episode.environment_s,
            scorer="environment",
        )
        book.scored(verdict, now)
        return RewardComputed(request=request, reward=verdict.reward)

    # Orders

    def carry_out(self, command: EnvironmentCommand) -> None:
        """Ask an environment."""
        assert self._parts is not None
        request, service = command.request, self._parts.service
        match command:
            case OpenEnvironment():
                self._book(request).begin_again(request)
                self._episodes[request] = _Episode()
                service.reset(request, command.call, self._reset(request))
            case StepEnvironment():
                service.step(request, command.call, self._turn(request, self._parts.texts))
            case CloseEnvironment():
                service.end(request)
                if is_held_out(request) and command.reason not in {FINISHED, STOPPED}:
                    self._episodes[request].end = command.reason
                elif command.reason != FINISHED:
                    self._book(request).stop_trajectory(request)
                    self._episodes.pop(request, None)

    def _reset(self, request: RequestId) -> EnvironmentReset:
        sampling = self._rounds.sampling
        prompt, asked = sampling.prompt_of(request).prompt, sampling.generation(request, None, 0)
        return EnvironmentReset(
            seed=environment_seed(sampling.seed, request.prompt),
            options=prompt.options,
            messages=prompt.messages,
            text=prompt.text,
            prompt_ids=asked.prompt_token_ids.tolist(),
            max_tokens=asked.max_response_tokens,
            sampling_params={"temperature": asked.temperature, "top_p": asked.top_p, "top_k": asked.top_k},
        )

    def _turn(self, request: RequestId, texts: TurnTexts) -> EnvironmentTurn:
        token_ids = self._last_turn(request)
        response = self._book(request).kept(request)
        return EnvironmentTurn(
            text=texts.action(token_ids),
            token_ids=token_ids,
            logprobs=response.logprobs[response.num_tokens - len(token_ids) :].tolist() if response else (),
            finish_reason=response.finish_reason if response else FinishReason.ABORTED,
        )

    def _book(self, request: RequestId) -> RequestBook:
        return self._rounds.book_of(request)

    def _last_turn(self, request: RequestId) -> Sequence[int]:
        record = self._book(request).requests.get(request)
        episode = self._episodes.get(request)
        if record is None or record.response is None:
            return ()
        num_before = episode.num_observed if episode is not None else 0
        turn: Sequence[int] = record.response.token_ids[num_before:].tolist()
        return turn

    # Answers

    async def _listen(self, service: EnvironmentService) -> None:
        try:
            while True:
                for answer in await service.collect():
                    self._report(answer)
        except Exception as error:  # noqa: BLE001  (a task's boundary: the driver raises it again)
            self._on_error(error)

    def _report(self, answer: EnvironmentAnswer) -> None:
        request, episode = answer.request, self._episodes.get(answer.request)
        if episode is None:
            return  # it was stopped
        if answer.failure is not None:
            self._take(EnvironmentFailed(request=request, call=answer.call, reason=answer.failure))
            return
        is_done = answer.is_terminated or answer.is_truncated
        num_left = 0
        book = self._book(request)
        kept = book.kept(request)
        if kept is not None and sampled(kept.spans):
            episode.rewards.append(answer.reward)
        episode.environment_s += answer.time_s
        if is_done:
            episode.end = "terminated" if answer.is_terminated else "truncated"
        else:
            assert self._parts is not None
            prompt = self._rounds.sampling.prompt_of(request).prompt
            observed = self._parts.texts.observation(prompt, answer.observation, self._last_turn(request))
            num_so_far = (kept.num_tokens if kept is not None else 0) + len(observed)
            num_left = self._rounds.sampling.max_tokens_of(request) - num_so_far
            if num_left > 0:
                book.observed(request, observed, self._clock.now())
                episode.num_observed = num_so_far
        self._take(
            EnvironmentStepped(request=request, call=answer.call, num_tokens_left=max(0, num_left), is_done=is_done)
        )
