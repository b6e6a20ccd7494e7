"""What of a configuration defines a run's result, and its hash: a checkpoint is resumed only by the same run.

Left out, and free to change between two attempts of one run, is what changes only where or how fast the same result
is reached, or how long the run goes on:

* `run.dir`, `run.resume`, `run.checkpoint_every_steps`, `run.keep_checkpoints`, `run.progress`, `run.setup`,
  `run.study`, `tracker`, `model.name`: what is written, where, and what it is called;
* `cluster`: which machines it runs on;
* `backend` but for its name, `placement`, `weight_sync`, the degrees of engines and trainer, `resources`,
  `num_threads`, `engine.degrees`, `engine.switch`, `engine.profile`, `engine.num_engines`, `engine.max_num_seqs`,
  `engine.vllm` but for its `arguments`, `reward.num_workers`, the judge's replicas and what each of them takes: who
  works on it, and in how much memory; a sample draws from its own generator, so its tokens do not depend on them beyond
  floating-point ties;
* `trainer.max_tokens_per_microbatch`: the loss is a sum, so its parts change only the rounding;
* `run.num_steps` under a constant learning rate: a finished run may be continued. A decaying schedule spans the steps,
  so there it counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rollpacker.config.schema import RunConfig
from rollpacker.paths import real_path

NOT_DEFINING = (
    "run.dir",
    "run.resume",
    "run.checkpoint_every_steps",
    "run.keep_checkpoints",
    "run.progress",
    "run.setup",
    "run.study",
    "tracker",
    "cluster",
    "model.name",
    "backend.num_cpus",
    "backend.num_gpus",
    "backend.object_store_mb",
    "backend.deadlines",
    "engine.resources",
    "engine.tensor_parallel",
    "engine.degrees",
    "engine.switch",
    "engine.profile",
    "engine.num_threads",
    "engine.num_engines",
    "engine.max_num_seqs",
    "engine.vllm.memory_share",
    "engine.vllm.kv_cache_mb",
    "engine.vllm.prefix_caching",
    "engine.vllm.enforce_eager",
    "engine.vllm.max_num_batched_tokens",
    "engine.max_restarts",
    "engine.restart_pause_s",
    "trainer.resources",
    "trainer.num_threads",
    "trainer.max_tokens_per_microbatch",
    "trainer.tensor_parallel",
    "trainer.pipeline_parallel",
    "trainer.context_parallel",
    "trainer.data_parallel",
    "trainer.recompute_activations",
    "trainer.shard_gradients",
    "trainer.shard_ranks",
    "placement",
    "weight_sync",
    "reward.resources",
    "reward.num_workers",
    "reward.judge.num_replicas",
    "reward.judge.resources",
    "reward.judge.num_threads",
    "reward.judge.tensor_parallel",
    "reward.judge.gpu_share",
    "reward.judge.resident_share",
    "reward.judge.num_slots",
    "reward.judge.max_batch_tokens",
    "reward.judge.max_open",
    "reward.judge.memory_share",
    "reward.judge.kv_cache_mb",
    "reward.judge.enforce_eager",
    "reward.sandbox.num_workers",
)


def defining_values(config: RunConfig) -> dict[str, Any]:
    """Every value that defines the run's result, as plain data by dotted key; input paths are absolute."""
    values = {
        name: value
        for name, value in _flatten(config.model_dump(mode="json"), "")
        if not any(name == left_out or name.startswith(f"{left_out}.") for left_out in NOT_DEFINING)
    }
    for name, path in (("model.path", config.model.path), ("data.chat_template", config.data.chat_template)):
        values[name] = str(real_path(path)) if path else None
    values["data.path"] = [[str(real_path(file.path)), file.domain] for file in config.data.path or ()]
    if config.trainer.lr_schedule == "constant":
        del values["run.num_steps"]
    return values


def config_fingerprint(config: RunConfig) -> str:
    """Sixteen hexadecimal digits over `defining_values`, the same on every machine and in every process."""
    text = json.dumps(defining_values(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key that makes two runs of two configurations."""

    key: str
    here: str
    """Its value in words, as are those below."""
    there: str


def differences(config: RunConfig, record: Mapping[str, Any] | None) -> list[Difference] | None:
    """Name the keys in which a configuration and the record of a run define other results.

    Args:
        config: Of this run.
        record: What `rollpacker.config.record.read_record` gives of the other one.

    Returns:
        None where the record is missing, or of a version with other keys.
    """
    try:
        recorded = RunConfig.model_validate(record)
    except ValidationError:
        return None
    here, there = defining_values(config), defining_values(recorded)
    for values in (here, there):
        if "run.num_steps" not in here or "run.num_steps" not in there:  # it counts because of another key's value
            values.pop("run.num_steps", None)
    return [
        Difference(key=key, here=_in_words(here, key), there=_in_words(there, key))
        for key in dict.fromkeys([*here, *there])
        if here.get(key, _ABSENT) != there.get(key, _ABSENT)
    ]


_ABSENT = object()

_MAX_VALUE_CHARACTERS = 60
"""Of a value in a message; a path is longer at times, and its end tells most."""


def _in_words(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "not set"
    value = values[key]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"...{text[-_MAX_VALUE_CHARACTERS:]}"


def _flatten(tree: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves.extend(_flatten(value, f"{prefix}{name}."))
        else:
            leaves.append((f"{prefix}{name}", value))
    return leaves
