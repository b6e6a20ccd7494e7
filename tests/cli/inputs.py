"""A model directory and a prompt file that a run would accept, made without torch."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from rollpacker.config.compose import compose
from rollpacker.config.fingerprint import config_fingerprint
from rollpacker.data.architectures import OUTPUT, known_tensors
from rollpacker.data.order import PromptOrder, keys_of
from rollpacker.data.prompts import load_prompts
from rollpacker.runtime.run.checkpoints import SCHEMA_VERSION

CONFIG: dict[str, object] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 128,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

_OTHERS = [f"w{token}" for token in range(105, 128)]
WORDS = {word: token for token, word in enumerate(["<pad>", "</s>", "?", "+", "=", *map(str, range(100)), *_OTHERS])}
"""As many as the model has tokens."""


def tensors_of(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """What the weight file of a configuration holds: a tied output layer is not in it."""
    shapes = known_tensors(config)
    assert shapes is not None
    return {name: shape for name, shape in shapes.items() if name != OUTPUT or not config["tie_word_embeddings"]}


NUM_PARAMETERS = sum(math.prod(shape) for shape in tensors_of(CONFIG).values())


def header_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[str, object]]:
    """Of a file of these tensors in float32."""
    header: dict[str, dict[str, object]] = {}
    place = 0
    for name, shape in shapes.items():
        end = place + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [place, end]}
        place = end
    return header


def write_weights(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Zeros, which take no room on a disk."""
    text = json.dumps({"__metadata__": {"format": "pt"}} | header_of(shapes)).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(file, 8 + len(text) + 4 * sum(map(math.prod, shapes.values())))


def write_model(folder: Path, **changes: object) -> Path:
    """A model with these changes to `CONFIG`."""
    folder.mkdir(exist_ok=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder / "model.safetensors", tensors_of(config))
    write_tokenizer(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1], "pad_token_id": 0}')
    return folder


def write_shards(folder: Path) -> Path:
    """Replace a model's weights by the same in two files with an index."""
    (folder / "model.safetensors").unlink()
    shapes = tensors_of(json.loads((folder / "config.json").read_text()))
    weight_map = {name: f"model-{1 + ('.1.' in name):05d}-of-00002.safetensors" for name in shapes}
    for file in sorted(set(weight_map.values())):
        write_weights(folder / file, {name: shape for name, shape in shapes.items() if weight_map[name] == file})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def write_tokenizer(folder: Path) -> None:
    """One that has a token for each number below 100, and another one for all else."""
    raw = Tokenizer(WordLevel(WORDS, unk_token="?"))  # noqa: S106  # no password
    raw.pre_tokenizer = WhitespaceSplit()
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>"})
    )


def write_prompts(file: Path, domains: Sequence[str] = ("math",) * 40) -> Path:
    lines = [
        json.dumps({"id": f"p{index}", "domain": domain, "prompt": f"{index} + 1 =", "ground_truth": str(index + 1)})
        for index, domain in enumerate(domains)
    ]
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def write_checkpoint(run_dir: Path, words: Sequence[str], step: int, **changes: object) -> Path:
    """A folder of a run of these words, and a checkpoint in it that a resumed run would find; returns the latter."""
    config = compose([*words, f"run.dir={run_dir}"])
    fingerprint = config_fingerprint(config)
    order = PromptOrder(keys_of(load_prompts(config.data.files)), config.run.seed, config.data.shuffle, None)
    identity = {"schema_version": SCHEMA_VERSION, "run_id": "a", "fingerprint": fingerprint} | changes
    folder = run_dir / "checkpoints" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    (run_dir / "run.json").write_text(json.dumps(identity))
    of_checkpoint = {"step": step, "elapsed_s": 1.0, "attempt": 0, "files": {}}
    (folder / "meta.json").write_text(json.dumps(identity | of_checkpoint))
    (folder / "scheduler.json").write_text("{}")
    (folder / "order.json").write_text(json.dumps(order.snapshot()))
    return folder


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder with its content: two equal trees mean that nothing was created or changed."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
