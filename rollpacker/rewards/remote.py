"""Scores by a server: `reward.url`.

    POST   {"query": [prompt + response, ...], "prompts": [prompt, ...], "labels": [ground truth, ...]}
    answer {"rewards": [0.5, ...]}

One entry per response in each list, in the same order. In a run, prompts are as the model saw them, chat template
applied; its trial before the start and `rollpacker score` send the contents of the messages, one per line. A label is
empty where the line has no answer. A reward may be anything that a function returns (see `functions`): a
number, a pair of a number and a reason, or an object with `score`. Other fields of the answer are not read.

A request may take `reward.timeout_s` for each of its responses: a server that scores one after the other has as long
for each as a function has.

Where it refuses several texts with a status of `_OF_TEXTS`, each half of them is sent by itself, and has its verdicts
as soon as it is answered: a text is `http_error` only if it is refused alone.

A server that cannot be reached, or answers with another status, is asked again after each of `PAUSES_S`. After the last
one the run ends, or every further response would silently be worth nothing; it resumes from its last checkpoint.
Anything else is a verdict: `timeout`, `http_error`, `wrong_result`, `not_finite`.

Invariant: each request comes back from `collect` exactly once, unless it was forgotten.
Source: OpenRLHF's remote reward model (`openrlhf/utils/remote_rm_utils.py`, `openrlhf/cli/serve_rm.py`).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from rollpacker.config.words import counted
from rollpacker.core.errors import EngineFailed
from rollpacker.paths import reason_of
from rollpacker.protocols.blocking import in_daemon_thread
from rollpacker.rewards.bounded_http import open_bounded
from rollpacker.rewards.functions import Outcome, outcome_of
from rollpacker.rewards.scores import HTTP_ERROR, TIMEOUT, WRONG_RESULT, verdict_of
from rollpacker.rewards.worker import QueueRewardWorker, ground_truth_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.protocols.reward import ScoringRequest
    from rollpacker.protocols.rollout import Verdict

MOST_AT_ONCE = 64
"""Responses in a request."""

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Before a server is asked again: half a minute, in which one that was restarted is back."""

_ANSWER_BYTES = 16 << 20
"""More is no answer."""

_OF_TEXTS = frozenset({400, 413, 422})
"""Statuses that may refuse these texts, and not others: bad request, content too large, unprocessable content."""

_log = logging.getLogger(__name__)


def longest_first_verdict_s(section: RewardSection) -> float:
    """Return the longest time until a request has its first verdict; 0 where no server scores.

    The server may refuse all texts, then half of them, and so on down to one.
    """
    return (2 * MOST_AT_ONCE - 1) * section.timeout_s if "url" in section.names else 0.0


class ServerUnreachable(Exception):
    """It did not answer, or said that it cannot now; the message says why."""

    def __init__(self, problem: str, status: int | None = None) -> None:
        super().__init__(problem)
        self.status = status
        """Of its answer in HTTP; None where none came."""


