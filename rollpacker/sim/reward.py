"""A modelled reward service: programs in a sandbox, rules on CPU workers, answers read by an LLM judge.

Invariant: each response has one verdict. What it says, and the work that it takes, are the workload's and depend on the
request alone; how long it takes depends on the limit and on what else is scored at the time. What does not end within
its limit is stopped there, with reward 0 and reason `timeout`.

A program is one test case, number 0: the paper's run times (Fig 7a) are those of whole programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rollpacker.core.events import CaseRun
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.rollout import Verdict
from rollpacker.sim.judge import Answer, Judge
from rollpacker.sim.sandbox import Program, Sandbox

if TYPE_CHECKING:
    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.protocols.reward import ResponseToScore
    from rollpacker.sim.judge import JudgePlan

Item = TypeVar("Item", Program, Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledScore:
    """The score of a response, and the work that scoring takes."""

    reward: float
    reason: str
    time_s: float = 0.0
    """On a core of its own, without a limit; infinite for a program that never ends."""
    has_program: bool = False
    """True when test cases run in the sandbox."""
    start_s: float = 0.0
    """Of a program's sandbox; no limit counts it."""
    judge_tokens: int | None = None
    """What an LLM judge reads; None when none does."""


class ModelledReward:
    """Scores as the workload says.

    Args:
        section: Workers, cores, and the limit of what is given none.
        num_cores: Of the cluster, for programs; None: as many as workers.
        judge: Where an LLM judge works; None when no response needs one.
        score_of: The score of each response and the work that it takes.
    """

    def __init__(
        self,
        section: RewardSection,
        *,
        num_cores: int | None = None,
        judge: JudgePlan | None = None,
        score_of: Callable[[ResponseToScore], ModelledScore],
    ) -> None:
        self._timeout_s = section.timeout_s
        self._score_of = score_of
        num_workers, num_rule_workers = section.num_workers, section.num_rule_workers
        num_places = num_workers if section.num_cores else min(num_workers, num_cores or num_workers)
        programs = Sandbox(num_places=num_places, num_cores=section.num_cores or num_places)
        self._programs = self._rules = _Timed(programs, self._programs_ended)
        if num_rule_workers is not None:
            rules = Sandbox(num_places=num_rule_workers, num_cores=num_rule_workers)
            self._rules = _Timed(rules, self._programs_ended)
        self._judge: _Timed[Answer] | None = None
        if judge is not None:
            self._judge = _Timed(Judge(judge.costs, num_replicas=judge.num_replicas), self._answers_read)
        self._in_work: dict[Program | Answer, tuple[ResponseToScore, ModelledScore]] = {}
        self._arrivals: Arrivals[Verdict] = Arrivals()

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        programs: list[Program] = []
        rules: list[Program] = []
        answers: list[Answer] = []
        for response in responses:
            score = self._score_of(response)
            item: Program | Answer
            if score.judge_tokens is not None:
                item = Answer(num_tokens=score.judge_tokens)
                answers.append(item)
            else:
                limit_s = self._timeout_s
                if score.has_program and response.case_limits_s:
                    limit_s = response.case_limits_s[0]
                item = Program(work_s=score.start_s + score.time_s, limit_s=score.start_s + limit_s)
                (programs if score.has_program else rules).append(item)
            self._in_work[item] = response, score
        if programs:
            self._programs.add(programs)
        if rules:
            self._rules.add(rules)
        if answers:
            assert self._judge is not None
            self._judge.add(answers)

    async def forget(self) -> None:
        """Stop everything: programs are killed, and a judge's batches are given up."""
        for worker in (self._programs, self._rules, self._judge):
            if worker is not None:
                worker.forget()
        self._in_work.clear()

    async def collect(self) -> Sequence[Verdict]:
        return await self._arrivals.collect()

    async def close(self) -> None:
        self._programs.close()
        self._rules.close()
        if self._judge is not None:
            self._judge.close()
        self._arrivals.close()

    def _programs_ended(self, programs: Sequence[Program]) -> None:
        self._arrivals.put([self._verdict_on(program) for program in programs])

    def _verdict_on(self, program: Program) -> Verdict:
        response, score = self._in_work.pop(program)
        is_right = score.reward > 0 and not program.was_killed
        return Verdict(
            request=response.request,
            reward=0.0 if program.was_killed else score.reward,
            reason="timeout" if program.was_killed else score.reason,
            time_s=program.time_s,
            case_runs=(CaseRun(0, program.time_s - score.start_s, is_right),) if score.has_program else (),
        )

    def _answers_read(self, answers: Sequence[Answer]) -> None:
        verdicts: list[Verdict] = []
        for answer in answers:
            response, score = self._in_work.pop(answer)
            verdicts.append(
                Verdict(request=response.request, reward=score.reward, reason=score.reason, time_s=answer.time_s)
            )
        self._arrivals.put(verdicts)


class _Worker(Protocol[Item]):
    """Something that takes work and says when some of it is next done."""

    @property
    def next_at_s(self) -> float | None: ...

    def add(self, items: Iterable[Item], now: float, /) -> None: ...

    def advance(self, now: float, /) -> Sequence[Item]: ...

    def forget(self, now: float, /) -> None: ...


class _Timed(Generic[Item]):
    """Drives a worker by one timer of the running loop."""

    def __init__(self, worker: _Worker[Item], on_done: Callable[[Sequence[Item]], None]) -> None:
        self._worker: _Worker[Item] = worker
        self._on_done: Callable[[Sequence[Item]], None] = on_done
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, items: Sequence[Item]) -> None:
        self._worker.add(items, self._loop.time())
        self._arm()

    def forget(self) -> None:
        self._worker.forget(self._loop.time())
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        due = self._worker.next_at_s
        if self._timer is not None:
            if self._timer.when() == due:
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._advance)

    def _advance(self) -> None:
        self._timer = None
        done = self._worker.advance(self._loop.time())
        self._arm()
        self._on_done(done)
