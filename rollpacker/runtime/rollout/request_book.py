"""The life of every request: the source of batches and of the `responses` table.

One entry per launched request, aborted ones too, whatever batch it may come into. The driver writes facts in as they
arrive; nothing is decided here. In an asynchronous run requests outlive steps: the book of those that are under way
gives the book of a batch those of its groups.

Engines that may be lost at any moment report the tokens of what they have not finished, again and again. A report that
begins where the tokens so far end is kept; one that repeats some, or leaves a gap, is not.

Invariant: tokens that were kept once, by an eviction or by a report, are never given up, however many engines are lost
after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from rollpacker.core.commands import DropPrompt
from rollpacker.core.ids import EngineId, PromptId, RequestId
from rollpacker.protocols.rollout import (
    FinishReason,
    Response,
    TokenIncrement,
    Verdict,
    empty_response,
    spans_after,
    with_observation,
    without_last_observation,
)
from rollpacker.runtime.rollout.episodes import EnvironmentStay, Episode

StretchEnd = Literal["evicted", "lost", "turn", "failed"]
"""The request kept its tokens; it lost them with its engine; its environment answered, after which it went on; its
environment failed, and it began again without them."""


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """The life of one request. Times are seconds since the run began."""

    request: RequestId
    engine: EngineId
    launched_at_s: float
    placed_at_s: float
    """When the engine that has it now was asked for it."""
    launch: int = 0
    """Number of its last launch, among all of its book; 0 if that was in an earlier attempt of the run."""
    begun: Response | None = None
    """What it had when it was launched there: it was evicted before."""
    response: Response | None = None
    finished_at_s: float | None = None
    verdict: Verdict | None = None
    scored_at_s: float | None = None
    race_rank: int | None = None
    """1 for the first of its prompt to have its reward."""
    is_accepted: bool = False
    is_answered: bool = False
    """Its environment has answered the turn in `response`, after which it goes on."""
    reported: list[TokenIncrement] = field(default_factory=list)
    """What its engine generated after `begun`, as far as it has said so; without gaps."""

    @property
    def kept(self) -> Response | None:
        """What it has, wherever it goes on."""
        return self.response or self._with_reported()

    @property
    def num_begun(self) -> int:
        """Tokens that it had when it was launched there."""
        return self.begun.num_tokens if self.begun else 0

    @property
    def num_known(self) -> int:
        """Tokens that it has if its engine is lost now."""
        if self.reported:
            return self.reported[-1].first_index + len(self.reported[-1].token_ids)
        return self.num_begun

    @property
    def num_kept(self) -> int:
        """Tokens of `kept`."""
        return self.response.num_tokens if self.response else self.num_known

    def _with_reported(self) -> Response | None:
        """What was begun before and what was reported since."""
        if not self.reported:
            return self.begun
        parts = [(part.token_ids, part.logprobs) for part in (*((self.begun,) if self.begun else ()), *self.reported)]
        spans = self.begun.spans if self.begun else ()
        for part in self.reported:
            spans = spans_after(spans, part.policy_version, part.first_index + len(part.token_ids))
        return Response(
            request=self.request,
            engine=self.engine,
            finish_reason=FinishReason.ABORTED,
            token_ids=np.concatenate([token_ids for token_ids, _ in parts]),
            logprobs=np.concatenate([logprobs for _, logprobs in parts]),
            spans=spans,
            queue_time_s=0.0,
            generation_time_s=0.0,
        )

    def contradicts(self, response: Response) -> bool:
        """Tell whether a response of its engine does not begin with what it has."""
        known = self._with_reported()
        if known is None:
            return False
        token_ids, logprobs = response.token_ids[: known.num_tokens], response.logprobs[: known.num_tokens]
        return not (np.array_equal(token_ids, known.token_ids) and np.array_equal(logprobs, known.logprobs))

    def stretch(self, end: StretchEnd, until_s: float) -> Stretch:
        """What it spent on its engine, which did not finish it: until the engine gave it back, else `until_s`."""
        return Stretch(
            request=self.request,
            engine=self.engine,
            began_at_s=self.placed_at_s,
            ended_at_s=self.finished_at_s if self.finished_at_s is not None else until_s,
            end=end,
            num_tokens=self.num_kept - self.num_begun,
        )

    @property
    def is_finished(self) -> bool:
        return self.response is not None and self.response.finish_reason is not FinishReason.ABORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What a request spent on an engine that did not finish it."""

    request: RequestId
    engine: EngineId
    began_at_s: float
    ended_at_s: float
    end: StretchEnd
    num_tokens: int = 0
    """That the engine generated of it, as far as it has said so, with what its environment wrote."""