class UrlRewardWorker(QueueRewardWorker):
    """Scores by POST requests, `num_workers` at a time. What waits meanwhile goes with the next one.

    A thread that waits for the server when the worker is closed ends with its time limit, or with the process.
    """

    most_at_once = MOST_AT_ONCE

    def __init__(self, url: str, num_workers: int, timeout_s: float, pauses_s: Sequence[float] = PAUSES_S) -> None:
        super().__init__(num_workers)
        self._url = url
        self._timeout_s = timeout_s
        self._pauses_s = pauses_s
        self._last_problem = ""
        """Of the last verdicts, empty where they had none: one that lasts is logged once."""

    async def _score_parts(self, task: int, requests: Sequence[ScoringRequest]) -> AsyncIterator[Sequence[Verdict]]:
        """Score a batch; of one that is refused give no verdict, and score each half by itself."""
        parts = [requests]
        while parts:
            part = parts.pop()
            verdicts = await self._score(task, part)
            if not verdicts:
                middle = len(part) // 2
                parts += part[middle:], part[:middle]
            yield verdicts

    async def _score(self, task: int, requests: Sequence[ScoringRequest]) -> Sequence[Verdict]:  # noqa: ARG002
        """Score a batch; give no verdict where the server refuses several texts."""
        outcomes, time_s = await self._ask(requests)
        if len(requests) > 1 and outcomes[0].score == HTTP_ERROR:
            return ()
        problem = next((each.problem for each in outcomes if each.problem), "")
        if problem and problem != self._last_problem:
            _log.warning("%s: %s", self._url, problem)
        self._last_problem = problem
        return [
            verdict_of(request, outcome.score, time_s / len(requests), outcome.parts)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    async def _ask(self, batch: Sequence[ScoringRequest]) -> tuple[Sequence[Outcome], float]:
        """Give the outcomes of a batch, and the time that the request took, without those before it."""
        problem = ""
        for pause_s in (0.0, *self._pauses_s):
            await asyncio.sleep(pause_s)
            began = time.perf_counter()
            try:
                outcomes = await in_daemon_thread(lambda: ask(self._url, batch, self._timeout_s))
                return outcomes, time.perf_counter() - began
            except ServerUnreachable as error:
                problem = str(error)
                _log.warning("%s: %s", self._url, problem)
        raise EngineFailed(
            f"The reward server {self._url} cannot be used: {problem}",
            f"It was asked {1 + len(self._pauses_s)} times, with {sum(self._pauses_s):.0f} s of pauses in all.",
            "Start it again or mend its answer (504: the time limit of the gateway before it), and resume the run.",
        )


def ask(url: str, requests: Sequence[ScoringRequest], timeout_s: float) -> list[Outcome]:
    """Have a server score some responses; waits for it, up to `timeout_s` for each of them.

    Raises:
        ServerUnreachable: It may answer later.
    """
    question = {
        "query": [request.prompt_text + request.response_text for request in requests],
        "prompts": [request.prompt_text for request in requests],
        "labels": [ground_truth_of(request.reference) for request in requests],
    }
    limit_s = timeout_s * len(requests)
    post = urllib.request.Request(  # noqa: S310 the configuration takes http and https only
        url, json.dumps(question).encode(), {"Content-Type": "application/json"}
    )
    try:
        with open_bounded(post, limit_s) as answer:
            body = answer.read(_ANSWER_BYTES + 1)
            if answer.length and len(body) <= _ANSWER_BYTES:  # `read` is silent where less comes than was announced
                raise http.client.IncompleteRead(body, answer.length)
    except urllib.error.HTTPError as error:
        problem = f"it answered with status {error.code}"
        if error.code not in _OF_TEXTS:
            raise ServerUnreachable(problem, error.code) from error
        return [Outcome(score=HTTP_ERROR, problem=problem)] * len(requests)
    except TimeoutError:
        problem = f"it took longer than {limit_s:g} s for {counted(len(requests), 'response')}"
        return [Outcome(score=TIMEOUT, problem=problem)] * len(requests)
    except urllib.error.URLError as error:
        raise ServerUnreachable(_reason(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachable(reason_of(error)) from error
    return _read(body, len(requests))


def _read(body: bytes, num_requests: int) -> list[Outcome]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return _wrong("its answer is no JSON", num_requests)
    rewards = answer.get("rewards") if isinstance(answer, dict) else None
    if not isinstance(rewards, list) or len(rewards) != num_requests:
        return _wrong(f"its answer has no list `rewards` of {num_requests}", num_requests)
    return [outcome_of(reward) for reward in rewards]


def _wrong(problem: str, num_requests: int) -> list[Outcome]:
    return [Outcome(score=WRONG_RESULT, problem=problem)] * num_requests


def _reason(error: urllib.error.URLError) -> str:
    reason = error.reason
    return reason_of(reason) if isinstance(reason, Exception) else str(reason)
