"""The streamed model as a judge sees it: its queue, its sleep, its adaptation, its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from rollpacker.config.sections.judge import JudgeSection
from rollpacker.config.sections.model import ModelSection
from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.errors import ConfigError, EngineFailed, ImpossibleEvent, ModelError
from rollpacker.engines.factory import open_judge
from rollpacker.engines.streamed.devices import CpuDevice
from rollpacker.engines.streamed.model import StreamedModel, open_model
from rollpacker.engines.streamed.residency import pass_bytes
from tests.engines.streamed.models import NUM_LAYERS, load_plain, make_prompts, plain_logprobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from rollpacker.engines.streamed.devices import Device
    from rollpacker.protocols.judging import JudgeModel
    from rollpacker.protocols.rollout import TokenIds

CANDIDATES = (7, 3, 11)


class SmallDevice(CpuDevice):
    """A CPU that counts its memory as a GPU does, and takes as long for its work as it is told."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.num_bytes = num_bytes
        self.buffers: list[Tensor] = []
        self.compute_s = 1.0
        self.copy_s = 0.0
        self.num_failures = 0
        """How many marks are made before one runs out of memory; 0 for never."""

    def buffer(self, num_bytes: int) -> Tensor:
        buffer = super().buffer(num_bytes)
        self.buffers.append(buffer)
        return buffer

    def hold(self, source: Tensor, after: float) -> tuple[Tensor, Any]:
        buffer = self.buffer(source.numel())
        return buffer, self.copy(source, buffer, after)

    def mark(self) -> float:
        if self.num_failures:
            self.num_failures -= 1
            if self.num_failures == 0:
                raise torch.OutOfMemoryError("scripted")
        return super().mark()

    def seconds(self, begin: float, end: float) -> float:
        return self.compute_s if end > begin else 0.0

    def copied(self, copy: Any) -> tuple[int, float]:
        return super().copied(copy)[0], self.copy_s

    def free_bytes(self) -> int:  # type: ignore[override]
        return self.num_bytes


def section_of(folder: Path, **keys: Any) -> JudgeSection:
    return JudgeSection(model=ModelSection(path=folder, dtype="float32"), engine="streamed", **keys)


@asynccontextmanager
async def opened(folder: Path, device: Device | None = None, **keys: Any) -> AsyncIterator[StreamedModel]:
    model = open_model(section_of(folder, **keys), device)
    try:
        yield model
    finally:
        await model.close()


async def ask(model: StreamedModel, prompts: Sequence[TokenIds]) -> asyncio.Task[Sequence[tuple[float, ...]]]:
    """Call a model that sleeps; the prompts wait when this returns."""

    async def call() -> Sequence[tuple[float, ...]]:
        return await model.next_token_logprobs(prompts, CANDIDATES)

    num_before = len(model._waiting)
    task = asyncio.create_task(call())
    await asyncio.sleep(0)  # lets it come to its first wait
    assert len(model._waiting) == num_before + len(prompts)
    return task


