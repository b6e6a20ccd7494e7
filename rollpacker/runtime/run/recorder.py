"""Turns what happened in a step into rows of the metrics tables.

Stages are measured where they are awaited, one after the other, so that a step's stages add up to its time. A row is
written once its step is over: weights published, every aborted response back.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from rollpacker.core.commands import RoundKind
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, sampled, worker_of
from rollpacker.evaluation.statistics import quantile
from rollpacker.protocols.rollout import FinishReason
from rollpacker.protocols.trainer import UpdateMetrics
from rollpacker.protocols.weights import Published
from rollpacker.rewards.scores import has_failed, mean_parts
from rollpacker.runtime.rollout.batch import Batch
from rollpacker.runtime.rollout.costs import RoundCosts, Turnover
from rollpacker.runtime.rollout.episodes import ENVIRONMENT_ACTOR
from rollpacker.runtime.rollout.interval_log import Interval
from rollpacker.runtime.rollout.request_book import RequestRecord
from rollpacker.runtime.run.texts import KeptText
from rollpacker.runtime.waiting.clock import RunClock

Row = dict[str, Any]
Span = tuple[float, float]
"""Beginning and end, seconds since the run began."""
Actor = TypeVar("Actor", bound=str)

GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step gave beside its batch."""

    update: UpdateMetrics
    costs: RoundCosts
    published: Published
    num_tokens_streamed: int
    turnover: Turnover
    elastic: Mapping[str, float | None] = field(default_factory=dict)
    """Columns of `steps` that only a run with rollout workers has."""


