"""Engines, trainer, rewards and judges as Ray actors: the code of the actors' processes.

An actor wraps a worker that implements its protocol. It adds what belongs to the process: where output goes, which GPUs
are visible, how many threads torch takes, stacks for the watchdog. The driver's side is `remote.py`.

Invariant: every error that leaves an actor is a `RollpackerError`, which pickles. Every call goes through `Actor.call`,
which turns any other exception into one line, and leaves its traceback in the actor's log.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.core.foreign_errors import failure_of, one_line
from rollpacker.core.ids import EngineId
from rollpacker.protocols.arrivals import Pace
from rollpacker.protocols.members import MemberEngine
from rollpacker.protocols.reward import ResponseToScore, RewardWorker, ScoringRequest
from rollpacker.protocols.rollout import Prompt, TokenIncrement
from rollpacker.protocols.trainer import TensorTrainer, TrainerRank
from rollpacker.protocols.weights import Weights, first_bucket
from rollpacker.runtime.job.allocation import VISIBLE_GPUS
from rollpacker.runtime.placing.host import MPS_SHARE, names_of_gpus
from rollpacker.runtime.ray.node_address import free_port
from rollpacker.transfer.model_files import ModelFiles
from rollpacker.transfer.offers import Delivery, SendingOptions
from rollpacker.transfer.shelf import Contents, pull

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from rollpacker.environments.hosts import Order
    from rollpacker.environments.pool import EnvironmentPool
    from rollpacker.rewards.judge.worker import JudgeRewardWorker
    from rollpacker.transfer.offering import PolicyOffers

COLLECT_INTERVAL_S = 0.03
"""Shortest time between two answers to `collect`. Such a call costs about 2 ms of processor time over both processes;
where responses come in bursts, one answer then carries a burst. In the demo's tail batching, intervals of 0 and 40 ms
took 0.65 and 0.51 s of processor time per step of 200 responses; on a cluster, where a rollout takes minutes, neither
the calls nor the delay can be noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorePayload:
    """Weights that lie in Ray's object store; a reference inside a dataclass is passed on, not fetched."""

    reference: ray.ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfPayload:
    """Weights that lie in Ray's object store bucket by bucket, all owned by the trainer's first rank."""

    contents: Contents
    buckets: tuple[ray.ObjectRef, ...]

    async def fetch(self, index: int) -> torch.Tensor:
        """Bring a bucket to this node's store, from any node that has it; the tensor is a view of it."""
        import torch

        try:
            data = await self.buckets[index]
        except RayError as error:  # its source is gone, or has become unreachable
            raise EngineFailed(f"Ray could not bring bucket {index}: {one_line(str(error))}") from None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # nobody writes to it
            return torch.from_numpy(data)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """While libraries load: they make a million objects that stay, and no later collection visits those either.

    Collecting takes a fifth of the processor time that torch and transformers take to load.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


class Actor:
    """What every actor's process needs."""

    _worker: Any
    """What the actor wraps, once it has started."""

    def __init__(self, name: str, log: Path, gpus: Sequence[int]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())
        self._set_variables(gpus)
        where = f"Process {os.getpid()} on {socket.gethostname()}"
        sys.stderr.write(f"{where}, {VISIBLE_GPUS}={os.environ.get(VISIBLE_GPUS)}\n")
        self._name, self._log = name, log
        self._pace = Pace(COLLECT_INTERVAL_S)

    def _set_variables(self, gpus: Sequence[int]) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # models are local directories; a lookup would hang on a cluster
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        # before anything loads CUDA; the actor itself reserves no GPU, so Ray leaves the variable as the node has it
        os.environ[VISIBLE_GPUS] = names_of_gpus(gpus, os.environ)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of this actor, or else of its worker; whatever it raises leaves the process as our error."""
        try:
            answer = getattr(self, method, None) or getattr(self._worker, method)
            return await answer(*arguments)
        except RollpackerError:
            traceback.print_exc()
            raise
        except Exception as error:  # noqa: BLE001  (a process boundary: not every exception pickles)
            traceback.print_exc()
            raise failure_of(error, f"{self._name} failed in {method}()", str(self._log)) from None

    async def pid(self) -> int:
        return os.getpid()

    async def collect(self) -> Sequence[Any]:
        """Collect from the worker, at intervals."""
        await self._pace.wait()
        collected: Sequence[Any] = await self._worker.collect()
        self._pace.answered()
        return collected

    async def stacks(self) -> str:
        """Stacks of all threads of this process."""
        frames = sys._current_frames()  # noqa: SLF001  (the documented way to see other threads' stacks)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return "\n".join(
            f"-- {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames.items()
        )

    @staticmethod
    def _take_torch_threads(num_threads: int) -> None:
        import torch

        torch.set_num_threads(num_threads)


class EngineActor(Actor):
    """One inference engine."""

    _worker: MemberEngine
    _reports: Pace
    _increments: asyncio.Task[Sequence[TokenIncrement]] | None = None
    """What the engine was last asked to report, while it has not answered."""
    _pulling: asyncio.Task[Mapping[str, torch.Tensor]] | None = None
    """While it is under way: a task keeps its result, here a whole policy."""

    async def start(self, engine: EngineId, config: RunConfig) -> None:
        self._reports = Pace(config.elastic.report_interval_s)
        self._report_interval_s = config.elastic.report_interval_s
        self._loading = asyncio.Lock()
        with _no_garbage_collection():
            self._take_torch_threads(config.engine.num_threads)
            from rollpacker.engines.factory import make_engine

            self._worker = make_engine(engine, config)
        self._dtype = config.model.dtype

    async def load_weights(self, weights: Weights) -> str:
        if isinstance(weights.payload, ShelfPayload):
            return await self._load_from_shelf(weights, weights.payload)
        if isinstance(weights.payload, ObjectStorePayload):
            weights = replace(weights, payload=await weights.payload.reference)
        elif isinstance(weights.payload, ModelFiles):
            weights = replace(weights, payload=await asyncio.to_thread(self._read, weights.payload.folder))
        return await self._worker.load_weights(weights)

    async def _load_from_shelf(self, weights: Weights, payload: ShelfPayload) -> str:
        """Pull and load; a call for a newer policy ends the pull of an older one, or waits while that is loaded."""
        if self._pulling is not None:
            self._pulling.cancel()
        first = first_bucket(self._name, len(payload.contents.notes))
        pulling = self._pulling = asyncio.ensure_future(pull(payload.contents, payload.fetch, first))
        try:
            tensors = await pulling
        except asyncio.CancelledError:
            if not pulling.cancelled() or self._pulling is pulling:
                raise
            raise EngineFailed(f"{self._name} fetches a newer policy than {weights.policy_version}.") from None
        finally:
            if self._pulling is pulling:
                self._pulling = None
        async with self._loading:
            return await self._worker.load_weights(replace(weights, payload=tensors))

    async def increments(self) -> Sequence[TokenIncrement]:
        """Report at intervals; nothing, as a sign of life, while the engine does not answer: it may load weights."""
        await self._reports.wait()
        if self._increments is None:
            self._increments = asyncio.ensure_future(self._worker.increments())
        done, _ = await asyncio.wait([self._increments], timeout=self._report_interval_s)
        self._reports.answered()
        if not done:
            return ()
        answer, self._increments = self._increments, None
        return answer.result()

    def _read(self, folder: Path) -> Mapping[str, torch.Tensor]:
        import torch

        from rollpacker.data.causal_models import load_causal_model
        from rollpacker.protocols.tensors import named_tensors

        return named_tensors(load_causal_model(folder, getattr(torch, self._dtype)))


class TrainerActor(Actor):
    """The trainer, or one of its ranks."""

    _worker: TensorTrainer
    _offers: PolicyOffers

    async def meeting_place(self) -> str:
        """Choose where all ranks meet: on this node, whose address the other nodes reach."""
        address = ray.util.get_node_ip_address()
        return f"{address}:{free_port(address)}"

    async def start(self, config: RunConfig, rank: TrainerRank | None) -> None:
        self._is_first = rank is None or rank.rank == 0
        with _no_garbage_collection():
            self._take_torch_threads(config.trainer.num_threads)
            from rollpacker.trainers.factory import make_trainer
            from rollpacker.transfer.offering import PolicyOffers

            # in a thread, so that the process answers while it waits for the other ranks
            self._worker = await asyncio.to_thread(make_trainer, config, rank)
        self._offers = PolicyOffers(self._worker, is_first=self._is_first)

    async def export_weights(self) -> Weights:
        weights = await self._worker.export_weights()
        payload = ObjectStorePayload(reference=ray.put(weights.payload)) if self._is_first else None
        return replace(weights, payload=payload)

    async def prepare_weights(self, bucket_bytes: int) -> None:
        await self._offers.prepare(bucket_bytes)

    async def lay_out_weights(self, bucket_bytes: int) -> Weights | None:
        """Put the policy on the shelf, in place of the one before; the first rank answers what a member loads."""
        buckets = await self._offers.lay_out(bucket_bytes)
        if not self._is_first:
            return None
        contents = Contents(notes=tuple(bucket.note for bucket in buckets))
        data = [bucket.buffer.data[: bucket.note.num_bytes].numpy() for bucket in buckets]
        references = await asyncio.to_thread(lambda: tuple(ray.put(each) for each in data))
        return Weights(
            policy_version=self._worker.policy_version,
            checksum=contents.checksum,
            num_bytes=contents.num_bytes,
            payload=ShelfPayload(contents=contents, buckets=references),
        )

    async def offer_weights(self, engines: Sequence[EngineId], options: SendingOptions) -> Weights:
        return self._offers.open(engines, ray.util.get_node_ip_address(), options)

    async def send_weights(self) -> Delivery | None:
        return await self._offers.send()

    async def drop_receiver(self, engine: EngineId, why: str) -> None:
        self._offers.drop(engine, why)

    async def close_offer(self) -> None:
        self._offers.close()


class RewardActor(Actor):
    """A reward and the tokenizer that turns responses into text."""

    _worker: RewardWorker

    async def start(self, config: RunConfig) -> None:
        with _no_garbage_collection():
            from rollpacker.environments.factory import make_tokenizer
            from rollpacker.rewards.factory import make_reward_worker

            self._tokenizer = make_tokenizer(config)
            self._worker = make_reward_worker(config.reward)

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        await self._worker.score([self._decode(response) for response in responses])

    def _decode(self, response: ResponseToScore) -> ScoringRequest:
        return ScoringRequest(
            request=response.request,
            domain=response.prompt.domain,
            prompt_text=self._question(response.prompt),
            response_text=self._tokenizer.decode(response.token_ids),
            is_truncated=response.is_truncated,
            reference=response.prompt.reference,
            case_limits_s=response.case_limits_s,
            row=response.prompt.row,
            prompt=response.prompt.as_written,
        )

    def _question(self, prompt: Prompt) -> str:
        return self._tokenizer.text(prompt)


class EnvironmentActor(Actor):
    """The environments of a node."""

    _worker: EnvironmentPool

    def _set_variables(self, gpus: Sequence[int]) -> None:
        """Leave them: environments get those of the node."""

    async def start(self, config: RunConfig) -> None:
        with _no_garbage_collection():
            from rollpacker.environments.factory import make_pool

            self._worker = make_pool(config)

    async def tell(self, orders: Sequence[Order]) -> None:
        for method, arguments, keywords in orders:
            getattr(self._worker, method)(*arguments, **keywords)


class JudgeActor(RewardActor):
    """A replica of the LLM judge, with the policy's tokenizer beside its own."""

    _worker: JudgeRewardWorker

    async def start(self, config: RunConfig) -> None:
        judge = config.reward.judge
        if os.environ[VISIBLE_GPUS] and config.placement.judge is not None:
            # read when CUDA loads; without an MPS daemon it changes nothing
            os.environ.setdefault(MPS_SHARE, f"{100 * judge.gpu_share:g}")
        with _no_garbage_collection():
            self._take_torch_threads(judge.num_threads)
            from rollpacker.engines.factory import open_judge
            from rollpacker.environments.factory import make_tokenizer
            from rollpacker.rewards.judge.reading import JudgePrompts
            from rollpacker.rewards.judge.worker import JudgeRewardWorker

            self._tokenizer = make_tokenizer(config)
            prompts = JudgePrompts(judge)
            self._worker = JudgeRewardWorker(open_judge(judge), prompts, judge)

    async def close(self) -> None:
        with suppress(RollpackerError):  # one that has failed has said why
            if words := await self._worker.describe_work():
                sys.stderr.write(f"{words}\n")
        await self._worker.close()

    def _question(self, prompt: Prompt) -> str:
        from rollpacker.rewards.judge.reading import dialogue

        return dialogue(prompt)
