"""A pass with streamed layers gives what the plain transformers model gives."""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rollpacker.core.errors import ModelError
from rollpacker.engines.streamed.decoder import StreamedDecoder
from rollpacker.engines.streamed.devices import CpuDevice
from rollpacker.engines.streamed.loading import decoder_layers, load_on_host
from tests.engines.streamed.models import CONFIGS, NUM_LAYERS, load_plain, make_prompts, plain_logprobs, save_model

if TYPE_CHECKING:
    from pathlib import Path

EVERY_TOKEN = range(50)


def make_decoder(folder: Path, dtype: str = "float32", *, num_resident: int = 2, num_slots: int = 2) -> StreamedDecoder:
    decoder = StreamedDecoder(load_on_host(folder, dtype), CpuDevice(), num_slots)
    decoder.wake(num_resident)
    return decoder


@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_are_those_of_the_plain_model_to_fp32_rounding(name: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, name)
    plain, decoder = load_plain(folder), make_decoder(folder)
    for lengths in [(40, 17, 17, 3, 1), (23,)]:
        prompts = make_prompts(*lengths)
        answers, times = decoder.run(prompts, [EVERY_TOKEN] * len(prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            np.testing.assert_allclose(answer, plain_logprobs(plain, prompt, EVERY_TOKEN), rtol=0, atol=5e-6)
        assert times.copied_bytes > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_slots", [1, 2, 3])
@pytest.mark.parametrize("num_resident", [0, 1, 2, 6])
def test_streaming_changes_no_bit_of_the_same_batch(
    num_resident: int, num_slots: int, dtype: str, model_folder: Path
) -> None:
    plain = load_plain(model_folder, dtype)
    decoder = make_decoder(model_folder, dtype, num_resident=num_resident, num_slots=num_slots)
    prompts = make_prompts(12, 12, 12)
    with torch.no_grad():
        tokens = torch.as_tensor(np.stack(prompts), dtype=torch.int64)
        logits = plain(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[:, -1].float()
    for _ in range(2):  # the second pass finds its first layers in the slots
        answers, times = decoder.run(prompts, [EVERY_TOKEN] * 3)
        assert torch.equal(torch.tensor(answers), logits.log_softmax(-1))
        assert times.copied_bytes == (NUM_LAYERS - num_resident) * decoder.sizes.layer_bytes


def test_bf16_is_the_plain_models_to_bf16_rounding_beside_other_prompts(model_folder: Path) -> None:
    exact, decoder = load_plain(model_folder), make_decoder(model_folder, "bfloat16")
    prompts = make_prompts(30, 11, 4)
    answers, _ = decoder.run(prompts, [EVERY_TOKEN] * 3)
    for prompt, answer in zip(prompts, answers, strict=True):
        np.testing.assert_allclose(answer, plain_logprobs(exact, prompt, EVERY_TOKEN), rtol=0.02, atol=0.06)


def test_each_prompt_has_candidates_of_its_own(model_folder: Path) -> None:
    plain, decoder = load_plain(model_folder), make_decoder(model_folder)
    prompts = make_prompts(9, 5)
    answers, _ = decoder.run(prompts, [(7, 3), (1,)])
    assert [len(answer) for answer in answers] == [2, 1]
    np.testing.assert_allclose(answers[0], plain_logprobs(plain, prompts[0], (7, 3)), atol=5e-6)


def test_a_decoder_that_slept_or_moved_its_layers_says_the_same(model_folder: Path) -> None:
    decoder = make_decoder(model_folder)
    prompts = make_prompts(9, 5)
    before, _ = decoder.run(prompts, [EVERY_TOKEN] * 2)
    for num_resident in (0, 3, 6, 1):
        decoder.place(num_resident)
        assert decoder.run(prompts, [EVERY_TOKEN] * 2)[0] == before
    decoder.sleep()
    assert decoder.layers.num_bytes == 0
    assert not decoder.is_awake
    decoder.wake(2)
    assert decoder.run(prompts, [EVERY_TOKEN] * 2)[0] == before


def test_a_layer_is_one_flat_buffer_from_which_it_is_copied_at_once(model_folder: Path) -> None:
    model = load_on_host(model_folder, "float32")
    plain = dict(load_plain(model_folder).named_parameters())
    StreamedDecoder(model, CpuDevice(), 2)
    for layer in decoder_layers(model):
        assert len({parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}) == 1
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, plain[name])


class LiveBytes(TorchDispatchMode):
    """The most that tensors made within it take at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if torch.is_tensor(leaf) and (storage := leaf.untyped_storage()).data_ptr() not in given:
                address = storage.data_ptr()
                self.live[address] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, address, None)
                self.most = max(self.most, sum(self.live.values()))
        return result


@pytest.mark.parametrize("changes", [{}, {"intermediate_size": 16, "num_key_value_heads": 4}], ids=["mlp", "attention"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_take_what_the_planner_counts_with(changes: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 320, "num_key_value_heads": 1, **changes}
    decoder = make_decoder(save_model(tmp_path, **sizes), dtype, num_resident=6)
    prompts = make_prompts(*[200] * 4)
    with LiveBytes() as measured:
        decoder.run(prompts, [EVERY_TOKEN] * 4)
    planned = decoder.sizes.activation_bytes(4, 200)
    assert measured.most <= planned * 1.2  # the share that the planner leaves free beside them
    assert planned <= 2 * measured.most


def test_a_directory_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    content = json.loads((folder / "config.json").read_text())
    content["num_hidden_layers"] += 1
    content["layer_types"].append("full_attention")
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="weights are missing"):
        load_on_host(folder, "float32")


def test_layers_that_share_their_weights_are_refused(model_folder: Path) -> None:
    model = load_on_host(model_folder, "float32")
    layers = decoder_layers(model)
    layers[1].mlp.up_proj.weight = layers[0].mlp.up_proj.weight
    with pytest.raises(ModelError, match="share weights"):
        StreamedDecoder(model, CpuDevice(), 2)


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["qwen2"]())
    model.model.layers = model.model.layers[:-1]
    with pytest.raises(ModelError, match="0 lists of 6 layers"):
        decoder_layers(model)