class StepRecorder:
    """Collects one step."""

    def __init__(self, *, step: int, system: str, clock: RunClock, is_modelled: bool) -> None:
        self._step = step
        self._system = system
        self._clock = clock
        self._is_modelled = is_modelled
        self._stages: dict[str, Span] = {}
        self._driver_cpu_zero_s = time.process_time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure one stage."""
        began = self._clock.now()
        try:
            yield
        finally:
            self._stages[name] = (began, self._clock.now())

    def step_row(self, batch: Batch, result: StepResult, interval_log: Sequence[Interval]) -> Row:
        """The row of the `steps` table."""
        costs, published, turnover = result.costs, result.published, result.turnover
        requests = list(batch.requests.values())
        accepted = [request for request in requests if request.is_accepted]
        lengths = [_length(request) for request in accepted]
        by_age = _tokens_by_age(batch, accepted)
        generated = sum(_length(request) for request in requests) + batch.book.num_tokens_discarded
        trained = sum(lengths)
        generation_ended = batch.generated_at_s or batch.ended_at_s
        rollout_time = generation_ended - batch.began_at_s
        busy, idle = costs.growth("busy_slot_steps"), costs.growth("idle_slot_steps")
        drafts = [passes for each in costs.draft_passes().values() for passes in each]
        num_accepted = sum(passes.num_accepted for passes in drafts)
        num_sequence_passes = sum(passes.num_sequence_passes for passes in drafts)
        finished_at = self._clock.now()
        return {
            "step": self._step,
            "round": batch.begin.round,
            "round_kind": batch.begin.kind.value,
            "system": self._system,
            "step_time_s": self._step_time_s(),
            "rollout_time_s": rollout_time,
            "exposed_reward_time_s": batch.ended_at_s - generation_ended,
            "train_time_s": self._duration_s("train"),
            "stream_time_s": math.fsum(
                entry.ended_at_s - entry.started_at_s for entry in interval_log if entry.activity == "stream"
            ),
            "weight_sync_time_s": self._duration_s("weight_sync"),
            "weight_transfer_time_s": published.time_s,
            "weight_sync_bytes": published.num_bytes,
            "weight_sync_gb_per_second": _rate(published) / GIGA,
            "num_engines_lost_in_sync": len(published.lost),
            "checkpoint_time_s": self._duration_s("checkpoint"),
            "driver_time_s": 0.0 if self._is_modelled else time.process_time() - self._driver_cpu_zero_s,
            "finished_at_s": finished_at,
            "reward_mean": sum(request.verdict.reward for request in accepted if request.verdict) / len(accepted),
            "trained_reward_mean": sum(batch.trained_reward(request) or 0.0 for request in accepted) / len(accepted),
            "num_rewards_failed": sum(has_failed(each.verdict) for each in requests if each.verdict),
            "num_prompts": len(batch.accepted),
            "num_responses": len(accepted),
            "num_prompts_launched": (
                len({request.request.prompt for request in requests})
                if batch.dropped or batch.begin.kind is RoundKind.ASYNC
                else batch.begin.num_prompts_launched
            ),
            "num_prompts_dropped": len(batch.dropped),
            "num_responses_launched": len(requests),
            "num_aborted": sum(_finish_reason(request) is FinishReason.ABORTED for request in requests),
            "num_truncated": sum(_finish_reason(request) is FinishReason.LENGTH for request in accepted),
            "response_length_mean_tokens": trained / len(accepted),
            "response_length_max_tokens": max(lengths),
            "tokens_generated": generated,
            "tokens_trained": trained,
            "tokens_wasted": generated - trained,
            "tokens_dropped": sum(_length(request) for request in requests if request.request.prompt in batch.dropped),
            "tokens_streamed": result.num_tokens_streamed,
            "tokens_per_second": self._tokens_per_second(batch, costs, rollout_time),
            "decode_slot_steps_busy": busy,
            "decode_slot_steps_idle": idle,
            "bubble_ratio": idle / (busy + idle) if busy + idle else None,
            "requests_running_mean": costs.mean_per_pass("busy_slot_steps"),
            "requests_waiting_mean": costs.mean_per_pass("waiting_request_steps"),
            "kv_cache_used_share": costs.kv_cache_share,
            "num_preemptions": costs.growth("num_preemptions"),
            "prefix_query_tokens": costs.growth("num_prefix_query_tokens"),
            "prefix_hit_tokens": costs.growth("num_prefix_hit_tokens"),
            "draft_tokens_verified": sum(passes.num_drafted for passes in drafts),
            "draft_tokens_accepted": num_accepted,
            "tokens_per_sequence_pass": 1 + num_accepted / num_sequence_passes if num_sequence_passes else None,
            "tensor_parallel": costs.tensor_parallel,
            "escalated_from": costs.escalated_from,
            "parallelism_gain": costs.parallelism_gain,
            "switch_time_s": turnover.switch_time_s,
            "num_engines_lent": costs.num_engines_lent,
            "lent_at_share": batch.lent_at_share,
            "num_engines_lost": turnover.num_lost,
            "num_engines_replaced": turnover.num_replaced,
            "num_engines": costs.num_engines,
            "policy_version": batch.policy_version,
            **_staleness(by_age),
            "tokens_by_staleness": (
                {str(age): float(num_tokens) for age, num_tokens in by_age.items()} if any(by_age) else None
            ),
            "num_requests_continued": batch.book.num_continued,
            "tokens_recomputed": batch.book.num_tokens_recomputed,
            "suspend_time_s": self._duration_s("quiesce"),
            **_NO_WORKERS,
            **result.elastic,
            **_environments(batch, accepted),
            "long_queue_length": batch.long_queue_length,
            "num_prompts_deferred_at_once": batch.num_deferred_at_once,
            "gpu_memory_peak_gb": _by_role(engine=costs.gpu_memory_peak_gb, trainer=result.update.gpu_memory_peak_gb),
            **{name: getattr(result.update, name) for name in _UPDATE_COLUMNS},
            "modelled": self._is_modelled,
        }

    def domain_rows(self, batch: Batch) -> list[Row]:
        """The rows of the `domains` table, by name."""
        requests: dict[Domain, list[RequestRecord]] = {}
        for request in batch.requests.values():
            if request.is_accepted:
                domain = batch.prompts[request.request.prompt.key].prompt.domain
                requests.setdefault(domain, []).append(request)
        return [self._domain_row(batch, domain, requests[domain]) for domain in sorted(requests)]

    def _domain_row(self, batch: Batch, domain: Domain, accepted: Sequence[RequestRecord]) -> Row:
        rewards: dict[PromptId, list[float]] = {}
        for request in accepted:
            if request.verdict:
                rewards.setdefault(request.request.prompt, []).append(request.verdict.reward)
        lengths = sorted(_length(request) for request in accepted)
        num_truncated = sum(_finish_reason(request) is FinishReason.LENGTH for request in accepted)
        return {
            "step": self._step,
            "domain": domain,
            "num_prompts": len(rewards),
            "num_responses": len(accepted),
            "reward_mean": sum(map(sum, rewards.values())) / len(accepted),
            "reward_parts_mean": mean_parts(request.verdict for request in accepted if request.verdict) or None,
            "solve_rate": sum(max(group) > 0 for group in rewards.values()) / len(rewards),
            "no_signal_share": sum(min(group) == max(group) for group in rewards.values()) / len(rewards),
            "response_length_mean_tokens": sum(lengths) / len(lengths),
            "response_length_p50_tokens": quantile(lengths, 50),
            "response_length_p90_tokens": quantile(lengths, 90),
            "response_length_max_tokens": lengths[-1],
            "truncated_share": num_truncated / len(accepted),
            **_staleness(_tokens_by_age(batch, accepted)),
            "modelled": self._is_modelled,
        }

    def response_rows(self, batch: Batch, texts: Mapping[RequestId, KeptText]) -> list[Row]:
        """The rows of the `responses` table, in launch order; a request lost with the last engine has none.

        `texts` are of those that are kept as text.
        """
        return [
            self._response_row(batch, request, texts.get(request.request, KeptText()))
            for request in batch.requests.values()
            if request.response is not None and request.finished_at_s is not None
        ]

    def _response_row(self, batch: Batch, request: RequestRecord, kept: KeptText) -> Row:
        response, verdict = request.response, request.verdict
        assert response is not None
        name, spans = request.request, sampled(response.spans)
        tokenized = batch.prompts[name.prompt.key]
        return {
            "step": self._step,
            "round": name.round,
            "round_kind": batch.begin.kind.value,
            "epoch": name.prompt.epoch,
            "prompt": name.prompt.key,
            "domain": tokenized.prompt.domain,
            "sample": name.sample,
            "engine": request.engine,
            "policy_version": spans[-1].policy_version if spans else batch.policy_version,
            "first_policy_version": spans[0].policy_version if spans else batch.policy_version,
            "num_prompt_tokens": len(tokenized.token_ids),
            "length_tokens": response.num_tokens,
            "finish_reason": response.finish_reason.value,
            "launched_at_s": request.launched_at_s,
            "placed_at_s": request.placed_at_s,
            "finished_at_s": request.finished_at_s,
            "queue_time_s": response.queue_time_s,
            "generation_time_s": response.generation_time_s,
            "reward": verdict.reward if verdict else None,
            "trained_reward": batch.trained_reward(request),
            "reward_parts": (verdict.parts or None) if verdict else None,
            "reward_reason": verdict.reason if verdict else None,
            "reward_time_s": verdict.time_s if verdict else None,
            "scored_at_s": request.scored_at_s,
            **_episode(batch, name),
            **kept._asdict(),
            "race_rank": request.race_rank,
            "accepted": request.is_accepted,
            "is_raced": batch.begin.kind is RoundKind.SHORT,
            "modelled": self._is_modelled,
        }

    def interval_rows(self, batch: Batch, interval_log: Sequence[Interval]) -> list[Row]:
        """The rows of the `intervals` table: stages of the step, what engines and reward did, and what was logged."""
        intervals = [
            _interval(actor, role, stage, self._stages[stage])
            for stage, actor, role in _STAGE_ACTORS
            if stage in self._stages
        ]
        spans: dict[EngineId, Span] = {}
        scoring: dict[str, Span] = {}
        for request in batch.requests.values():
            if request.finished_at_s is not None:
                _widen(spans, request.engine, (request.placed_at_s, request.finished_at_s))
            verdict, scored_at_s = request.verdict, request.scored_at_s
            if verdict is not None and scored_at_s is not None and verdict.scorer != ENVIRONMENT_ACTOR:
                _widen(scoring, verdict.scorer, (scored_at_s - verdict.time_s, scored_at_s))
        for stretch in batch.book.stretches:
            _widen(spans, stretch.engine, (stretch.began_at_s, stretch.ended_at_s))
        intervals += [_interval(engine, _role(engine), "generate", span) for engine, span in sorted(spans.items())]
        intervals += [
            _interval(scorer, scorer.partition("-")[0], "score", span) for scorer, span in sorted(scoring.items())
        ]
        intervals += [
            Interval(
                actor=stretch.engine,
                role=_role(stretch.engine),
                activity=stretch.end,
                started_at_s=stretch.began_at_s,
                ended_at_s=stretch.ended_at_s,
                subject=str(stretch.request),
                num_tokens=stretch.num_tokens,
            )
            for stretch in batch.book.stretches
        ]
        intervals += [
            Interval(
                actor=ENVIRONMENT_ACTOR,
                role=ENVIRONMENT_ACTOR,
                activity=stay.activity,
                started_at_s=stay.began_at_s,
                ended_at_s=stay.ended_at_s,
                subject=str(stay.request),
            )
            for stay in batch.book.stays
        ]
        of_step = {"step": self._step, "round": batch.begin.round, "modelled": self._is_modelled}
        return [
            {name: getattr(interval, name) for name in _INTERVAL_COLUMNS} | of_step
            for interval in (*intervals, *interval_log)
        ]

    def _tokens_per_second(self, batch: Batch, costs: RoundCosts, rollout_time: float) -> float:
        """Tokens sampled per second of generation; 0 where nothing took any time."""
        if not batch.max_staleness:
            num_tokens, time_s = sum(map(_num_sampled, batch.requests.values())), rollout_time
        else:  # its responses may be of earlier steps, and engines have others under way
            num_tokens = costs.growth("num_generated_tokens")
            takes_turns = "hand_over" in self._stages  # else engines go on while the trainer learns
            time_s = batch.ended_at_s - batch.began_at_s if takes_turns else self._step_time_s()
        return num_tokens / time_s if time_s > 0 else 0.0

    def _duration_s(self, stage: str) -> float:
        began, ended = self._stages.get(stage, (0.0, 0.0))
        return ended - began

    def _step_time_s(self) -> float:
        """From the start of the rollout until every engine holds the new weights; a checkpoint comes after it."""
        spans = [span for stage, span in self._stages.items() if stage != "checkpoint"]
        return max(ended for _, ended in spans) - min(began for began, _ in spans)


_UPDATE_COLUMNS = tuple(
    field.name
    for field in fields(UpdateMetrics)
    if field.name not in {"policy_version", "num_tokens", "gpu_memory_peak_gb", "current_entropy"}
)
"""Those of the `steps` table that the trainer reports."""

_INTERVAL_COLUMNS = tuple(field.name for field in fields(Interval))
"""Those of the `intervals` table that every entry has of its own."""

_NO_WORKERS = dict.fromkeys(
    (
        *("num_members_mean", "num_workers_wished", "num_members_lost", "tokens_of_members", "tokens_saved"),
        *("num_requests_moved", "seeding_s", "num_reclaims", "member_idle_s", "trainer_idle_s"),
    )
)
"""What the columns are in a run without rollout workers."""

_STAGE_ACTORS: Sequence[tuple[str, str, str]] = (
    ("rollout", "driver", "driver"),
    ("hand_over", "driver", "driver"),
    ("train", "trainer", "trainer"),
    ("quiesce", "driver", "driver"),
    ("weight_sync", "driver", "driver"),
    ("checkpoint", "trainer", "trainer"),
)
"""Stage, actor and role."""


def _interval(actor: str, role: str, activity: str, span: Span) -> Interval:
    return Interval(actor=actor, role=role, activity=activity, started_at_s=span[0], ended_at_s=span[1])


def _widen(spans: dict[Actor, Span], actor: Actor, span: Span) -> None:
    """Have an actor's span include another one."""
    began, ended = spans.get(actor, span)
    spans[actor] = (min(began, span[0]), max(ended, span[1]))