COUNTERS = (
    *("num_continued", "num_tokens_recomputed", "num_tokens_saved"),
    *("num_restarts", "num_tokens_discarded", "num_given_up"),
)
"""Fields of `RequestBook` that count since the last batch was complete; 0 then."""


@dataclass(slots=True)
class RequestBook:
    """Requests, each to the last late fact about it."""

    requests: dict[RequestId, RequestRecord] = field(default_factory=dict)
    """In launch order."""
    stretches: list[Stretch] = field(default_factory=list)
    """In the order in which the requests moved on."""
    dropped: list[DropPrompt] = field(default_factory=list)
    """Since the last batch was complete, in an asynchronous run: they belong to the next one."""
    num_continued: int = 0
    """Launches of requests that had tokens."""
    num_tokens_recomputed: int = 0
    """That they had: each is prefilled once more."""
    num_tokens_saved: int = 0
    """Of these, the ones whose engine was lost: it had reported them."""
    episodes: dict[RequestId, Episode] = field(default_factory=dict)
    """Of the trajectories that have environments."""
    stays: list[EnvironmentStay] = field(default_factory=list)
    """With environments, in the order of their ends."""
    num_restarts: int = 0
    """Trajectories that began again, because their environment failed."""
    num_tokens_discarded: int = 0
    """That these had."""
    num_given_up: int = 0
    """Trajectories that did so too often."""
    openings: dict[RequestId, Response] = field(default_factory=dict)
    """What environments said before the first turn, of requests that were not launched yet."""
    _num_launches: int = 0
    _num_scored: dict[PromptId, int] = field(default_factory=dict)

    def launched(self, request: RequestId, engine: EngineId, now: float) -> RequestRecord:
        """A request went to an engine: for the first time, again after its engine was lost, or on with what it has."""
        earlier = self.requests.get(request)
        begun = earlier.kept if earlier else self.openings.pop(request, None)
        if earlier and earlier.response is None:
            self.num_tokens_saved += sum(len(part.token_ids) for part in earlier.reported)
        if earlier is not None and begun is not None and begun.num_tokens and not earlier.is_answered:
            self.num_continued += 1
            self.num_tokens_recomputed += begun.num_tokens
        launched_at_s = earlier.launched_at_s if earlier and begun else now
        if earlier:
            end: StretchEnd = "turn" if earlier.is_answered else "lost" if earlier.response is None else "evicted"
            self.stretches.append(earlier.stretch(end, now))
        self._num_launches += 1
        record = self.requests[request] = RequestRecord(
            request=request,
            engine=engine,
            launched_at_s=launched_at_s,
            placed_at_s=now,
            launch=self._num_launches,
            begun=begun,
        )
        return record

    def give(self, requests: Iterable[RequestId], book: RequestBook) -> None:
        """Move requests that are decided to the book of their batch."""
        for request in requests:
            self._num_scored.pop(request.prompt, None)
            self.openings.pop(request, None)
            if request in self.episodes:
                book.episodes[request] = self.episodes.pop(request)
            if request in self.requests:  # else its environment was never ready
                book.requests[request] = self.requests.pop(request)

    def give_costs(self, book: RequestBook) -> None:
        """Move to the book of a batch what requests spent on engines that did not finish them, up to now."""
        book.stretches, self.stretches = self.stretches, []
        book.stays, self.stays = self.stays, []
        for name in COUNTERS:
            setattr(book, name, getattr(self, name))
            setattr(self, name, 0)

    @property
    def unscored(self) -> list[RequestId]:
        """Those with a response and without a verdict."""
        return [name for name, record in self.requests.items() if record.is_finished and record.verdict is None]

    def count_scored(self) -> None:
        """Count again how many of each prompt have a verdict."""
        scored = (request.prompt for request, record in self.requests.items() if record.verdict is not None)
        self._num_scored = dict(Counter(scored))

    def copy(self) -> RequestBook:
        """Copy it as it is now; what later facts change is not shared."""
        return replace(
            self,
            requests={
                request: replace(record, reported=list(record.reported)) for request, record in self.requests.items()
            },
            stretches=list(self.stretches),
            episodes={request: replace(each, turns=list(each.turns)) for request, each in self.episodes.items()},
            stays=list(self.stays),
            dropped=list(self.dropped),
            openings=dict(self.openings),
            _num_scored=dict(self._num_scored),
        )

    def progressed(self, engine: EngineId, increment: TokenIncrement) -> None:
        """An engine reported tokens of a request; late ones, repeated ones and those after a gap change nothing."""
        record = self.requests.get(increment.request)
        if record is None or record.engine != engine or record.response is not None:
            return
        if increment.first_index == record.num_known:
            record.reported.append(increment)

    def is_outdated(self, response: Response) -> bool:
        """Tell whether a request was launched again since: a turn told of twice, or one of a life that was given up."""
        record = self.requests.get(response.request)
        return record is not None and record.launch != response.launch

    def contradicts(self, response: Response) -> bool:
        """Tell whether the engine that has a request gave other tokens of it than are known."""
        record = self.requests.get(response.request)
        return record is not None and record.contradicts(response)

    def came_back(self, response: Response, now: float) -> None:
        """An engine gave a request back, finished or not."""
        record = self.requests.get(response.request)
        if record is not None and record.response is None:  # else it was dropped, or a duplicate
            record.response = response
            record.finished_at_s = now

    # Trajectories of several turns

    def kept(self, request: RequestId) -> Response | None:
        """What a trajectory has so far."""
        record = self.requests.get(request)
        return record.kept if record is not None else self.openings.get(request)

    def observed(self, request: RequestId, token_ids: Sequence[int], now: float) -> None:
        """An environment wrote these tokens, after which the policy goes on."""
        longer = with_observation(request, self.kept(request), token_ids)
        record = self.requests.get(request)
        if record is not None:
            record.response, record.finished_at_s = longer, record.finished_at_s or now
            record.is_answered = True
        elif longer is not None:
            self.openings[request] = longer

    def begin(self, request: RequestId) -> Episode:
        """A trajectory has a new environment, and nothing else; gives its episode."""
        failed = self.episodes.get(request)
        episode = self.episodes[request] = Episode()
        if failed is not None:
            self.num_restarts += 1
            episode.waited_s, episode.num_restarts = failed.waited_s, failed.num_restarts + 1
        self.openings.pop(request, None)
        record = self.requests.pop(request, None)
        if record is not None:
            self.num_tokens_discarded += record.num_kept
            self.stretches.append(record.stretch("failed", record.placed_at_s))
        return episode

    def stop_trajectory(self, request: RequestId) -> None:
        """A trajectory is not needed any more: the turn that it has last is no end of it."""
        record = self.requests.get(request)
        if record is not None and record.response is not None:
            record.response = replace(record.response, finish_reason=FinishReason.ABORTED)

    def end_trajectory(self, request: RequestId, *, is_whole: bool, now: float) -> None:
        """A trajectory has ended: with the turn that it has last, cut unless that is whole and ended its task."""
        record = self.requests.get(request)
        if record is None:
            nothing = empty_response(request)
            self.requests[request] = record = RequestRecord(
                request=request, engine=nothing.engine, launched_at_s=now, placed_at_s=now, response=nothing
            )
        kept = record.kept or empty_response(request)
        is_cut = not is_whole or kept.finish_reason is FinishReason.LENGTH
        record.response = without_last_observation(kept, FinishReason.LENGTH if is_cut else FinishReason.STOP)
        record.finished_at_s = record.finished_at_s or now

    def scored(self, verdict: Verdict, now: float) -> None:
        """The reward has scored a response."""
        record = self.requests.get(verdict.request)
        if record is None or record.verdict is not None:
            return  # of an earlier round, or a duplicate
        prompt = verdict.request.prompt
        self._num_scored[prompt] = self._num_scored.get(prompt, 0) + 1
        record.verdict = verdict
        record.scored_at_s = now
        record.race_rank = self._num_scored[prompt]
