"""Broken model directories, each refused by what is wrong with it, and whole ones of many architectures."""
# ruff: noqa: S106  # these tokens are no passwords

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from rollpacker.core.errors import ModelError
from rollpacker.data import skeleton
from rollpacker.data.architectures import known_tensors
from rollpacker.data.model_files import check_model_files
from tests.cli.inputs import CONFIG, WORDS, tensors_of, write_model, write_shards, write_weights
from tests.engines import streamable, tiny
from tests.judges import make_judge
from tests.trainers.megatron.conftest import MODELS as OF_MEGATRON

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny-model")


def error_of(path: Path, **keys: bool) -> str:
    with pytest.raises(ModelError) as caught:
        check_model_files(path, **keys)
    assert caught.value.problem
    assert caught.value.allowed
    assert caught.value.remedy
    return str(caught.value)


def rewrite(file: Path, **changes: object) -> None:
    """Change a JSON object; None leaves a key out."""
    content = json.loads(file.read_bytes()) if file.is_file() else {}
    file.write_text(json.dumps({key: value for key, value in (content | changes).items() if value is not None}))


def configured(**changes: object) -> Callable[[Path], None]:
    return lambda model: rewrite(model / "config.json", **changes)


def written(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda model: (
        (model / name).write_bytes(content if isinstance(content, bytes) else content.encode()) and None
    )


def changed(name: str, **changes: object) -> Callable[[Path], None]:
    return lambda model: rewrite(model / name, **changes)


def cut(name: str, share: float) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        os.truncate(model / name, int((model / name).stat().st_size * share))

    return spoil


def headed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the header of the weights, and nothing behind it."""

    def spoil(model: Path) -> None:
        file = model / "model.safetensors"
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])

    return spoil


NORM, EMBEDDING = "model.norm.weight", "model.embed_tokens.weight"


def swapped(header: dict[str, Any]) -> None:
    """Make a tensor begin where another one does, of the same size."""
    first, second = (f"model.layers.{layer}.input_layernorm.weight" for layer in (0, 1))
    header[first]["data_offsets"] = header[second]["data_offsets"]


def appended(model: Path) -> None:
    with (model / "model.safetensors").open("ab") as file:
        file.write(bytes(4))


def with_numbers(number: float, dtype: torch.dtype) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        from safetensors.torch import save_file

        state = {name: torch.zeros(shape, dtype=dtype) for name, shape in tensors_of(CONFIG).items()}
        state[NORM][3] = number
        save_file(state, model / "model.safetensors")

    return spoil


def of_type(dtype: torch.dtype) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        from safetensors.torch import save_file

        save_file(
            {name: torch.zeros(shape).to(dtype) for name, shape in tensors_of(CONFIG).items()},
            model / "model.safetensors",
        )

    return spoil


def without_tensor(name: str) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        shapes = tensors_of(CONFIG)
        write_weights(model / "model.safetensors", {other: shapes[other] for other in shapes if other != name})

    return spoil


def indexed(change: Callable[[dict[str, str]], object]) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        index = write_shards(model)
        content = json.loads(index.read_bytes())
        change(content["weight_map"])
        index.write_text(json.dumps(content))

    return spoil


def without_shard(model: Path) -> None:
    write_shards(model)
    (model / "model-00002-of-00002.safetensors").unlink()


def removed(*names: str) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        for name in names:
            (model / name).unlink()

    return spoil


def of_torch(content: bytes) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        (model / "model.safetensors").unlink()
        (model / "pytorch_model.bin").write_bytes(content)

    return spoil


def with_words(num: int) -> Callable[[Path], None]:
    """A tokenizer of so many words."""

    def spoil(model: Path) -> None:
        tokenizer = json.loads((model / "tokenizer.json").read_bytes())
        tokenizer["model"]["vocab"] = {word: index for word, index in WORDS.items() if index < num} | {
            f"more{index}": index for index in range(len(WORDS), num)
        }
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))

    return spoil


BROKEN: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    # weights: one file
    "no weights": (removed("model.safetensors"), ["has no weights"]),
    "weights of another name": (
        lambda model: (model / "model.safetensors").rename(model / "weights.safetensors"),
        ["no weights that transformers would load: weights.safetensors"],
    ),
    "weights that are text": (written("model.safetensors", "these are not weights"), ["not a safetensors file"]),
    "empty weights": (written("model.safetensors", ""), ["not a safetensors file"]),
    "weights cut in the middle": (cut("model.safetensors", 0.5), ["is cut off", "Its header says"]),
    "weights cut in the header": (cut("model.safetensors", 0.01), ["not a safetensors file"]),
    "weights cut by a byte": (cut("model.safetensors", 0.99999), ["is cut off"]),
    "bytes behind the weights": (appended, ["has 4 bytes behind its last tensor"]),
    "a header that is no JSON": (written("model.safetensors", struct.pack("<Q", 4) + b"{]}!"), ["not a safetensors"]),
    "a header of no object": (written("model.safetensors", struct.pack("<Q", 2) + b"[]"), ["not a safetensors file"]),
    "a tensor without a shape": (headed(lambda header: header[NORM].pop("shape")), ["not a safetensors file", "shape"]),
    "a type that is none": (headed(lambda header: header[NORM].update(dtype="F33")), ["`F33`", "`F32`"]),
    "a shape of other bytes": (headed(lambda header: header[NORM].update(shape=[17])), ["invalid shape, data type"]),
    "a negative shape": (headed(lambda header: header[NORM].update(shape=[-16])), ["-16"]),
    "tensors that overlap": (headed(swapped), ["without overlap"]),
    "a tensor outside": (
        headed(lambda header: header[NORM].update(data_offsets=[10**9, 10**9 + 64])),
        ["is cut off", "1,000,"],
    ),
    "a git-lfs pointer": (
        written("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"),
        ["git lfs pull"],
    ),
    "torch's file that is cut": (of_torch(b"PK\x03\x04 and no more"), ["pytorch_model.bin is cut off"]),
    "torch's file that is text": (of_torch(b"weights"), ["pytorch_model.bin is cut off or no weight file"]),
    "weights that are NaN": (with_numbers(float("nan"), torch.float32), [NORM, "1 values that are NaN or infinite"]),
    "bfloat16 that is infinite": (with_numbers(float("-inf"), torch.bfloat16), [NORM, "NaN or infinite"]),
    "float16 that is NaN": (with_numbers(float("nan"), torch.float16), [NORM, "NaN or infinite"]),
    "weights of whole numbers": (of_type(torch.int8), ["of the type I8", "F32, BF16"]),
    "weights of eight bits": (of_type(torch.float8_e4m3fn), ["of the type F8_E4M3"]),
    # weights: several files
    "a missing shard": (without_shard, ["1 of 2 weight files", "model-00002-of-00002.safetensors"]),
    "an index without a map": (lambda model: write_shards(model).write_text("{}"), ["weight_map"]),
    "an index that is text": (lambda model: write_shards(model).write_text("index"), ["index.json cannot be read"]),
    "an index with a tensor too many": (
        indexed(lambda weight_map: weight_map.update(other="model-00001-of-00002.safetensors")),
        ["says that other is in model-00001-of-00002.safetensors, and no file has it"],
    ),
    "an index with another file": (
        indexed(lambda weight_map: weight_map.update({NORM: "model-00002-of-00002.safetensors"})),
        [NORM, "it is in model-00001-of-00002.safetensors"],
    ),
    "a shard that is cut": (
        lambda model: (write_shards(model), cut("model-00002-of-00002.safetensors", 0.5)(model)),
        ["model-00002-of-00002.safetensors is cut off"],
    ),
    # config.json, against the weights
    "another vocabulary": (configured(vocab_size=256), [f"{EMBEDDING} is [128, 16] instead of [256, 16]"]),
    "another hidden size": (configured(hidden_size=32), ["config.json asks for"]),
    "another inner size": (configured(intermediate_size=64), ["down_proj.weight is [16, 32] instead of [16, 64]"]),
    "other heads": (configured(num_attention_heads=4), ["k_proj"]),
    "other key heads": (configured(num_key_value_heads=2), ["k_proj"]),
    "another head size": (configured(head_dim=4), ["self_attn"]),
    "more layers": (configured(num_hidden_layers=3), ["are missing, such as model.layers.2"]),
    "fewer layers": (configured(num_hidden_layers=1), ["in no part of the model", "model.layers.1"]),
    "an output layer of its own": (configured(tie_word_embeddings=False), ["missing, such as lm_head.weight"]),
    "a missing tensor": (without_tensor(NORM), ["missing, such as " + NORM]),
    # config.json
    "no configuration": (removed("config.json"), ["has no config.json"]),
    "a configuration that is no JSON": (written("config.json", "{broken"), ["config.json cannot be read"]),
    "a configuration that is a list": (written("config.json", "[]"), ["config.json holds '[]'"]),
    "a configuration of bytes": (written("config.json", b"\xff\xfe\x00"), ["config.json cannot be read"]),
    "no model_type": (configured(model_type=None), ["gives None as its `model_type`"]),
    "a quantized model": (configured(quantization_config={"quant_method": "fp8"}), ["is quantized"]),
    "an end outside the vocabulary": (configured(eos_token_id=128), ["gives 128 as eos_token_id", "0 to 127"]),
    "an end that is text": (configured(eos_token_id="</s>"), ["gives '</s>' as eos_token_id"]),
    "padding outside the vocabulary": (configured(pad_token_id=5000), ["gives 5000 as pad_token_id"]),
    "kinds of too few layers": (configured(layer_types=["full_attention"]), ["layer_types"]),
    "kinds of layers as text": (configured(layer_types="full_attention"), ["layer_types"]),
    "a size that is text": (configured(hidden_size="16"), ["hidden_size"]),
    "a size that is a fraction": (configured(hidden_size=16.5), ["hidden_size"]),
    "no head": (configured(num_attention_heads=0), ["Allowed: an integer, at least 1"]),
    "a negative size": (configured(intermediate_size=-32), ["Allowed: an integer, at least 1"]),
    # generation_config.json
    "defaults of generation that are no JSON": (written("generation_config.json", "{"), ["generation_config.json"]),
    "defaults of generation that are a list": (written("generation_config.json", "[1]"), ["generation_config.json"]),
    "one of several ends outside": (changed("generation_config.json", eos_token_id=[1, 900]), ["gives 900 as"]),
    # the tokenizer
    "no tokenizer": (removed("tokenizer.json"), ["has no tokenizer"]),
    "a vocabulary without merges": (
        lambda model: ((model / "tokenizer.json").unlink(), (model / "vocab.json").write_text("{}")),
        ["has no tokenizer"],
    ),
    "an empty tokenizer": (written("tokenizer.json", ""), ["tokenizer.json cannot be read"]),
    "a tokenizer that is cut": (cut("tokenizer.json", 0.5), ["tokenizer.json cannot be read"]),
    "a tokenizer that is another JSON": (written("tokenizer.json", '{"a": 1}'), ["tokenizer.json cannot be read"]),
    "a tokenizer without words": (with_words(0), ["tokenizer.json"]),
    "an empty sentencepiece model": (
        lambda model: ((model / "tokenizer.json").unlink(), (model / "tokenizer.model").touch()),
        ["tokenizer.model is empty"],
    ),
    "settings that are no JSON": (written("tokenizer_config.json", "eos"), ["tokenizer_config.json cannot be read"]),
    "settings that are a folder": (
        lambda model: (model / "special_tokens_map.json").mkdir(),
        ["special_tokens_map.json is a folder"],
    ),
    "settings that link to nothing": (
        lambda model: (model / "added_tokens.json").symlink_to("gone"),
        ["added_tokens.json is a link to nothing"],
    ),
    "a configuration in UTF-16": (
        lambda model: (model / "config.json").write_bytes("{}".encode("utf-16")),
        ["config.json cannot be read"],
    ),
    "settings that are a list": (written("tokenizer_config.json", "[]"), ["tokenizer_config.json holds"]),
    "an end that is a number": (changed("tokenizer_config.json", eos_token=1), ["gives 1 as its eos_token"]),
    "a larger vocabulary": (with_words(140), ["12 tokens that the model does not have", "'more128', which is 128"]),
    "an end that is no word": (changed("tokenizer_config.json", eos_token="<|end|>"), ["'<|end|>', which is 128"]),
    "special tokens that are no JSON": (written("special_tokens_map.json", "{"), ["special_tokens_map.json"]),
    "a template that is no Jinja": (
        changed("tokenizer_config.json", chat_template="{% for m in messages %}"),
        ["tokenizer_config.json holds a chat template that is no Jinja"],
    ),
    "a template's file that is no Jinja": (written("chat_template.jinja", "{% if %}"), ["chat_template.jinja"]),
    "a template that is a number": (changed("tokenizer_config.json", chat_template=3), ["as a chat_template"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_model_is_refused_by_what_is_wrong_with_it(
    case: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_keys: pytest.fail("asked transformers, for seconds"))
    spoil, words = BROKEN[case]
    spoil(model)
    message = error_of(model)
    for word in words:
        assert word in message


STRANGE: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "another architecture": (configured(architectures=["FooForCausalLM"]), ["['FooForCausalLM']", "Qwen2ForCausalLM"]),
    "no architecture": (configured(architectures=None), ["architectures None", "Qwen2ForCausalLM"]),
    "an unknown type": (configured(model_type="foo"), ["foo"]),
    "an encoder": (configured(model_type="bert", architectures=["BertForMaskedLM"]), ["BertForMaskedLM", "BertLMHead"]),
    "a model that generates no text": (
        configured(model_type="vit", architectures=["ViTModel"]),
        ["no causal language"],
    ),
    "code of its own": (
        configured(model_type="mine", auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"}),
        ["mine"],
    ),
    "layers of a kind that is none": (configured(layer_types=["full_attention", "odd"]), ["layer_types"]),
    "an unknown activation": (configured(hidden_act="gleu"), ["gleu"]),
    "an unknown rotary embedding": (configured(rope_parameters={"rope_type": "odd", "rope_theta": 1.0}), ["odd"]),
    "fewer layers of another architecture": (
        configured(model_type="granite", architectures=["GraniteForCausalLM"], num_hidden_layers=1),
        ["15 tensors are in no part of the model"],
    ),
    "no end": (
        changed("tokenizer_config.json", eos_token=None),
        ["eos_token", "128, a token that the model does not have", "tokenizer_config.json"],
    ),
    "a sentencepiece model of garbage": (
        lambda model: ((model / "tokenizer.json").unlink(), (model / "tokenizer.model").write_bytes(b"\x00garbage")),
        ["tokenizer"],
    ),
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_only_transformers_knows_is_refused_too(case: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has torch already."""
    from rollpacker.data import model_files

    monkeypatch.setattr(model_files, "ask_transformers", skeleton.compare)
    spoil, words = STRANGE[case]
    spoil(model)
    message = error_of(model)
    for word in words:
        assert word in message


def test_of_a_model_whose_tensors_are_known_only_the_tokenizer_is_asked_about(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollpacker.data import model_files

    asked = []
    monkeypatch.setattr(model_files, "ask_transformers", lambda _path, **about: asked.append(about))
    check_model_files(model)
    assert not asked
    (model / "tokenizer_config.json").write_text("{}")
    check_model_files(model)
    assert asked == [{"is_trained": True, "has_model": False, "has_weights": True}]
    monkeypatch.undo()
    (model / "queue.py").write_text("raise SystemExit('a module of the working directory')")
    monkeypatch.chdir(model)
    assert "a token that the model does not have" in error_of(model)


def test_transformers_is_asked_in_a_process_of_its_own(model: Path) -> None:
    rewrite(model / "config.json", layer_types=["full_attention"] * 2, mlp_bias=None, another_key="unusual")
    check_model_files(model)
    rewrite(model / "config.json", hidden_act="gelu_of_another_version")
    check_model_files(model, can_ask=False)


def test_what_ends_the_process_that_asks_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    rewrite(model / "config.json", another_key="unusual")
    assert "ended with exit code 1" in error_of(model)


def test_a_whole_model_passes_without_torch(model: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rollpacker.data.model_files import check_model_files;"
        f"check_model_files(Path({str(model)!r})); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_model_in_several_files_passes(model: Path) -> None:
    write_shards(model)
    check_model_files(model)


def test_no_weight_of_a_large_model_is_read(tmp_path: Path) -> None:
    """Seven billion parameters, of which the disk has none."""
    sizes = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    check_model_files(write_model(tmp_path, **sizes, num_key_value_heads=4))


def test_tokens_of_images_may_lie_beyond_a_models_vocabulary(model: Path) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_bytes())
    tokenizer["added_tokens"] = [
        {"id": 128, "content": "<image>", "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    check_model_files(model)


def test_a_template_may_use_what_transformers_adds_to_jinja(model: Path) -> None:
    template = "{% for m in messages %}{% break %}{% generation %}a{% endgeneration %}{% endfor %}"
    (model / "chat_template.jinja").write_text(template)
    check_model_files(model)


def test_a_section_of_the_decoder_that_is_no_object_is_none(model: Path) -> None:
    sizes = json.loads((model / "config.json").read_text())
    del sizes["vocab_size"]
    (model / "config.json").write_text(json.dumps(sizes | {"text_config": "llama", "eos_token_id": 10**6}))
    check_model_files(model, is_trained=False, can_ask=False)


def test_a_judge_may_be_quantized(model: Path) -> None:
    rewrite(model / "config.json", quantization_config={"quant_method": "fp8"})
    check_model_files(model, is_trained=False, can_ask=False)


def test_a_missing_directory_is_refused_with_the_nearest_one(model: Path) -> None:
    assert "Did you mean" in (message := error_of(model.parent / "tiny-modle"))
    assert "tiny-model?" in message


def test_a_name_of_the_hub_is_refused_with_how_to_download_it(tmp_path: Path) -> None:
    assert "hf download" in error_of(tmp_path / "Qwen" / "Qwen2.5-0.5B")


def test_a_file_is_refused_with_its_directory(model: Path) -> None:
    assert "Name the directory" in error_of(model / "model.safetensors")


def test_no_directory_is_named_beside_a_file_that_is_of_no_model(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").touch()
    assert "Name the directory" not in error_of(tmp_path / "q.jsonl")


WHOLE = {
    **{f"engines: {name}": make for name, make in tiny.CONFIGS.items()},
    **{f"streamed: {name}": make for name, make in streamable.CONFIGS.items()},
    **{f"megatron: {name}": (lambda config=config: config) for name, (_, config) in OF_MEGATRON.items()},
}


@pytest.mark.parametrize("name", WHOLE)
def test_transformers_finds_what_it_has_saved_itself_and_so_do_the_known_names(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = transformers.AutoModelForCausalLM.from_config(WHOLE[name]())
    (model / "generation_config.json").unlink()
    saved.save_pretrained(model)
    skeleton.compare(model, is_trained=True, has_model=True, has_weights=True)
    known = known_tensors(json.loads((model / "config.json").read_bytes()))
    assert (known is None) == (saved.config.model_type not in {"llama", "mistral", "qwen2", "qwen3"})
    if known is not None:
        assert known == {key: tuple(tensor.shape) for key, tensor in saved.state_dict().items()}
    from rollpacker.data import model_files

    monkeypatch.setattr(model_files, "ask_transformers", skeleton.compare)
    with_words(saved.config.get_text_config().vocab_size)(model)
    rewrite(model / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    check_model_files(model)


def test_the_tiny_judge_passes(tmp_path: Path) -> None:
    make_judge(tmp_path)
    check_model_files(tmp_path, is_trained=False)
