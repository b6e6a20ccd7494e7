"""A model in another type, as transformers reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rollpacker.core.errors import ModelError
from rollpacker.data.model_export import export_model
from tests.engines.tiny import CONFIGS


def saved(folder: Path, name: str, **options: object) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[name]()).float().save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("name", "shards"), [("qwen2", "1GB"), ("llama", "20KB"), ("gemma3", "1GB")], ids=["tied", "in shards", "gemma3"]
)
def test_an_exported_model_has_the_weights_rounded_as_torch_rounds_them(tmp_path: Path, name: str, shards: str) -> None:
    source = saved(tmp_path / "source", name, max_shard_size=shards)
    export_model(source, tmp_path / "out", dtype="bfloat16", card="# A card\n")
    assert (len(list(source.glob("*.safetensors"))) > 1) == (shards == "20KB")
    whole = AutoModelForCausalLM.from_pretrained(source).state_dict()
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto", output_loading_info=True)
    assert not any(report["missing_keys"] or report["unexpected_keys"])
    assert model.dtype is torch.bfloat16
    assert {key: value.dtype for key, value in model.state_dict().items()} == dict.fromkeys(whole, torch.bfloat16)
    for key, value in model.state_dict().items():
        assert torch.equal(value, whole[key].to(torch.bfloat16)), key
    assert (tmp_path / "out" / "README.md").read_text() == "# A card\n"
    assert {file.name for file in (tmp_path / "out").iterdir()} == {file.name for file in source.iterdir()} | {
        "README.md"
    }


def test_an_index_says_the_size_of_the_new_weights(tmp_path: Path) -> None:
    source = saved(tmp_path / "source", "llama", max_shard_size="20KB")
    export_model(source, tmp_path / "out", dtype="bfloat16", card="")
    before, after = (
        json.loads((folder / "model.safetensors.index.json").read_text()) for folder in (source, tmp_path / "out")
    )
    assert after["weight_map"] == before["weight_map"]
    assert 2 * after["metadata"]["total_size"] == before["metadata"]["total_size"]


def test_every_bit_pattern_of_a_finite_number_becomes_torchs_bfloat16(tmp_path: Path) -> None:
    source = saved(tmp_path / "source", "qwen2")
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(0), dtype=torch.int64)
    numbers = bits.to(torch.int32).view(torch.float32)
    ties = (torch.arange(2**15) << 16 | 0x8000).to(torch.int32).view(torch.float32)
    numbers = torch.cat([numbers, ties, -ties])
    numbers = numbers[numbers.isfinite()]
    weights = {
        "numbers": numbers,
        "half": numbers.half().clamp(-9, 9),
        "whole": torch.arange(7),
        "scalar": torch.ones(()),
    }
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    for dtype in ("bfloat16", "float32"):
        export_model(source, tmp_path / dtype, dtype=dtype, card="")  # type: ignore[arg-type]
        found = load_file(tmp_path / dtype / "model.safetensors")
        for name in ("numbers", "half", "scalar"):
            assert torch.equal(found[name], weights[name].to(getattr(torch, dtype)))
        assert torch.equal(found["whole"], weights["whole"])


def test_a_model_with_nan_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source = saved(tmp_path / "source", "qwen2")
    weights = load_file(source / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.norm\.weight .* has 1 values"):
        export_model(source, tmp_path / "out", dtype="bfloat16", card="")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
