"""The streamed model as a judge sees it: `protocols.judging.JudgeModel` around a decoder in one thread.

Prompts wait in one queue, whoever asked. When a pass has ended, the thread takes orders (sleep, wake, statistics),
chooses the next pass from all that has arrived meanwhile, decides how many layers are resident for it, and runs it; the
caller's event loop is never blocked. While the model sleeps, prompts wait.

Where device memory has no room for a pass, the pass has fewer prompts. One that runs out of memory all the same,
because another process took it meanwhile, is run once more with the fewest layers resident. Any other exception ends
the thread: it is raised from every call that waits and from everything after.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch

from rollpacker.core.errors import ConfigError, EngineFailed, ImpossibleEvent, RollpackerError
from rollpacker.engines.judging import check_candidates, check_lengths
from rollpacker.engines.streamed.batches import next_pass
from rollpacker.engines.streamed.decoder import PassTimes, StreamedDecoder
from rollpacker.engines.streamed.devices import choose_device
from rollpacker.engines.streamed.loading import load_on_host
from rollpacker.engines.streamed.residency import (
    MeasuredRates,
    Residency,
    num_resident_layers,
    num_that_fit,
    pass_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.engines.streamed.devices import Device
    from rollpacker.protocols.rollout import TokenIds

T = TypeVar("T")


def open_model(section: JudgeSection, device: Device | None = None) -> StreamedModel:
    """Load a judge's model into host memory and take its place on the device; blocks for as long as reading takes.

    Args:
        section: The judge. Its `resident_share` of the decoder layers stays on the device; None lets free memory and
            the batches' lengths decide. On a CPU nothing is gained by streaming, and None keeps all.
        device: Where it computes; None takes the GPU that this process sees, else the CPU.

    Raises:
        ModelError: The directory holds no model, or one whose layers cannot be streamed.
        ConfigError: The layers that are to stay do not fit on the device.
    """
    place = device or choose_device(section.memory_share)
    model = load_on_host(section.model.directory, section.model.dtype)
    return StreamedModel(StreamedDecoder(model, place, section.num_slots), place, section)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingStats:
    """What a streamed model has done so far, and how it stands."""

    num_layers: int
    num_resident_layers: int
    """At this moment; none while it sleeps."""
    num_passes: int
    num_prompts: int
    num_tokens: int
    """Of the prompts, without padding."""
    num_padded_tokens: int
    """What was computed."""
    copied_bytes: int
    """Of layers, from host memory to the device."""
    copying_s: float
    """How long these copies took, most of it beside compute."""
    exposed_copy_s: float
    """How long compute waited for copies."""
    computing_s: float
    """In decoder layers, by the device's clock."""
    num_memory_retries: int
    """Passes that ran out of device memory and were run again with the fewest layers resident."""

    def describe(self) -> str:
        """Give it in a line for a person."""
        padded = f"{self.num_padded_tokens / self.num_tokens - 1:.0%} padding" if self.num_tokens else "no padding"
        return (
            f"Streamed judge: {self.num_prompts} answers of {self.num_tokens} tokens ({padded}) in {self.num_passes} "
            f"passes, {self.computing_s:.1f} s in layers; {self.num_resident_layers} of {self.num_layers} layers "
            f"resident at last; {self.copied_bytes / 1e9:.2f} GB of layers copied in {self.copying_s:.1f} s, for which "
            f"compute waited {self.exposed_copy_s:.1f} s; {self.num_memory_retries} passes run again for memory."
        )


