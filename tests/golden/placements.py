"""What `placement=auto` chooses for well-known models on 1 to 8 GPUs of 24 to 141 GB, at the lengths of GSM8K."""

from __future__ import annotations

import functools
import json
import operator
from pathlib import Path

from rollpacker.config.compose import compose
from rollpacker.config.record import differences
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import UserError
from rollpacker.data.shapes import transformer_of
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.runtime.placing.automatic import Chooser
from rollpacker.runtime.placing.gpus import Gpus
from rollpacker.runtime.placing.model_fit import engine_memory, rank_memory
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.trainers.trainable import check_trainable

NUMBERS, CARDS_GB = (1, 2, 4, 8), (24, 40, 80, 141)
_SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "tie_word_embeddings"),
)
_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "head_dim": 128}
MODELS = {
    "0.5B": dict(zip(_SIZES, (24, 896, 14, 2, 4864, 151936, True), strict=True)),
    "1.5B": dict(zip(_SIZES, (28, 1536, 12, 2, 8960, 151936, True), strict=True)),
    "7B": dict(zip(_SIZES, (28, 3584, 28, 4, 18944, 152064, False), strict=True)),
    "14B": dict(zip(_SIZES, (48, 5120, 40, 8, 13824, 152064, False), strict=True)),
    "32B": dict(zip(_SIZES, (64, 5120, 40, 8, 27648, 152064, False), strict=True)),
    "30B-A3B": dict(zip(_SIZES, (48, 2048, 32, 4, 6144, 151936, False), strict=True)) | _EXPERTS,
}
"""Qwen2.5's and Qwen3-30B-A3B's `config.json`, as far as sizes go."""

WORDS = (
    *("data.path=prompts.jsonl", "run.dir=runs/x", "data.max_prompt_tokens=512", "rollout.max_response_tokens=1024"),
    *("rollout.num_prompts=128",),
)
_HEAD = ("GPUs", "card", "model", "engines", "trainer", "micro-batch", "engine weights", "trainer peak", "of the card")


def write_models(folder: Path) -> dict[str, Path]:
    """Model directories that hold nothing but sizes."""
    for name, sizes in MODELS.items():
        (folder / name).mkdir()
        kind = "qwen3_moe" if "num_experts" in sizes else "qwen2"
        (folder / name / "config.json").write_text(json.dumps({"model_type": kind, **sizes}))
    return {name: folder / name for name in MODELS}


@functools.cache
def _unplaced(model: Path) -> RunConfig:
    return compose([f"model.path={model}", *WORDS])


def choose(model: Path, gpus: Gpus) -> RunConfig:
    """The configuration of a run on these GPUs; raises as `rollpacker check` would for its sizes."""
    unplaced = _unplaced(model)
    tree = unplaced.model_dump()
    for key, value in Chooser(gpus).complete(tree, differences(unplaced).keys()).items():
        *sections, leaf = key.split(".")
        functools.reduce(operator.getitem, sections, tree)[leaf] = value
    config = RunConfig.model_validate(tree)
    check_trainable(config)
    placed_actors(config, ClusterSize(num_nodes=gpus.num_nodes, num_cpus=64, num_gpus=gpus.per_node))
    return config


def peak_bytes(config: RunConfig, gpu_bytes: float) -> tuple[float, float]:
    """Of an engine's weights with one sequence, and of a rank of the trainer, on each GPU."""
    model = transformer_of(config.model)
    engine = engine_memory(config, model, gpu_bytes)
    return engine.weights + engine.sequence, rank_memory(config, model).total


def table(folder: Path) -> str:
    """A line for each number, card and model."""
    models = write_models(folder)
    rows: list[tuple[str, ...]] = [_HEAD]
    for number in NUMBERS:
        for card in CARDS_GB:
            rows += [(str(number), f"{card} GB", name, *_cells(models[name], number, card)) for name in MODELS]
    widths = [max(len(row[column]) for row in rows if len(row) == len(_HEAD)) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join([*lines, ""])


def _cells(model: Path, number: int, card: int) -> tuple[str, ...]:
    try:
        config = choose(model, Gpus(per_node=number, num_bytes=card * 1e9, has_vllm=True))
    except UserError as error:
        return (f"refused: {error.problem.replace(f'in {model} ', '')} {error.remedy}",)
    trainer = config.trainer
    weights, peak = peak_bytes(config, card * 1e9)
    copies = f", copies of {trainer.shard_ranks}" if trainer.shard_ranks else ""
    return (
        f"{config.engine.num_engines} x TP {config.engine.tensor_parallel}",
        f"{trainer.name} x {trainer.data_parallel}{copies}",
        f"{trainer.max_tokens_per_microbatch:,}",
        f"{weights / 1e9:.1f} GB",
        f"{peak / 1e9:.1f} GB",
        f"{peak / card / 1e9:.0%}",
    )
