"""Settings by which runs are told apart: repetitions differ in none of them.

What a run keeps and reports is none, and a file is the same however its path is written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from rollpacker.config.keys import REQUIRED, legal_keys
from rollpacker.config.schema import RunConfig
from rollpacker.config.words import counted, in_hydra, shortened

_NOT_COMPARED: Final = re.compile(
    r"tracker\..*|run\.(seed|dir|resume|progress|callbacks|samples_per_step|best_by|keep_.*|checkpoint_.*)"
    r"|backend\.(deadlines\..*|object_store_mb)|elastic\.job\..*|cluster\.(?!num_nodes|gpu).*"
    r"|trainer\.surprisal_.*|model\.(download|export_dtype)|weight_sync\.timeout_s"
    r"|(engine|reward\.judge)\.(max_restarts|restart_pause_s)|evaluation\.(at_.*|num_texts|pass_.*)"
)
"""Keys that repetitions may differ in: what is trained is the same, and what is generated but for the seed. A cluster
is its nodes and GPUs; partition, time limit and account change no result."""

_OF_EVALUATIONS_ALONE: Final = re.compile(r"evaluation\.(path|every_steps|grace_s|num_samples|seed)")
"""Keys that repetitions may differ in while evaluations have rounds of their own, which are part of no step; scores are
compared by set. How held-out responses are sampled changes what a score means. Evaluations that fill rounds lengthen
steps: `evaluation.when` and what they generate are part of the task."""

_OF_SYSTEM: Final = re.compile(
    r"(system|placement|weight_sync)\..*|.*\.resources\..*"
    r"|engine\.(num_engines|tensor_parallel|degrees|switch|profile|vllm\.draft.*)"
    r"|(engine|engine\.vllm|trainer|reward\.judge)\.(num_threads|memory_share|kv_cache_mb)"
    r"|trainer\.(loss.*|clip_.*|dual_clip|topr_weights|entropy_coefficient|kl_.*|advantage|turn_.*|mismatch.*"
    r"|mask_truncated|.*_parallel.*|shard_.*|recompute_activations|max_tokens_per_microbatch|logits_chunk_tokens)"
)
"""A system's own: its policy and loss, and how it divides GPUs and CPUs. Systems are compared on all else, the task."""

MOST_KEYS: Final = 3
"""That a sentence or a name has."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a run's configuration to dotted keys; one that it lacks has its default, and null is absent."""
    settings = _defaults() | dict(_flat(config, ""))
    if settings["trainer.lr_schedule"] == "constant":  # another spans the steps; all means are over those shared
        del settings["run.num_steps"]
    if settings["evaluation.when"] == "alone":
        settings = {key: value for key, value in settings.items() if not _OF_EVALUATIONS_ALONE.fullmatch(key)}
    return {key: value for key, value in settings.items() if value is not None and not _NOT_COMPARED.fullmatch(key)}


def resolved(settings: Mapping[str, Any], started_in: Path) -> dict[str, Any]:
    """Give files and folders that are there by where they really lie; relative paths begin in `started_in`."""
    return {key: _resolved(key, value, started_in) for key, value in settings.items()}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which some resolved settings differ."""
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if len({json.dumps(own.get(key), default=str) for own in settings}) > 1]


def task_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What all systems that are compared have in common."""
    return {key: value for key, value in settings.items() if not _OF_SYSTEM.fullmatch(key)}


def values_said(keys: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> str:
    """Name the first keys, each with its values, and how many more there are."""
    values = {key: map(shown, [own.get(key) for own in settings]) for key in keys[:MOST_KEYS]}
    return ", ".join(f"{key} ({', '.join(dict.fromkeys(own))})" for key, own in values.items()) + more(keys)


def shown(value: Any) -> str:
    """A value for people, as it is written on the command line."""
    return shortened(in_hydra(value))


def more(keys: Sequence[str]) -> str:
    """How many keys are not shown, where there are too many."""
    return f" and {counted(len(keys) - MOST_KEYS, 'more key')}" if len(keys) > MOST_KEYS else ""


@cache
def _defaults() -> dict[str, Any]:
    """Of every key but those of sections that a run may be without; null of one that has none."""
    keys = [key for key in legal_keys(RunConfig).values() if not key.absent_section]
    return dict(_flat({key.name: None if key.default == REQUIRED else key.default for key in keys}, ""))


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _resolved(key: str, value: Any, started_in: Path) -> Any:
    if isinstance(value, list):
        return [_resolved(key, each, started_in) for each in value]
    known = legal_keys(RunConfig).get(key)
    is_path = known is not None and known.is_path and isinstance(value, str)
    path = started_in / value if is_path else ""
    return os.path.realpath(path) if os.path.exists(path) else value  # noqa: PTH110  never raises, whatever the name is
