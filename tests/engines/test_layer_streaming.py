"""A model with streamed layers gives what the plain transformers model gives, bit for bit."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker.config.sections.judge import JudgeSection
from rollpacker.config.sections.model import ModelSection
from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.errors import EngineFailed, ModelError
from rollpacker.engines.factory import open_judge
from rollpacker.engines.torch.layer_streaming import StreamedLayers, decoder_layers
from tests.engines.streamable import CONFIGS, NUM_LAYERS, load_plain, make_prompts, save_model

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("streamed"))


def stream(model: Any, *, num_resident: int = 0, num_slots: int = 2) -> StreamedLayers:
    layers = StreamedLayers(model, CPU, resident_share=num_resident / NUM_LAYERS, num_slots=num_slots)
    layers.wake()
    return layers


@torch.no_grad()
def logits_of(model: Any, num_rows: int = 3) -> Tensor:
    tokens_BT = torch.as_tensor(np.stack(make_prompts(*[12] * num_rows)), dtype=torch.int64)
    return model(input_ids=tokens_BT, use_cache=False).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_gives_the_same_bits_as_without_streaming(name: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, name)
    model = load_plain(folder)
    layers = stream(model)
    for num_rows in (3, 1):  # the second pass finds its first layers in the slots
        assert torch.equal(logits_of(model, num_rows), logits_of(load_plain(folder), num_rows))
    assert layers.num_streamed == NUM_LAYERS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_slots", [1, 2, 3])
@pytest.mark.parametrize("num_resident", [0, 1, 2, 6])
def test_streaming_changes_no_bit_whatever_is_resident(
    num_resident: int, num_slots: int, dtype: str, model_folder: Path
) -> None:
    expected = logits_of(load_plain(model_folder, dtype))
    model = load_plain(model_folder, dtype)
    layers = stream(model, num_resident=num_resident, num_slots=num_slots)
    for num_passes in (1, 2):
        assert torch.equal(logits_of(model), expected)
        num_copies = num_passes * layers.num_streamed + (num_slots - 1 if layers.num_streamed else 0)
        layer_bytes = layers.copied_bytes / num_copies if num_copies else 0
        assert layer_bytes == int(layer_bytes)
    assert layers.num_streamed == NUM_LAYERS - num_resident


def test_layers_as_few_as_the_slots_stay(model_folder: Path) -> None:
    assert stream(load_plain(model_folder), num_resident=4).num_streamed == 0
    assert stream(load_plain(model_folder), num_resident=4, num_slots=1).num_streamed == 2


def test_a_model_that_slept_says_the_same(model_folder: Path) -> None:
    model = load_plain(model_folder)
    expected, layers = logits_of(model), stream(model, num_resident=2)
    logits_of(model)
    layers.sleep()
    layers.sleep()  # a second time changes nothing
    assert torch.equal(logits_of(load_plain(model_folder)), expected)
    layers.wake()
    layers.wake()
    assert torch.equal(logits_of(model), expected)


@pytest.mark.parametrize("broken_at", range(NUM_LAYERS))
def test_a_pass_after_one_that_broke_off_says_the_same(broken_at: int, model_folder: Path) -> None:
    model = load_plain(model_folder)
    expected = logits_of(model)
    stream(model)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    hook = decoder_layers(model)[broken_at].mlp.register_forward_pre_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        logits_of(model)
    hook.remove()
    assert torch.equal(logits_of(model), expected)


def test_a_layer_is_one_flat_buffer_from_which_it_is_copied_at_once(model_folder: Path) -> None:
    model = load_plain(model_folder)
    plain = dict(load_plain(model_folder).named_parameters())
    stream(model)
    for layer in decoder_layers(model):
        assert len({parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}) == 1
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, plain[name])


@dataclass(slots=True, eq=False)
class Operation:
    """Of one of two streams, which each run in their own order."""

    after: Operation | None = None
    """Of the other stream; it has ended before this one begins."""
    slot: int = 0
    layer: float = 0.0
    """What a copy writes to the slot, or what compute must find there; 0 only orders."""


@dataclass(slots=True)
class RecordedStreams:
    """Writes down copies and compute, and plays them back in any order that they allow."""

    copies: list[Operation] = field(default_factory=list)
    compute: list[Operation] = field(default_factory=list)

    def copy(self, source: Tensor, target: Tensor) -> Operation:
        self.compute.append(Operation())
        value = float(source.view(torch.float32)[0])
        self.copies.append(Operation(after=self.compute[-1], slot=target.data_ptr(), layer=value))
        return self.copies[-1]

    def wait(self, copy: Operation) -> None:
        self.compute.append(Operation(after=copy))

    def play(self, numbers: random.Random) -> None:
        held: dict[int, float] = {}
        begun: set[Operation] = set()
        ended: set[Operation] = set()
        streams = [list(reversed(self.compute)), list(reversed(self.copies))]
        while any(streams):
            ready = [stream for stream in streams if stream and (stream[-1].after is None or stream[-1].after in ended)]
            assert ready, "the streams wait for each other"
            stream = numbers.choice(ready)
            operation = stream[-1]
            if operation in begun:
                ended.add(stream.pop())
            begun.add(operation)
            if stream is streams[0]:
                assert operation.layer in {0.0, held.get(operation.slot)}, "a layer computed with other bytes"
            else:
                held[operation.slot] = operation.layer if operation in ended else -1.0


class NumberedLayers(torch.nn.Module):
    """A decoder of layers that have their number as weight, and read it as they compute."""

    def __init__(self, num_layers: int, streams: RecordedStreams) -> None:
        super().__init__()
        self.config = transformers.Qwen2Config(num_hidden_layers=num_layers)
        self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(num_layers))
        for number, layer in enumerate(self.layers):
            layer.weight = torch.nn.Parameter(torch.tensor([number + 1.0]), requires_grad=False)
            layer.forward = lambda layer=layer, number=number: streams.compute.append(
                Operation(slot=layer.weight.data_ptr(), layer=number + 1.0)
            )

    def get_decoder(self) -> NumberedLayers:
        return self

    def forward(self, until: int) -> None:
        for layer in self.layers[:until]:
            layer()


@settings(max_examples=150)
@given(
    num_layers=st.integers(1, 9),
    num_resident=st.integers(0, 9),
    num_slots=st.integers(1, 4),
    passes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    schedule=st.integers(0, 2**32),
)
def test_compute_finds_each_layers_weights_in_whatever_order_the_streams_run(
    num_layers: int, num_resident: int, num_slots: int, passes: list[int], schedule: int
) -> None:
    streams = RecordedStreams()
    model = NumberedLayers(num_layers, streams)
    share = min(num_resident, num_layers) / num_layers
    layers = StreamedLayers(model, CPU, resident_share=share, num_slots=num_slots, copies=streams)
    layers.wake()
    for until in passes:  # a pass that does not come to the end has broken off
        model(until)
    streams.compute = [
        each for each in streams.compute if each.layer == 0 or each.slot in {c.slot for c in streams.copies}
    ]
    streams.play(random.Random(schedule))


def test_with_two_slots_the_next_layer_arrives_while_one_computes(model_folder: Path) -> None:
    for num_slots in (1, 2):
        streams = RecordedStreams()
        model = NumberedLayers(4, streams)
        layers = StreamedLayers(model, CPU, resident_share=0, num_slots=num_slots, copies=streams)
        layers.wake()
        model(4)
        computed = [operation for operation in streams.compute if operation.layer == 2.0]
        before = streams.compute[: streams.compute.index(computed[0])]
        assert streams.copies[num_slots].after in before


def judge_section(folder: Path, engine: Any, **keys: Any) -> JudgeSection:
    return JudgeSection(model=ModelSection(path=folder, dtype="float32"), engine=engine, max_batch_tokens=120, **keys)


@pytest.mark.parametrize("resident_share", [None, 0.4, 1.0])
async def test_a_streamed_judge_gives_the_plain_judges_bits(resident_share: float | None, model_folder: Path) -> None:
    prompts = make_prompts(5, 60, 4, 33, 60, 8)
    plain = open_judge(judge_section(model_folder, "torch"))
    streamed = open_judge(judge_section(model_folder, "streamed", resident_share=resident_share))
    expected = await plain.next_token_logprobs(prompts, (7, 3, 11))
    assert await streamed.next_token_logprobs(prompts, (7, 3, 11)) == expected
    await streamed.sleep()
    await streamed.wake()
    assert await streamed.next_token_logprobs(prompts, (7, 3, 11)) == expected
    num_streamed = {None: 6, 0.4: 4, 1.0: 0}[resident_share]
    assert (f"of {num_streamed} layers copied" in await streamed.describe_work()) == (num_streamed > 0)
    assert await plain.describe_work() == ""
    await plain.close()
    await streamed.close()


async def test_log_probabilities_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    model = load_plain(save_model(tmp_path))
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    model.save_pretrained(tmp_path)
    judge = open_judge(judge_section(tmp_path, "streamed"))
    with pytest.raises(EngineFailed, match="are not numbers"):
        await judge.next_token_logprobs(make_prompts(5), (7, 3))
    await judge.close()


def test_a_directory_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    content = json.loads((folder / "config.json").read_text())
    content["num_hidden_layers"] += 1
    content["layer_types"].append("full_attention")
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="asks for are missing"):
        open_judge(judge_section(folder, "streamed"))


def test_layers_that_share_their_weights_are_refused(model_folder: Path) -> None:
    model = load_plain(model_folder)
    layers = decoder_layers(model)
    layers[1].mlp.up_proj.weight = layers[0].mlp.up_proj.weight
    with pytest.raises(ModelError, match="share weights"):
        stream(model)


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["qwen2"]())
    model.model.layers = model.model.layers[:-1]
    with pytest.raises(ModelError, match="0 lists of 6 layers"):
        decoder_layers(model)


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_a_share_of_resident_layers_is_refused_of_a_judge_that_holds_them_all(engine: Any, model_folder: Path) -> None:
    judge = JudgeSection(model=ModelSection(path=model_folder), engine=engine, resident_share=0.5)
    with pytest.raises(ValueError, match=rf"resident_share=0\.5 with reward\.judge\.engine={engine}"):
        RewardSection(name="judge", judge=judge)