def _role(engine: EngineId) -> str:
    return "engine" if worker_of(engine) is None else "worker"


def _by_role(**values: float | None) -> dict[str, float] | None:
    """Those that are known; None where none is."""
    return {role: value for role, value in values.items() if value is not None} or None


def _rate(published: Published) -> float:
    """Bytes per second; 0 where a transfer takes no time, as in a modelled run."""
    return published.num_bytes / published.time_s if published.time_s > 0 else 0.0


def _tokens_by_age(batch: Batch, accepted: Sequence[RequestRecord]) -> dict[int, int]:
    """Trained tokens by how many versions behind the batch's they are, the newest first."""
    by_age: Counter[int] = Counter()
    for request in accepted:
        for age, num_tokens in batch.ages(request):
            by_age[age] += num_tokens
    return dict(sorted(by_age.items()))


def _staleness(by_age: Mapping[int, int]) -> Row:
    return {
        "staleness_mean": sum(age * num_tokens for age, num_tokens in by_age.items()) / max(sum(by_age.values()), 1),
        "staleness_max": max(by_age, default=0),
    }


def _environments(batch: Batch, accepted: Sequence[RequestRecord]) -> Row:
    """Columns of `steps` that only a run with environments has."""
    book = batch.book
    found = [book.episodes[request.request] for request in accepted if request.request in book.episodes]
    return {
        "num_turns_mean": sum(len(each.turns) for each in found) / len(found) if found else None,
        "environment_time_mean_s": math.fsum(each.waited_s for each in found) / len(found) if found else None,
        "num_environment_restarts": book.num_restarts if found else None,
        "num_episodes_given_up": book.num_given_up if found else None,
    }


def _episode(batch: Batch, request: RequestId) -> Row:
    """Columns of `responses` that only a run with environments has."""
    episode = batch.book.episodes.get(request)
    return {
        "num_turns": len(episode.turns) if episode else None,
        "environment_time_s": episode.waited_s if episode else None,
        "num_environment_restarts": episode.num_restarts if episode else None,
    }


def _length(request: RequestRecord) -> int:
    return request.response.num_tokens if request.response else 0


def _num_sampled(request: RequestRecord) -> int:
    """Tokens of its response that the policy sampled, not its environment."""
    return sum(span.num_tokens for span in sampled(request.response.spans)) if request.response else 0


def _finish_reason(request: RequestRecord) -> FinishReason | None:
    return request.response.finish_reason if request.response else None
