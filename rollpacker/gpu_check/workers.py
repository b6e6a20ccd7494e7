"""Processes with an engine or a trainer's ranks in them, as a run has them, each with GPUs of its own; without Ray.

A call names an object of the process and its method, `engine.generate`, and travels over a pipe with its arguments. One
call at a time; calls to several workers may overlap.

All workers are forked from one process that has imported what most of them need, which is most of what starting one
takes. It initialises no CUDA, which a fork would not survive, and ends with the process that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.core.foreign_errors import failure_of
from rollpacker.core.ids import EngineId
from rollpacker.gpu_check.inputs import shape_of
from rollpacker.protocols.trainer import TrainerRank, UpdateMetrics
from rollpacker.runtime.job.allocation import VISIBLE_GPUS
from rollpacker.runtime.placing.host import names_of_gpus
from rollpacker.runtime.ray.node_address import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.rollout import GenerationRequest, Response, RolloutGroup
    from rollpacker.transfer.offers import Delivery, SendingOptions

    Make = Callable[..., Awaitable[Mapping[str, Any]]]
    """Runs in the worker's process and gives its objects by name. Importable, as are its arguments."""

ENGINE = EngineId("engine-0")

_PRELOADS = ("torch", "transformers", "rollpacker.engines.torch.engine", "rollpacker.trainers.fsdp.policy")
"""Importing them asks nothing about GPUs."""


class Worker:
    """One process, which sees only some GPUs."""

    def __init__(self, name: str, gpus: Sequence[int], make: Make, *arguments: Any, **environment: str) -> None:
        """Start it; the first call waits until its objects are made."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADS))
        self._name = name
        self._connection, theirs = context.Pipe()
        # vLLM starts processes of its own, which a daemon may not
        visible = {VISIBLE_GPUS: names_of_gpus(gpus, os.environ), **environment}
        self._process = context.Process(target=_serve, args=(theirs, visible, make, arguments), name=name)
        self._process.start()
        theirs.close()

    async def call(self, what: str, *arguments: Any) -> Any:
        """Call a method; raises what it raised, and `EngineFailed` when the process has ended."""
        try:
            self._connection.send((what, arguments))
            is_answer, answer = await asyncio.to_thread(self._connection.recv)
        except (EOFError, OSError) as error:
            self._process.join(1)
            raise EngineFailed(f"{self._name} ended in {what}, exit code {self._process.exitcode}.") from error
        if is_answer:
            return answer
        raise answer

    async def aclose(self) -> None:
        """End it by its own means, or else kill it."""
        with contextlib.suppress(RollpackerError, TimeoutError):
            async with asyncio.timeout(30):
                await self.call("")
        self._process.join(5)
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, environment: Mapping[str, str], make: Make, arguments: Sequence[Any]) -> None:
    os.environ.update(environment)  # before anything loads CUDA
    asyncio.run(_answer_calls(connection, make, arguments))


async def _answer_calls(connection: Connection, make: Make, arguments: Sequence[Any]) -> None:
    objects: Mapping[str, Any] = {}
    while True:
        try:
            what, values = await asyncio.to_thread(connection.recv)
        except EOFError:
            return
        try:
            if not what:
                for each in objects.values():
                    if inspect.iscoroutinefunction(getattr(each, "close", None)):
                        await each.close()
                connection.send((True, None))
                return
            objects = objects or await make(*arguments)
            name, _, method = what.partition(".")
            answer = getattr(objects[name], method)(*values)
            connection.send((True, await answer if inspect.isawaitable(answer) else answer))
        except RollpackerError as error:
            connection.send((False, error))
        except Exception as error:  # noqa: BLE001  # a process boundary: not every exception pickles
            import traceback

            traceback.print_exc()
            connection.send((False, failure_of(error, what)))


async def make_engine_objects(config: RunConfig) -> Mapping[str, Any]:
    """`engine`, and `loader`, which gives it the weights of the model's files."""
    import torch

    from rollpacker.engines.factory import make_engine

    torch.set_num_threads(config.engine.num_threads)
    engine = make_engine(ENGINE, config)
    return {"engine": engine, "loader": _Loader(engine, config), "gpu": Gpu()}


async def make_trainer_objects(config: RunConfig, rank: TrainerRank | None) -> Mapping[str, Any]:
    """`trainer`, and `offers`, by which it sends its policy."""
    import torch

    from rollpacker.trainers.factory import make_trainer
    from rollpacker.transfer.offering import PolicyOffers

    torch.set_num_threads(config.trainer.num_threads)
    trainer = make_trainer(config, rank)
    return {"trainer": trainer, "offers": PolicyOffers(trainer, is_first=rank is None or rank.rank == 0), "gpu": Gpu()}


