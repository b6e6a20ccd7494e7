"""Measures the workers of a run: the offline phase of the paper (section 4.2), by the calls that a run makes.

Invariant: everything is measured through the protocols, on the actors that a run of the same configuration would start,
so that a profile holds what a run would meet: the engine's own bookkeeping, calls between processes, other actors that
share the cores. Nothing is measured once but what happens once, and repetitions of a point lie far apart in time, so
that a disturbance of a second spoils one repetition of many points and not all of one.

How a pass is timed: n requests with equally long prompts start together, and two more whose limits are 1 and 2 tokens.
The first of these ends with the prefill, the second with the first decoding pass; what a longer response took beyond
the second one, by the engine's own clock, is its further passes. Responses that end by themselves make the batch
smaller on the way; a point states the means.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rollpacker.config.sections.base import exact
from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.core.quotas import scale_up
from rollpacker.metrics.profiles import Point, Profile, ProfileFacts
from rollpacker.protocols.backend import Backend, BackendContext, Workers
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import (
    FinishReason,
    GenerationRequest,
    Response,
    RolloutGroup,
    TokenizedPrompt,
    Verdict,
    VersionSpan,
)
from rollpacker.protocols.trainer import BatchShape
from rollpacker.runtime.waiting.watchdog import Watchdog

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.engine import Engine
    from rollpacker.protocols.rollout import TokenIds

NUM_REPEATS = 5
"""Of each point; enough for a median that one disturbance does not move."""

WINDOW_PASSES = 24
"""Decoding passes that one probe times: 50 ms of the fastest engines, where clocks and wake-ups do not count."""

LARGE_BATCH_PASSES = 8
"""The same for batches above `LARGE_BATCH`, whose passes are long."""

LARGE_BATCH = 32

HOT = {"torch": 10.0, "vllm": 2.0}
"""Temperature of the probes: nearly every token is as likely as any other, so few responses end by themselves. vLLM
takes none above 2."""

NUM_PROMPTS_READ = 256
"""Prompts of the data whose tokens the probes are made of."""

OnProgress = Callable[[int, int, str], None]
"""Told of points measured, points to measure, and what comes next."""


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burst:
    """Requests that an engine was asked for at once, and what came of it."""

    responses: Sequence[Response]
    asked_s: float
    """Until the engine had confirmed the requests."""
    elapsed_s: float
    """Until the last response was here."""


@dataclass(slots=True)
class _Samples:
    """Repetitions of one point."""

    measurement: str
    num_items: list[float]
    num_tokens: list[float]
    seconds: list[float]
    num_ended: list[float]
    num_bytes: int | None = None

    def to_point(self, tensor_parallel: int) -> Point:
        low, middle, high = (float(np.quantile(self.seconds, q)) for q in (0.1, 0.5, 0.9))
        return Point(
            measurement=self.measurement,
            tensor_parallel=tensor_parallel,
            num_items=float(np.mean(self.num_items)),
            num_tokens=float(np.mean(self.num_tokens)),
            seconds=middle,
            seconds_low=low,
            seconds_high=high,
            num_repeats=len(self.seconds),
            num_ended=float(np.mean(self.num_ended)),
            num_bytes=self.num_bytes,
        )


async def measure(
    config: RunConfig,
    backend: Backend,
    facts: ProfileFacts,
    *,
    kv_bytes_per_token: int,
    logs: Path,
    on_progress: OnProgress,
    on_note: Callable[[str], None],
) -> Profile:
    """Start the workers of a run, measure them, and end them."""
    watchdog = Watchdog(logs / "stall.txt", config.backend.deadlines.driver_stall_s)
    watchdog.start()
    try:
        surroundings = BackendContext(
            logs=logs,
            stage=lambda name: on_progress(0, 0, name),
            note=on_note,
            within=watchdog.within,
            add_stack_source=watchdog.add_stack_source,
        )
        async with backend.open(surroundings) as workers:
            profiler = Profiler(
                config,
                workers,
                collect_interval_s=facts.collect_interval_s,
                kv_bytes_per_token=kv_bytes_per_token,
                watchdog=watchdog,
                on_progress=on_progress,
            )
            return Profile(facts=facts, points=tuple(await profiler.measure_all()))
    finally:
        await watchdog.stop()


class Profiler:
    """Measures started workers, all engines at the same time."""

    def __init__(
        self,
        config: RunConfig,
        workers: Workers,
        *,
        collect_interval_s: float,
        kv_bytes_per_token: int,
        watchdog: Watchdog,
        on_progress: OnProgress,
    ) -> None:
        self._config = config
        self._workers = workers
        self._fleets = {degree: fleet.engines for degree, fleet in workers.fleets.items()}
        self._degree, self._engines = next(iter(self._fleets.items()))
        self._hot = HOT[config.engine.name]
        self._collect_interval_s = collect_interval_s
        self._kv_bytes_per_token = kv_bytes_per_token
        self._watchdog = watchdog
        self._on_progress = on_progress
        self._samples: dict[tuple[object, ...], _Samples] = {}
        self._rounds = itertools.count()
        self._prompts = list(workers.prompts.values())
        self._tokens = np.concatenate([prompt.token_ids for prompt in self._prompts[:NUM_PROMPTS_READ]])
        self._policy_version = 0
        self._num_done = 0

    async def measure_all(self) -> list[Point]:
        """Measure every point."""
        points: list[Point] = []
        await self._publish()
        await self._probe_first("first_rollout", self._first_passes)
        batch = await self._natural_responses()
        await self._probe_first("first_train", lambda: self._train(batch, is_trained=True))
        for degree in self._fleets:
            await self._switch_to(degree)
            await self._measure_fleet(batch, with_trainer=not points)
            points += [samples.to_point(degree) for samples in self._samples.values()]
            points.append(await self._kv_cache())
            self._samples = {}
        return points

    async def _measure_fleet(self, batch: Sequence[RolloutGroup], *, with_trainer: bool) -> None:
        """Measure the engines that are awake, and what does not depend on their degree if asked to."""
        grid = [(size, context) for size in self._batch_sizes() for context in self._contexts()]
        selections = list(self._selections(batch)) if with_trainer else []
        exchanges = sorted({1, max(1, self._num_launched() // 8), self._num_launched()})
        num_points = NUM_REPEATS * (len(grid) + len(exchanges) + 2 * len(selections) + 2)
        for _ in range(NUM_REPEATS):
            self._tell(num_points, "a batch of the data")
            await self._natural_responses()
            for size, context in grid:
                self._tell(num_points, f"decoding {size} sequences of {context} tokens")
                await self._probe_engines(size, context)
            for num_requests in exchanges:
                self._tell(num_points, f"exchanging {num_requests} requests")
                await self._probe_exchange(num_requests)
                async with self._surroundings_of_scoring():
                    await self._probe_reward(batch, num_requests)
            for groups in selections:
                for is_trained in (True, False):
                    self._tell(num_points, f"training {sum(len(group.responses) for group in groups)} responses")
                    await self._probe_trainer(groups, is_trained=is_trained)
            self._tell(num_points, "sending weights")
            await self._probe_weight_sync()

    async def _switch_to(self, degree: int) -> None:
        """Wake the engines of another degree; those that were awake sleep."""
        if degree != self._degree:
            rebuild = self._workers.rebuild
            ends = [rebuild.end(name) if rebuild else engine.sleep() for name, engine in self._engines.items()]
            await self._within(asyncio.gather(*ends))
            self._degree, self._engines = degree, self._fleets[degree]
            begins = [rebuild.rebuild(name) if rebuild else engine.wake() for name, engine in self._engines.items()]
            await self._within(asyncio.gather(*begins))
            await self._publish()
        self._num_done = 0

    def _tell(self, num_points: int, what: str) -> None:
        self._on_progress(self._num_done, num_points, what)
        self._num_done += 1

    def _note(
        self,
        key: tuple[object, ...],
        num_items: float,
        num_tokens: float,
        seconds: float,
        *,
        num_ended: float = 0.0,
        num_bytes: int | None = None,
    ) -> None:
        """Take one repetition of the point `key`, which begins with its measurement."""
        samples = self._samples.setdefault(key, _Samples(str(key[0]), [], [], [], [], num_bytes))
        samples.num_ended.append(num_ended)
        samples.num_items.append(num_items)
        samples.num_tokens.append(num_tokens)
        samples.seconds.append(max(seconds, 0.0))

    # What is measured -----------------------------------------------------------------------------------------------

    def _batch_sizes(self) -> list[int]:
        """Powers of 2 up to the slots of an engine; two slots are for the probe's own marks."""
        largest = max(self._config.engine.max_num_seqs - 2, 1)
        return sorted({min(1 << power, largest) for power in range(largest.bit_length() + 1)})

    def _contexts(self) -> list[int]:
        """Prompt lengths: as the data has them, up to the longest that leaves room for a window."""
        longest = self._config.data.max_prompt_tokens + self._config.rollout.max_response_tokens
        room = max(longest - WINDOW_PASSES - 2, 1)
        typical = min(int(np.median([len(prompt.token_ids) for prompt in self._prompts])), room)
        return sorted({typical, max(typical, room // 3), room})

    def _launched(self) -> tuple[int, int]:
        """Prompts of a round, and responses of each, as many as a round may launch."""
        rollout, system = self._config.rollout, self._config.system
        if system.batching == "plain":
            return rollout.num_prompts, rollout.num_responses
        num_prompts = scale_up(rollout.num_prompts, exact(system.eta_prompts))
        return min(num_prompts, len(self._prompts)), scale_up(rollout.num_responses, exact(system.eta_responses))

    def _num_launched(self) -> int:
        """Requests of a round."""
        return math.prod(self._launched())

    def _selections(self, batch: Sequence[RolloutGroup]) -> Iterator[list[RolloutGroup]]:
        """Parts of a batch that differ in size and in length."""
        by_length = sorted(batch, key=lambda group: sum(response.num_tokens for response in group.responses))
        shuffled = random.Random(0).sample(by_length, len(by_length))
        for share in (4, 2):
            num_groups = max(1, len(batch) // share)
            yield by_length[:num_groups]
            yield by_length[-num_groups:]
            yield shuffled[:num_groups]
        yield by_length

    # What happens once ----------------------------------------------------------------------------------------------

    async def _probe_first(self, measurement: str, do: Callable[[], Awaitable[object]]) -> None:
        """Time something that these workers have never done, beyond what it takes when it is done again."""
        seconds: list[float] = []
        for _ in range(1 + NUM_REPEATS):
            began = _now_s()
            await do()
            seconds.append(_now_s() - began)
        self._note((measurement,), 0, 0, seconds[0] - float(np.median(seconds[1:])))

    async def _first_passes(self) -> None:
        size = min(self._num_launched(), self._config.engine.max_num_seqs)
        context = self._contexts()[0]
        limits = [WINDOW_PASSES] * size
        await asyncio.gather(
            *(self._burst(engine, self._requests(context, limits, self._hot)) for engine in self._engines.values())
        )

    # Engines --------------------------------------------------------------------------------------------------------

    async def _probe_engines(self, size: int, context: int) -> None:
        window = LARGE_BATCH_PASSES if size > LARGE_BATCH else WINDOW_PASSES
        limits = [1, 2, *[window + 2] * size][: self._config.engine.max_num_seqs]
        bursts = await asyncio.gather(
            *(self._burst(engine, self._requests(context, limits, self._hot)) for engine in self._engines.values())
        )
        for burst in bursts:
            self._note_passes(size, context, burst.responses)

    def _note_passes(self, size: int, context: int, responses: Sequence[Response]) -> None:
        """Split what the engine's clock says of a burst into its prefill and its passes."""
        ends = {response.num_tokens: response.generation_time_s for response in responses}
        last = max(ends)
        if 1 in ends:
            self._note(("prefill", size, context), len(responses), len(responses) * context, ends[1])
        if 2 in ends and last > 2:  # noqa: PLR2004  (the limit of the second mark)
            lengths = np.array([response.num_tokens for response in responses])
            alive = [int((lengths >= num_tokens).sum()) for num_tokens in range(3, last + 1)]
            cached = [count * (context + 2 + ahead) for ahead, count in enumerate(alive)]
            seconds = (ends[last] - ends[2]) / len(alive)
            self._note(("decode", size, context), float(np.mean(alive)), float(np.mean(cached)), seconds)

    def _note_endings(self, responses: Sequence[Response], num_prompt_tokens: float) -> None:
        """Note the passes of a batch that shrinks, between the moments at which half of what ran has ended.

        All of it started together, so a response's length says in which pass it ended, and its time says when that was.
        """
        if len(responses) > self._config.engine.max_num_seqs:
            return  # some had to wait
        lengths = np.sort([response.num_tokens for response in responses])
        ends = {response.num_tokens: response.generation_time_s for response in responses}
        begin = int(lengths[0])
        for level in itertools.count():
            rest = lengths[lengths > begin]
            if len(rest) == 0:
                return
            end = int(rest[(len(rest) - 1) // 2])
            alive = [int((lengths >= num_tokens).sum()) for num_tokens in range(begin + 1, end + 1)]
            cached = [count * (num_prompt_tokens + begin + ahead) for ahead, count in enumerate(alive)]
            num_ended = int(((lengths >= begin) & (lengths < end)).sum()) / len(alive)
            seconds = (ends[end] - ends[begin]) / len(alive)
            self._note(("ending", level), float(np.mean(alive)), float(np.mean(cached)), seconds, num_ended=num_ended)
            begin = end

    async def _probe_exchange(self, num_requests: int) -> None:
        """Time a call, requests on their way to an engine, and responses on their way back."""
        engine = next(iter(self._engines.values()))
        await asyncio.sleep(self._collect_interval_s)  # the last answer is long ago, so the next one need not wait
        began = _now_s()
        await self._within(engine.stats())
        call_s = _now_s() - began
        self._note(("call",), 0, 0, call_s)
        typical = self._contexts()[0]
        num_requests = min(num_requests, self._config.engine.max_num_seqs)
        burst = await self._burst(engine, self._requests(typical, [1] * num_requests, self._config.rollout.temperature))
        in_engine_s = max(response.queue_time_s + response.generation_time_s for response in burst.responses)
        there_s = burst.asked_s - call_s / 2
        self._note(("request", num_requests), num_requests, num_requests * typical, burst.asked_s)
        self._note(("response", num_requests), num_requests, num_requests, burst.elapsed_s - in_engine_s - there_s)

    def _requests(self, context: int, limits: Sequence[int], temperature: float) -> list[GenerationRequest]:
        """Make requests whose prompts are as long as `context`, a group of a run sharing each."""
        number = next(self._rounds)
        group_size = self._config.rollout.num_responses
        names = [prompt.prompt.key for prompt in self._prompts]
        return [
            GenerationRequest(
                request=RequestId(number, PromptId(0, names[index // group_size % len(names)]), index),
                prompt_token_ids=self._prompt_tokens(index // group_size, context),
                seed=hash((number, index)) & (2**63 - 1),
                max_response_tokens=limit,
                temperature=temperature,
            )
            for index, limit in enumerate(limits)
        ]

    def _prompt_tokens(self, number: int, length: int) -> TokenIds:
        """Cut a piece out of the data's prompts, written one after the other."""
        return np.resize(np.roll(self._tokens, -number * length), length).astype(np.int32)

    async def _burst(
        self,
        engine: Engine,
        requests: Sequence[GenerationRequest],
        scored_with: Mapping[str, TokenizedPrompt] | None = None,
    ) -> _Burst:
        """Ask for responses and await them; they are scored as they come where their prompts are given."""
        began = _now_s()
        collecting = asyncio.create_task(self._collect(engine, len(requests), scored_with))
        try:
            await self._within(engine.generate(requests))
            asked_s = _now_s() - began
            responses = await self._within(collecting)
        finally:
            collecting.cancel()
        return _Burst(responses=responses, asked_s=asked_s, elapsed_s=_now_s() - began)

    async def _collect(
        self, engine: Engine, num_responses: int, scored_with: Mapping[str, TokenizedPrompt] | None
    ) -> list[Response]:
        responses: list[Response] = []
        while len(responses) < num_responses:
            news = await engine.collect()
            responses += news
            if scored_with:
                asked = [
                    ResponseToScore(
                        request=response.request,
                        prompt=scored_with[response.request.prompt.key].prompt,
                        token_ids=response.token_ids,
                        is_truncated=response.finish_reason is FinishReason.LENGTH,
                    )
                    for response in news
                ]
                await self._workers.reward.score(asked)
        return responses

    async def _kv_cache(self) -> Point:
        stats = await self._within(next(iter(self._engines.values())).stats())
        return Point(
            measurement="kv_cache",
            tensor_parallel=self._degree,
            num_items=0,
            num_tokens=stats.kv_tokens_capacity,
            seconds=0,
            seconds_low=0,
            seconds_high=0,
            num_repeats=1,
            num_bytes=self._kv_bytes_per_token,
        )

    # A batch as a run has it ----------------------------------------------------------------------------------------

    async def _natural_responses(self) -> list[RolloutGroup]:
        """Roll out a round of the data to its end, so that lengths are those of the policy; give a batch of it.

        What its endings took is noted.
        """
        rollout = self._config.rollout
        num_prompts, num_samples = self._launched()
        prompts = self._prompts[:num_prompts]
        number = next(self._rounds)
        requests = [
            GenerationRequest(
                request=RequestId(number, PromptId(0, prompt.prompt.key), sample),
                prompt_token_ids=prompt.token_ids,
                seed=hash((number, index, sample)) & (2**63 - 1),
                max_response_tokens=rollout.max_response_tokens,
                temperature=rollout.temperature,
            )
            for index, prompt in enumerate(prompts)
            for sample in range(num_samples)
        ]
        engines = list(self._engines.values())
        scored_with, judging = None, None
        if self._config.system.reward != "batch":  # else nothing is judged while engines work
            scored_with = {prompt.prompt.key: prompt for prompt in prompts}
            judging = asyncio.create_task(self._collect_verdicts(len(requests)))
        try:
            bursts = await asyncio.gather(
                *(
                    self._burst(engine, requests[index :: len(engines)], scored_with)
                    for index, engine in enumerate(engines)
                )
            )
            if judging:
                await self._within(judging)
        finally:
            if judging:
                judging.cancel()
        for burst in bursts:
            self._note_endings(burst.responses, float(np.mean([len(prompt.token_ids) for prompt in prompts])))
        by_request = {response.request: response for burst in bursts for response in burst.responses}
        return [
            RolloutGroup(
                prompt=PromptId(0, prompt.prompt.key),
                domain=prompt.prompt.domain,
                prompt_token_ids=prompt.token_ids,
                responses=tuple(
                    by_request[RequestId(number, PromptId(0, prompt.prompt.key), sample)]
                    for sample in range(rollout.num_responses)
                ),
                rewards=(0.0,) * rollout.num_responses,
            )
            for prompt in prompts[: rollout.num_prompts]
        ]

    # Reward, trainer, weights ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _surroundings_of_scoring(self) -> AsyncIterator[None]:
        """Let the engines work meanwhile, as in a run that scores during its rollouts, on what a round leaves over."""
        if self._config.system.reward == "batch":
            yield
            return
        rollout, context = self._config.rollout, self._contexts()[0]
        num_left = max(self._num_launched() - rollout.num_prompts * rollout.num_responses, 1)
        limits = [rollout.max_response_tokens] * min(num_left, self._config.engine.max_num_seqs)
        asked = {name: self._requests(context, limits, self._hot) for name in self._engines}
        bursts = [asyncio.create_task(self._burst(engine, asked[name])) for name, engine in self._engines.items()]
        try:
            yield
            for name, engine in self._engines.items():
                await self._within(engine.abort([request.request for request in asked[name]]))
            await asyncio.gather(*bursts)
        finally:
            for burst in bursts:
                burst.cancel()

    async def _probe_reward(self, batch: Sequence[RolloutGroup], num_responses: int) -> None:
        """Time responses on their way to the reward and their verdicts back, without the judging."""
        number = next(self._rounds)
        responses = [(group, response) for group in batch for response in group.responses][:num_responses]
        asked = [
            ResponseToScore(
                request=RequestId(number, response.request.prompt, response.request.sample),
                prompt=self._prompt(group).prompt,
                token_ids=response.token_ids,
                is_truncated=response.finish_reason is FinishReason.LENGTH,
            )
            for group, response in responses
        ]
        await asyncio.sleep(self._collect_interval_s)
        began = _now_s()
        collecting = asyncio.create_task(self._collect_verdicts(len(asked)))
        try:
            await self._within(self._workers.reward.score(asked))
            judging_s = await self._within(collecting)
        finally:
            collecting.cancel()
        elapsed_s = _now_s() - began - judging_s / self._config.reward.num_workers
        num_tokens = sum(response.num_tokens for _, response in responses)
        self._note(("reward", num_responses), len(asked), num_tokens, elapsed_s)

    async def _collect_verdicts(self, num_verdicts: int) -> float:
        """Await verdicts; gives the time that judging took."""
        judging_s, num_judged = 0.0, 0
        while num_judged < num_verdicts:
            verdicts = await self._workers.reward.collect()
            num_judged += len(verdicts)
            judging_s += sum(verdict.time_s for verdict in verdicts)
            for verdict in verdicts:
                self._note_program(verdict)
        return judging_s

    def _note_program(self, verdict: Verdict) -> None:
        """Split the judging of a program that no limit stopped into its sandbox's start and its test cases."""
        if verdict.case_runs and verdict.reason != "timeout":
            own_s = math.fsum(run.time_s for run in verdict.case_runs)
            self._note(("sandbox_start",), 1, 0, verdict.time_s - own_s)
            self._note(("program",), 1, 0, own_s)

    async def _probe_trainer(self, groups: Sequence[RolloutGroup], *, is_trained: bool) -> None:
        """Note what a step on some groups took."""
        num_responses, num_tokens, accumulate_s, update_s = await self._train(groups, is_trained=is_trained)
        kind = "train" if is_trained else "train_forward"
        self._note((kind, num_responses, num_tokens), num_responses, num_tokens, accumulate_s)
        self._note(("update",), 0, 0, update_s)

    async def _train(self, groups: Sequence[RolloutGroup], *, is_trained: bool) -> tuple[int, int, float, float]:
        """Take a step on some groups, whose rewards give every response an advantage, or none.

        Gives its responses and tokens, the time of its passes, and that of all else.
        """
        trainer = self._workers.trainer
        given = [self._rewarded(group, is_trained=is_trained) for group in groups]
        num_responses = sum(len(group.responses) for group in given)
        num_tokens = sum(
            len(group.prompt_token_ids) + response.num_tokens for group in given for response in group.responses
        )
        began = _now_s()
        await self._within(
            trainer.begin_step(
                BatchShape(
                    step=0,
                    policy_version=self._policy_version,
                    num_groups=len(given),
                    num_responses=num_responses,
                    max_response_tokens=self._config.rollout.max_response_tokens,
                )
            )
        )
        begun = _now_s()
        await self._within(trainer.accumulate(given))
        accumulated = _now_s()
        update = await self._within(trainer.finish_step())
        finished = _now_s()
        self._policy_version = update.policy_version
        return num_responses, num_tokens, accumulated - begun, begun - began + finished - accumulated

    def _rewarded(self, group: RolloutGroup, *, is_trained: bool) -> RolloutGroup:
        """Give a group rewards, and tokens of the policy that the trainer holds by now."""
        responses = tuple(
            replace(
                response,
                spans=(VersionSpan(policy_version=self._policy_version, num_tokens=response.num_tokens),),
            )
            for response in group.responses
        )
        rewards = tuple(float(is_trained and index % 2) for index in range(len(responses)))
        return replace(group, responses=responses, rewards=rewards)

    async def _probe_weight_sync(self) -> None:
        began = _now_s()
        num_bytes = await self._publish()
        num_engines = len(self._engines)
        self._note(("weight_sync",), num_engines, 0, _now_s() - began, num_bytes=num_bytes)

    async def _publish(self) -> int:
        """Bring the trainer's policy to every engine; gives its bytes."""
        weights = await self._within(self._workers.trainer.export_weights())
        answers = await self._within(
            asyncio.gather(*(engine.load_weights(weights) for engine in self._engines.values()))
        )
        if any(answer != weights.checksum for answer in answers):
            raise EngineFailed("An engine holds other weights than the trainer sent.")
        self._policy_version = weights.policy_version
        return weights.num_bytes

    async def _within(self, answer: Awaitable[Answer]) -> Answer:
        deadline_s = self._config.backend.deadlines.rollout_stall_s
        return await self._watchdog.within(deadline_s, "an answer of what is measured", answer)

    def _prompt(self, group: RolloutGroup) -> TokenizedPrompt:
        return self._workers.prompts[group.prompt.key]


def _now_s() -> float:
    """By the clock of the loop, so that modelled workers can be measured in their own time."""
    return asyncio.get_running_loop().time()
