"""Trajectories of several turns: what environments are asked and answer, between scheduler and environments.

    Scheduler ── OpenEnvironment, StepEnvironment, CloseEnvironment ──> here ── reset, step, end ──> environments
    Scheduler <────── EnvironmentBegan, -Stepped, EnvironmentFailed ─── here <────── collect ─────── environments
    Scheduler ── ScoreResponse ──> here ── RewardComputed: the sum of the rewards of its turns ──> Scheduler

Where environments give no rewards, as tools do, the run's reward scores what the policy wrote last.

Token in, token out: what an engine sampled stays as it is, in the request's record, and an observation is appended to
it as tokens of its own. The engine that writes the next turn gets them as what was begun before.

An observation that the chat template refuses is a failure of its environment.

Invariant: an observation is appended once, and none is left behind the policy's last turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rollpacker.core.commands import CloseEnvironment, OpenEnvironment, ScoreResponse, StepEnvironment
from rollpacker.core.environment_events import EnvironmentBegan, EnvironmentFailed, EnvironmentStepped, TurnFinished
from rollpacker.core.environments import FINISHED, LOST, STOPPED, TIMEOUT
from rollpacker.core.errors import UserError
from rollpacker.core.events import Event, ResponseFinished, RewardComputed
from rollpacker.core.ids import EngineId, RequestId, is_held_out, sampled
from rollpacker.core.scheduler import Scheduler
from rollpacker.protocols.environment import (
    EnvironmentAnswer,
    EnvironmentNews,
    EnvironmentParts,
    EnvironmentReset,
    EnvironmentService,
    EnvironmentTurn,
    TurnTexts,
)
from rollpacker.protocols.rollout import FinishReason, Response, Turn, Verdict
from rollpacker.runtime.rollout.aside import Aside
from rollpacker.runtime.rollout.episodes import ENVIRONMENT_ACTOR, EnvironmentStay, Episode
from rollpacker.runtime.rollout.request_book import RequestBook
from rollpacker.runtime.rollout.requests import environment_seed
from rollpacker.runtime.rollout.rounds import Rounds
from rollpacker.runtime.waiting.clock import RunClock

_ENDS = ("terminated", "truncated", "limit")
"""Of an episode whose environment has not failed."""

_ERROR = "environment_error"
"""How `environments.pool` names an answer that is none."""

_log = logging.getLogger(__name__)

EnvironmentCommand = OpenEnvironment | StepEnvironment | CloseEnvironment


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """A trajectory from its last reset on."""

    episode: Episode
    num_observed: int = 0
    """Tokens that it had before its last turn."""
    call: int | None = None
    """That its environment has not answered; None while an engine has it."""
    activity: str = ""
    """Of that call."""
    called_at_s: float = 0.0
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
        stop_s: How long environments may take to end.
    """

    def __init__(
        self,
        parts: EnvironmentParts | None,
        rounds: Rounds,
        clock: RunClock,
        take: Callable[[Event], None],
        on_error: Callable[[Exception], None],
        *,
        stop_s: float,
    ) -> None:
        self._parts = parts
        self._rounds = rounds
        self._take = take
        self._aside = Aside(on_error=on_error)
        self._clock = clock
        self._stop_s = stop_s
        self._attempts: dict[RequestId, _Attempt] = {}
        self._refused: set[str] = set()
        """Remedies that were logged: the template's words differ with each prompt, these with the kind of refusal."""

    def start(self, scheduler: Scheduler) -> None:
        """Listen to the environments; those of an earlier attempt are gone."""
        if self._parts is None:
            return
        self._aside.begin(self._listen(self._parts.service), "pump: environments")
        for request, call in scheduler.beside.environments.open if scheduler.beside.environments else ():
            self._take(EnvironmentFailed(request=request, call=call, reason=LOST))

    async def stop(self) -> None:
        """Stop listening to the environments."""
        await self._aside.stop()

    async def end_environments(self) -> None:
        """End all of them; a host that does not answer is ended with Ray's session."""
        if self._parts is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._stop_s):
                    await self._parts.service.close()

    def end_batch(self) -> None:
        """Forget trajectories that nobody will score: their batch is over without them."""
        if self._rounds.batch is not None and not self._rounds.goes_on:
            for request in self._rounds.batch.requests:
                self._attempts.pop(request, None)

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
        attempt = self._attempts.pop(request, None) or _Attempt(episode=Episode(), end=LOST)
        book = self._rounds.book_of(request)
        book.end_trajectory(request, is_whole=attempt.end == "terminated", now=now)
        if attempt.end in _ENDS and not self._parts.gives_rewards:
            return None
        reward = sum(turn.reward for turn in attempt.episode.turns) if attempt.end in _ENDS else 0.0
        verdict = Verdict(request=request, reward=reward, reason=attempt.end, time_s=0.0, scorer=ENVIRONMENT_ACTOR)
        book.scored(verdict, now)
        return RewardComputed(request=request, reward=verdict.reward)

    # Orders

    def carry_out(self, command: EnvironmentCommand) -> None:
        """Ask an environment."""
        assert self._parts is not None
        request, service = command.request, self._parts.service
        match command:
            case OpenEnvironment():
                self._attempts[request] = _Attempt(episode=self._book(request).begin(request))
                self._call(request, command.call, "reset")
                service.reset(request, command.call, self._reset(request))
            case StepEnvironment():
                self._call(request, command.call, "step")
                service.step(request, command.call, self._turn(request, self._parts.texts))
            case CloseEnvironment():
                service.end(request, has_hung=command.reason == TIMEOUT)
                self._close(command)

    def _call(self, request: RequestId, call: int, activity: str) -> None:
        attempt = self._attempts.get(request)
        if attempt is not None:  # else it is of an earlier start of the run
            attempt.call, attempt.activity, attempt.called_at_s = call, activity, self._clock.now()

    def _answered(self, request: RequestId, attempt: _Attempt, activity: str) -> None:
        """Write down how long a call took that has ended: with an answer, or without."""
        now, began = self._clock.now(), attempt.called_at_s
        attempt.call = None
        attempt.episode.waited_s += now - began
        stay = EnvironmentStay(request=request, activity=activity, began_at_s=began, ended_at_s=now)
        self._book(request).stays.append(stay)

    def _close(self, command: CloseEnvironment) -> None:
        request, reason = command.request, command.reason
        has_failed = reason not in {FINISHED, STOPPED}
        attempt = self._attempts.get(request)
        if attempt is not None and attempt.call is not None:
            self._answered(request, attempt, reason)
        if has_failed and not command.begins_again:
            self._book(request).num_given_up += 1
        if attempt is not None and is_held_out(request) and has_failed:
            attempt.end = reason
        elif reason != FINISHED:
            self._book(request).stop_trajectory(request)
            self._attempts.pop(request, None)

    def _reset(self, request: RequestId) -> EnvironmentReset:
        sampling = self._rounds.sampling
        prompt, asked = sampling.prompt_of(request).prompt, sampling.generation(request, None, 0)
        return EnvironmentReset(
            seed=environment_seed(sampling.evaluation.seed if is_held_out(request) else sampling.seed, request.prompt),
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
            spelled=texts.spelled(token_ids),
            token_ids=token_ids,
            logprobs=response.logprobs[response.num_tokens - len(token_ids) :].tolist() if response else (),
            finish_reason=response.finish_reason if response else FinishReason.ABORTED,
        )

    def _book(self, request: RequestId) -> RequestBook:
        return self._rounds.book_of(request)

    def _last_turn(self, request: RequestId) -> Sequence[int]:
        record = self._book(request).requests.get(request)
        attempt = self._attempts.get(request)
        if record is None or record.response is None:
            return ()
        num_before = attempt.num_observed if attempt is not None else 0
        turn: Sequence[int] = record.response.token_ids[num_before:].tolist()
        return turn

    # Answers

    async def _listen(self, service: EnvironmentService) -> None:
        while True:
            for answer in await service.collect():
                self._report(answer)

    def _report(self, answer: EnvironmentNews) -> None:
        request, attempt = answer.request, self._attempts.get(answer.request)
        is_awaited = attempt is not None and attempt.call == answer.call
        if isinstance(answer, EnvironmentBegan):
            if attempt is not None and is_awaited:
                self._answered(request, attempt, "start")
                self._call(request, answer.call, attempt.activity)
            self._take(answer)
            return
        is_done = answer.is_terminated or answer.is_truncated
        failure, observed = answer.failure, None
        if attempt is not None and is_awaited:
            if failure is None and not is_done:
                observed = self._observed(answer)
                failure = _ERROR if observed is None else None
            self._answered(request, attempt, failure or attempt.activity)
        if failure is not None:  # one that is not awaited may be of an earlier start of the run
            self._take(EnvironmentFailed(request=request, call=answer.call, reason=failure))
            return
        if attempt is None or not is_awaited:
            return  # it was stopped, or is answered twice
        num_left = 0
        book = self._book(request)
        kept = book.kept(request)
        if kept is not None and sampled(kept.spans):
            turn = Turn(begin=attempt.num_observed, end=kept.num_tokens, reward=answer.reward)
            attempt.episode.turns.append(turn)
        if observed is None:
            attempt.end = "terminated" if answer.is_terminated else "truncated"
        else:
            num_so_far = (kept.num_tokens if kept is not None else 0) + len(observed)
            num_left = self._rounds.sampling.max_tokens_of(request) - num_so_far
            if num_left > 0:
                book.observed(request, observed, self._clock.now())
                attempt.num_observed = num_so_far
        self._take(
            EnvironmentStepped(request=request, call=answer.call, num_tokens_left=max(0, num_left), is_done=is_done)
        )

    def _observed(self, answer: EnvironmentAnswer) -> Sequence[int] | None:
        """Give the tokens of an observation; None where the template refuses it, which is logged once per remedy."""
        assert self._parts is not None
        prompt = self._rounds.sampling.prompt_of(answer.request).prompt
        try:
            return self._parts.texts.observation(prompt, answer.observation, self._last_turn(answer.request))
        except UserError as error:
            if error.remedy not in self._refused:
                self._refused.add(error.remedy)
                _log.warning(
                    "The environment of %s failed: its observation cannot follow the conversation. %s. %s, or "
                    "change what the environment answers; further refusals of this kind are counted, and not logged.",
                    answer.request,
                    error.problem.rstrip("."),
                    error.remedy.rstrip("."),
                )
            return None