class _Loader:
    def __init__(self, engine: Any, config: RunConfig) -> None:
        self._engine = engine
        self._config = config

    async def load(self) -> int:
        """Give the engine policy version 0 from the model's files; returns its bytes."""
        import torch

        from rollpacker.data.causal_models import load_causal_model
        from rollpacker.protocols.tensors import checksum_of_tensors, named_tensors, num_bytes_of_tensors
        from rollpacker.protocols.weights import Weights

        model = load_causal_model(self._config.model.directory, getattr(torch, self._config.model.dtype))
        tensors = named_tensors(model)
        weights = Weights(
            policy_version=0,
            checksum=checksum_of_tensors(tensors),
            num_bytes=num_bytes_of_tensors(tensors),
            payload=tensors,
        )
        await self._engine.load_weights(weights)
        return weights.num_bytes

    async def respond(self, requests: Sequence[GenerationRequest]) -> list[Response]:
        """Generate, and collect all responses."""
        await self._engine.generate(requests)
        responses: list[Response] = []
        while len(responses) < len(requests):
            responses += await self._engine.collect()
        return responses


class Gpu:
    """The first GPU that a process sees."""

    def free_bytes(self) -> int:
        """Of its memory, whoever holds the rest; 0 without a GPU."""
        import torch

        return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0

    def peak_bytes(self) -> int:
        """The most that this process has had since the last call; 0 without a GPU."""
        import torch

        if not torch.cuda.is_available():
            return 0
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak

    def synchronize(self) -> None:
        """Wait until it has done what this process queued."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def station(self) -> Any:
        """Where this process works, as a sender of weights sees it."""
        from rollpacker.transfer.memory import accelerator_here, station_here

        return station_here(accelerator_here())


def engine_on(config: RunConfig, gpus: Sequence[int], **environment: str) -> contextlib.aclosing[Worker]:
    """An engine, which has no policy yet."""
    return contextlib.aclosing(Worker("engine", gpus, make_engine_objects, config, **environment))


class TrainerRanks:
    """All ranks of a trainer, which get the same calls."""

    def __init__(self, config: RunConfig, gpus: Sequence[int]) -> None:
        """Start a rank on each GPU; as many as the configuration has."""
        rendezvous = f"{LOOPBACK}:{free_port(LOOPBACK)}"
        num_ranks = config.trainer.num_ranks
        ranks: list[TrainerRank | None] = [
            TrainerRank(rank=rank, num_ranks=num_ranks, rendezvous=rendezvous) for rank in range(num_ranks)
        ]
        self.ranks = [
            Worker(f"trainer-{index}", [gpu], make_trainer_objects, config, rank)
            for index, (gpu, rank) in enumerate(zip(gpus, ranks if num_ranks > 1 else [None], strict=False))
        ]
        self.policy_version = 0
        self.passes_s = 0.0
        """Forward and backward passes of the last step, until the GPUs were done with them; without its update."""

    async def everywhere(self, what: str, *arguments: Any) -> Any:
        """Call a method on all ranks; returns the first one's answer."""
        answers = await asyncio.gather(*(rank.call(what, *arguments) for rank in self.ranks))
        return answers[0]

    async def step(self, groups: Sequence[RolloutGroup]) -> UpdateMetrics:
        """Train a batch whose tokens are of the policy that is held."""
        await self.everywhere("trainer.begin_step", shape_of(groups, self.policy_version))
        began = time.perf_counter()
        await self.everywhere("trainer.accumulate", groups)
        await self.everywhere("gpu.synchronize")  # the last backward pass is only queued
        self.passes_s = time.perf_counter() - began
        update: UpdateMetrics = await self.everywhere("trainer.finish_step")
        self.policy_version = update.policy_version
        return update

    async def send_to(self, engine: Worker, options: SendingOptions) -> Delivery:
        """Send the policy to an engine, as a run does; raises `EngineFailed` unless it holds what was sent."""
        weights = await self.ranks[0].call("offers.open", [ENGINE], LOOPBACK, options)
        loading = asyncio.create_task(engine.call("engine.load_weights", weights))
        try:
            delivery: Delivery = await self.everywhere("offers.send")
            if delivery.lost or not delivery.is_complete:
                raise EngineFailed(f"The weights did not arrive: {dict(delivery.lost)}")
            held = await loading
        finally:
            loading.cancel()
            await self.ranks[0].call("offers.close")
        if held != delivery.checksum:
            raise EngineFailed(f"The engine holds weights of checksum {held}; {delivery.checksum} was sent.")
        return delivery

    async def aclose(self) -> None:
        await asyncio.gather(*(rank.aclose() for rank in self.ranks))


def trainer_on(config: RunConfig, gpus: Sequence[int]) -> contextlib.aclosing[TrainerRanks]:
    """A trainer with a rank on each of these GPUs."""
    return contextlib.aclosing(TrainerRanks(config, gpus))