def check(folder: Path, prompts: Sequence[TokenIds], answers: Sequence[tuple[float, ...]]) -> None:
    plain = load_plain(folder)
    assert len(answers) == len(prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        np.testing.assert_allclose(answer, plain_logprobs(plain, prompt, CANDIDATES), atol=5e-6)


@pytest.mark.parametrize("resident_share", [None, 0.0, 0.4, 1.0])
async def test_it_answers_in_the_order_of_prompts_and_candidates(
    resident_share: float | None, model_folder: Path
) -> None:
    prompts = make_prompts(5, 60, 1, 33, 60, 8)
    async with opened(model_folder, resident_share=resident_share, max_batch_tokens=120) as model:
        judge: JudgeModel = model
        check(model_folder, prompts, await judge.next_token_logprobs(prompts, CANDIDATES))
        stats = await model.stats()
        assert await judge.next_token_logprobs([], CANDIDATES) == []
    assert stats.num_layers == NUM_LAYERS
    assert stats.num_resident_layers == {None: 6, 0.0: 0, 0.4: 2, 1.0: 6}[resident_share]
    assert stats.num_prompts == 6
    assert stats.num_tokens == 167
    assert stats.num_passes == 3
    assert stats.num_padded_tokens == 3 * 33 + 2 * 60 + 1
    assert (stats.copied_bytes > 0) == (stats.num_resident_layers < 6)
    assert stats.computing_s > 0
    words = f"Streamed judge: 6 answers of 167 tokens (32% padding) in 3 passes, {stats.computing_s:.1f} s in layers; "
    assert stats.describe().startswith(f"{words}{stats.num_resident_layers} of 6 layers resident at last; ")


async def test_calls_that_arrive_meanwhile_share_a_pass(model_folder: Path) -> None:
    first, *rest = make_prompts(20, 9, 9, 9, 9)
    async with opened(model_folder) as model:
        await model.sleep()
        calls = [await ask(model, [prompt]) for prompt in (first, *rest)]
        await model.wake()
        answers = [(await call)[0] for call in calls]
        assert (await model.stats()).num_passes == 1
    check(model_folder, [first, *rest], answers)


async def test_prompts_wait_while_it_sleeps_and_waking_brings_everything_back(model_folder: Path) -> None:
    prompts = make_prompts(12, 4)
    async with opened(model_folder, resident_share=0.4) as model:
        before = await model.next_token_logprobs(prompts, CANDIDATES)
        await model.sleep()
        assert (await model.stats()).num_resident_layers == 0
        call = await ask(model, prompts)
        await model.sleep()  # a second time changes nothing
        assert not call.done()
        await model.wake()
        assert await call == before
        assert (await model.stats()).num_resident_layers == 2


async def test_a_call_that_was_given_up_costs_no_pass(model_folder: Path) -> None:
    async with opened(model_folder) as model:
        await model.sleep()
        call = await ask(model, make_prompts(12))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await model.wake()
        prompts = make_prompts(4)
        check(model_folder, prompts, await model.next_token_logprobs(prompts, CANDIDATES))
        assert (await model.stats()).num_prompts == 1


async def test_calls_that_wait_fail_when_it_is_closed(model_folder: Path) -> None:
    async with opened(model_folder) as model:
        await model.sleep()
        call = await ask(model, make_prompts(12))
        await model.close()
        with pytest.raises(EngineFailed, match="closed before"):
            await call
        with pytest.raises(ImpossibleEvent, match="after it was closed"):
            await model.wake()


async def test_layers_become_resident_as_free_memory_and_measured_rates_say(model_folder: Path) -> None:
    device = SmallDevice(num_bytes=10**9)
    async with opened(model_folder, device=device) as model:
        prompts = make_prompts(64, 64)
        device.copy_s = 2.0  # of a layer, that computes for one second

        async def resident() -> int:
            check(model_folder, prompts, await model.next_token_logprobs(prompts, CANDIDATES))
            return (await model.stats()).num_resident_layers

        assert await resident() == 0  # measures
        assert await resident() == 3  # every other layer streams
        sizes = model._decoder.sizes
        device.num_bytes = int(1.2 * sizes.activation_bytes(2, 64)) - sizes.layer_bytes // 2
        assert await resident() == 2  # somebody else took memory
        device.num_bytes = 10**9
        assert await resident() == 3
        device.copy_s = 0.1
        assert {await resident() for _ in range(8)} == {3}
        assert await resident() == 0


@pytest.mark.parametrize("resident_share", [None, 0.4])
async def test_a_pass_has_fewer_prompts_where_memory_has_no_room_for_more(
    resident_share: float | None, model_folder: Path
) -> None:
    device = SmallDevice(num_bytes=10**9)
    prompts = make_prompts(60, 64, 62)
    async with opened(model_folder, device, resident_share=resident_share) as model:
        check(model_folder, prompts, await model.next_token_logprobs(prompts, CANDIDATES))
        assert (await model.stats()).num_passes == 1
        device.num_bytes = int(1.5 * pass_bytes(model._decoder.sizes, num_rows=1, longest=64))
        check(model_folder, prompts, await model.next_token_logprobs(prompts, CANDIDATES))
        assert (await model.stats()).num_passes == 4


async def test_it_has_as_many_slots_as_it_is_told(model_folder: Path) -> None:
    layers_held = {}
    for num_slots in (1, 2):
        device = SmallDevice(num_bytes=10**9)
        async with opened(model_folder, device, resident_share=0.0, num_slots=num_slots) as model:
            check(model_folder, make_prompts(30), await model.next_token_logprobs(make_prompts(30), CANDIDATES))
            layer_bytes = model._decoder.sizes.layer_bytes
        layers_held[num_slots] = sum(buffer.numel() == layer_bytes for buffer in device.buffers)
    assert layers_held == {1: 1, 2: 2}


async def test_exposed_copies_are_counted(model_folder: Path) -> None:
    async with opened(model_folder, resident_share=0.0) as model:
        await model.next_token_logprobs(make_prompts(30), CANDIDATES)
        stats = await model.stats()
    # on a CPU no copy is hidden
    assert stats.exposed_copy_s >= stats.copying_s > 0
    assert stats.copied_bytes == NUM_LAYERS * model._decoder.sizes.layer_bytes


@pytest.mark.parametrize("num_marks", range(1, 20, 3))
async def test_a_pass_without_memory_is_run_again_with_fewest_layers_resident(
    num_marks: int, model_folder: Path
) -> None:
    device = SmallDevice(num_bytes=10**9)
    async with opened(model_folder, device=device) as model:
        prompts = make_prompts(20, 7)
        device.copy_s = 2.0
        for _ in range(2):
            await model.next_token_logprobs(prompts, CANDIDATES)
        assert (await model.stats()).num_resident_layers == 3
        device.num_failures = num_marks
        check(model_folder, prompts, await model.next_token_logprobs(prompts, CANDIDATES))
        stats = await model.stats()
        assert stats.num_memory_retries == 1
        assert stats.num_resident_layers == 0


async def test_a_failure_is_raised_from_calls_that_wait_and_from_all_after(model_folder: Path) -> None:
    device = SmallDevice(num_bytes=10**9)
    async with opened(model_folder, device=device) as model:
        device.num_bytes = -(10**9)
        for _ in range(2):
            with pytest.raises(EngineFailed, match="of the device are free"):
                await model.next_token_logprobs(make_prompts(20), CANDIDATES)


async def test_prompts_and_candidates_that_the_model_cannot_read_are_refused(model_folder: Path) -> None:
    async with opened(model_folder) as model:
        with pytest.raises(ImpossibleEvent, match="257 tokens"):
            await model.next_token_logprobs(make_prompts(257), CANDIDATES)
        with pytest.raises(ConfigError, match="tokenizer of another model"):
            await model.next_token_logprobs(make_prompts(3), (3, 50))


def test_a_share_that_does_not_fit_is_refused_with_what_it_takes(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"resident_share=0\.5 takes"):
        open_model(section_of(model_folder, resident_share=0.5), SmallDevice(num_bytes=1000))


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        open_model(section_of(tmp_path))


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_a_share_of_resident_layers_is_refused_of_a_judge_that_holds_them_all(engine: Any, model_folder: Path) -> None:
    judge = JudgeSection(model=ModelSection(path=model_folder), engine=engine, resident_share=0.5)
    with pytest.raises(ValueError, match=rf"resident_share=0\.5 with reward\.judge\.engine={engine}"):
        RewardSection(name="judge", judge=judge)


async def test_the_configured_engine_is_the_streamed_model(model_folder: Path) -> None:
    model = open_judge(section_of(model_folder, resident_share=0.4))
    prompts = make_prompts(14, 5)
    check(model_folder, prompts, await model.next_token_logprobs(prompts, CANDIDATES))
    assert isinstance(model, StreamedModel)
    assert (await model.stats()).copied_bytes > 0
    await model.close()