class StreamedModel:
    """Implements `protocols.judging.JudgeModel`; made by `open_model`."""

    def __init__(self, decoder: StreamedDecoder, device: Device, section: JudgeSection) -> None:
        self._decoder = decoder
        self._device = device
        self._section = section
        self._fixed: int | None = None
        if section.resident_share is not None:
            self._fixed = decoder.sizes.allowed(round(section.resident_share * decoder.sizes.num_layers))
            self._check_fixed(self._fixed)
        # the thread's alone
        self._rates = MeasuredRates()
        self._fewest = self._fewest_resident()
        self._residency = Residency(self._fewest)
        self._totals = _Totals()
        # shared; guarded by the condition
        self._changed = threading.Condition()
        self._orders: list[_Order] = []
        self._waiting: list[_Waiting] = []
        self._is_closing = False
        self._failure: EngineFailed | None = None
        self._thread = threading.Thread(target=self._run, name="streamed-judge", daemon=True)
        self._thread.start()

    # -- what the judge calls --

    async def next_token_logprobs(
        self, prompts: Sequence[TokenIds], candidates: Sequence[int]
    ) -> Sequence[tuple[float, ...]]:
        check_candidates(candidates, self._decoder.sizes.vocab_size)
        check_lengths(prompts, self._decoder.num_positions)
        waiting = [_Waiting(prompt=prompt, candidates=tuple(candidates)) for prompt in prompts]
        with self._changed:
            self._check_open()
            self._waiting += waiting
            self._changed.notify()
        return await asyncio.gather(*(asyncio.wrap_future(each.answer) for each in waiting))

    async def sleep(self) -> None:
        await self._ask(self._decoder.sleep)

    async def wake(self) -> None:
        await self._ask(self._take_memory)

    async def stats(self) -> StreamingStats:
        return await self._ask(self._stats)

    async def describe_work(self) -> str:
        return (await self.stats()).describe()

    async def close(self) -> None:
        """End the thread after the pass under way. Calls that still wait fail."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    # -- from the caller's thread into the model's --

    async def _ask(self, question: Callable[[], T]) -> T:
        """Let the thread compute something between two passes. What it raises is the caller's."""
        answer: Future[T] = Future()

        def action() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001  # handed on whole, to the caller
                answer.set_exception(error)

        with self._changed:
            self._check_open()
            self._orders.append(_Order(action=action, give_up=answer.set_exception))
            self._changed.notify()
        return await asyncio.wrap_future(answer)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise ImpossibleEvent("The streamed model was called after it was closed.")

    def _check_fixed(self, num_resident: int) -> None:
        section, free = self._section, self._device.free_bytes()
        taken = self._decoder.rest_bytes + self._decoder.sizes.weight_bytes(num_resident)
        if free is not None and taken > free:
            raise ConfigError(
                f"reward.judge.resident_share={section.resident_share:g} takes {taken / 1e9:.2f} GB of device memory.",
                f"{free / 1e9:.2f} GB are free, of reward.judge.memory_share={section.memory_share:g} at most.",
                "Lower it, or set it to null: then free memory and the batches' lengths decide.",
            )

    # -- the thread --

    def _run(self) -> None:
        torch.set_num_threads(self._section.num_threads)  # holds per thread
        if self._device.place.type == "cuda":
            torch.cuda.set_device(self._device.place)  # likewise
        try:
            self._take_memory()
            while self._carry_out_orders():
                self._run_pass()
        except Exception as error:  # noqa: BLE001  # the thread's boundary: every call that waits raises it
            is_ours = isinstance(error, RollpackerError)
            what = str(error) if is_ours else f"{type(error).__name__}: {error}"
            failure = EngineFailed(f"The streamed judge stopped: {what}")
            failure.__cause__ = error
            self._end(failure)
        else:
            self._decoder.sleep()
            self._end(EngineFailed("The streamed judge was closed before it had answered."))

    def _carry_out_orders(self) -> bool:
        """Wait until there is something to do and do what was ordered; False when the model is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._is_closing or self._can_run)
            orders, self._orders = self._orders, []
            is_closing = self._is_closing
        for order in orders:
            order.action()
        return not is_closing

    @property
    def _can_run(self) -> bool:
        return bool(self._waiting) and self._decoder.is_awake

    def _end(self, failure: EngineFailed) -> None:
        with self._changed:
            if not self._is_closing:
                self._failure = failure
            orders, self._orders = self._orders, []
            waiting, self._waiting = self._waiting, []
        for order in orders:
            order.give_up(failure)
        for each in waiting:
            if each.answer.set_running_or_notify_cancel():
                each.answer.set_exception(failure)

    def _run_pass(self) -> None:
        batch = self._take_batch()
        if not batch:
            return
        try:
            answers, times = self._compute(batch)
        except BaseException:
            with self._changed:
                self._waiting = [each for each in batch if not each.answer.done()] + self._waiting
            raise
        self._count(batch, times)
        for each, answer in zip(batch, answers, strict=True):
            if each.answer.set_running_or_notify_cancel():
                each.answer.set_result(answer)

    def _take_batch(self) -> list[_Waiting]:
        with self._changed:
            if not self._decoder.is_awake:
                return []
            waiting = [each for each in self._waiting if not each.answer.cancelled()]
            if not waiting:
                self._waiting = []
                return []
            places = self._choose([len(each.prompt) for each in waiting])
            taken = set(places)
            self._waiting = [each for place, each in enumerate(waiting) if place not in taken]
        return [waiting[place] for place in places]

    def _choose(self, lengths: Sequence[int]) -> list[int]:
        """Choose a pass, of fewer prompts where device memory has no room for as many as it may have."""
        max_tokens = self._section.max_batch_tokens
        while True:
            places = next_pass(lengths, max_tokens)
            if len(places) == 1 or self._has_room(len(places), lengths[places[0]]):
                return places
            max_tokens //= 2

    def _has_room(self, num_rows: int, longest: int) -> bool:
        free = self._device.free_bytes()
        if free is None:
            return True
        sizes, layers = self._decoder.sizes, self._decoder.layers
        # of the layers that it holds, a pass needs the fixed ones, or only the slots
        needed = sizes.weight_bytes(self._fewest) + pass_bytes(sizes, num_rows, longest)
        return needed <= free + layers.num_bytes

    def _compute(self, batch: Sequence[_Waiting]) -> tuple[list[tuple[float, ...]], PassTimes]:
        prompts, candidates = [each.prompt for each in batch], [each.candidates for each in batch]
        try:
            num_resident = self._resident_for(len(batch), len(prompts[0]))
            self._place(num_resident)
            return self._decoder.run(prompts, candidates)
        except torch.OutOfMemoryError:
            self._totals.num_memory_retries += 1
        # outside of the handler, for the exception keeps the pass's activations alive
        self._residency = Residency(self._fewest)
        self._decoder.sleep()
        self._decoder.wake(self._fewest)
        return self._decoder.run(prompts, candidates)

    def _place(self, num_resident: int) -> None:
        before = self._decoder.layers.num_resident
        if num_resident != before:
            self._decoder.place(num_resident)
        if num_resident < before:
            self._device.release_cache()  # for whoever it was that needed the memory

    def _resident_for(self, num_rows: int, longest: int) -> int:
        """How many layers are to be resident in a pass."""
        if self._fixed is not None:
            return self._fixed
        free = self._device.free_bytes()
        if free is None:
            return self._decoder.sizes.num_layers
        sizes, free_bytes = self._decoder.sizes, free + self._decoder.layers.num_bytes
        fit = num_that_fit(sizes, num_rows=num_rows, longest=longest, free_bytes=free_bytes)
        copy_rate, compute_rate = self._rates.copy_bytes_per_s, self._rates.flops_per_s(num_rows * longest)
        if copy_rate is None or compute_rate is None:
            # the first pass measures both
            return self._residency.adapt(needed=self._residency.num_resident, fit=fit)
        needed = num_resident_layers(
            sizes,
            num_rows=num_rows,
            longest=longest,
            free_bytes=free_bytes,
            copy_bytes_per_s=copy_rate,
            flops_per_s=compute_rate,
        )
        return self._residency.adapt(needed=needed, fit=fit)

    def _take_memory(self) -> None:
        """Take what any pass needs; the first one knows how many more layers it wants."""
        if not self._decoder.is_awake:
            self._decoder.wake(self._fewest)

    def _fewest_resident(self) -> int:
        if self._fixed is not None:
            return self._fixed
        sizes = self._decoder.sizes
        return sizes.num_layers if self._device.free_bytes() is None else sizes.allowed(0)

    def _count(self, batch: Sequence[_Waiting], times: PassTimes) -> None:
        num_rows, longest = len(batch), len(batch[0].prompt)
        num_padded_tokens = num_rows * longest
        sizes = self._decoder.sizes
        self._rates.measured_copies(times.copied_bytes, times.copying_s)
        self._rates.measured_compute(
            num_padded_tokens, sizes.num_layers * sizes.layer_flops(num_rows, longest), times.computing_s
        )
        totals = self._totals
        totals.num_passes += 1
        totals.num_prompts += num_rows
        totals.num_tokens += sum(len(each.prompt) for each in batch)
        totals.num_padded_tokens += num_padded_tokens
        totals.copied_bytes += times.copied_bytes
        totals.copying_s += times.copying_s
        totals.exposed_copy_s += times.waiting_s
        totals.computing_s += times.computing_s

    def _stats(self) -> StreamingStats:
        totals = self._totals
        return StreamingStats(
            num_layers=self._decoder.sizes.num_layers,
            num_resident_layers=self._decoder.layers.num_resident,
            num_passes=totals.num_passes,
            num_prompts=totals.num_prompts,
            num_tokens=totals.num_tokens,
            num_padded_tokens=totals.num_padded_tokens,
            copied_bytes=totals.copied_bytes,
            copying_s=totals.copying_s,
            exposed_copy_s=totals.exposed_copy_s,
            computing_s=totals.computing_s,
            num_memory_retries=totals.num_memory_retries,
        )


@dataclass(slots=True, kw_only=True)
class _Totals:
    num_passes: int = 0
    num_prompts: int = 0
    num_tokens: int = 0
    num_padded_tokens: int = 0
    copied_bytes: int = 0
    copying_s: float = 0.0
    exposed_copy_s: float = 0.0
    computing_s: float = 0.0
    num_memory_retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waiting:
    """A prompt that somebody waits for."""

    prompt: TokenIds
    candidates: tuple[int, ...]
    answer: Future[tuple[float, ...]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Something that the thread is to do."""

    action: Callable[[], None]
    give_up: Callable[[EngineFailed], None]
    """Called instead when the model has ended before it came to it."""
