"""The actors on each GPU of each node and the memory that they take, as a table.

Equal nodes share their rows. Memory is an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollpacker.config.gpu_map import ranges_text
from rollpacker.config.schema import RunConfig
from rollpacker.runtime.placing.actors import ClusterSize, PlacedActor
from rollpacker.runtime.placing.model_fit import EngineMemory, JudgeMemory, ModelFit, RankMemory, gigabytes
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.runtime.placing.topology import as_ranges, colocated_engines

_ROLES = ("engine", "trainer", "judge", "reward")
"""In the order in which they are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """GPUs of one node that follow each other and have the same kinds of users; no GPUs are the node's cores."""

    gpus: tuple[int, ...]
    roles: tuple[str, ...]
    users: tuple[PlacedActor, ...]


def placement_table(config: RunConfig, size: ClusterSize, fit: ModelFit | None) -> RenderableType:
    """Draw the table of a real run, with notes on its numbers below."""
    placed = placed_actors(config, size)
    takers = set(colocated_engines(config, placed))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("node", no_wrap=True)
    table.add_column("GPUs", no_wrap=True)
    table.add_column("actors", overflow="fold")
    if size.num_gpus:
        table.add_column("memory of each GPU (estimate)", overflow="fold")
    nodes = [(node, _parts(placed, node, size.num_gpus)) for node in range(size.num_nodes)]
    for _, same in groupby(nodes, key=lambda pair: [(part.gpus, part.roles) for part in pair[1]]):
        alike = list(same)
        numbers = [node for node, _ in alike]
        for row, parts in enumerate(zip(*(parts for _, parts in alike), strict=True)):
            users = [user for part in parts for user in part.users]
            cells = [ranges_text(numbers) if row == 0 else "", ranges_text(parts[0].gpus), _actors(users, takers)]
            if size.num_gpus:
                cells.append(_memory(parts[0], fit, _taken_by_judge(config, fit)) if parts[0].gpus else "")
            table.add_row(*cells)
        table.add_section()
    notes = _notes(config, size, fit, has_turns=bool(takers))
    return Group(table, *([""] if notes else []), *(Text(note, style="dim") for note in notes))


def _parts(placed: Sequence[PlacedActor], node: int, num_gpus: int) -> list[_Part]:
    here = [actor for actor in placed if actor.node == node]
    users = {gpu: tuple(actor for actor in here if gpu in actor.gpus) for gpu in range(num_gpus)}
    parts = []
    for roles, run in groupby(range(num_gpus), key=lambda gpu: tuple(dict.fromkeys(user.role for user in users[gpu]))):
        gpus = tuple(run)
        distinct = dict.fromkeys(user for gpu in gpus for user in users[gpu])
        parts.append(_Part(gpus=gpus, roles=roles, users=tuple(distinct)))
    without = tuple(actor for actor in here if not actor.gpus)
    if without or not parts:
        parts.append(_Part(gpus=(), roles=tuple(dict.fromkeys(actor.role for actor in without)), users=without))
    return parts


def _actors(users: Sequence[PlacedActor], takers: set[str]) -> str:
    in_order = sorted(users, key=lambda user: _ROLES.index(user.role))
    names = ", ".join(as_ranges([user.name for user in in_order])) or "none"
    return f"{names}, taking turns" if any(user.name in takers for user in users) else names


def _memory(part: _Part, fit: ModelFit | None, taken: float) -> str:
    if fit is None:
        return "unknown" if part.roles else ""
    texts = {
        "engine": _engine_memory(fit.engine, fit.gpu_bytes, taken if "judge" in part.roles else 0.0),
        "trainer": _rank_memory(fit.rank),
        "judge": _judge_memory(fit.judge),
    }
    return "\n".join(text for role, text in texts.items() if role in part.roles)


def _taken_by_judge(config: RunConfig, fit: ModelFit | None) -> float:
    """Bytes that an engine's KV cache is smaller by beside a judge."""
    if fit is None or fit.gpu_bytes is None or config.engine.vllm.kv_cache_mb is not None:
        return 0.0
    return fit.gpu_bytes * config.reward.judge.memory_share


def _judge_memory(judge: JudgeMemory | None) -> str:
    if judge is None:
        return "judge: unknown"
    return f"judge {gigabytes(judge.needed)}: weights {gigabytes(judge.weights)}, a batch {gigabytes(judge.batch)}"


def _engine_memory(engine: EngineMemory, gpu_bytes: float | None, taken: float) -> str:
    """`taken`: bytes of the GPU that a judge has."""
    if engine.kv_cache is None:
        needs = f"engine: weights {gigabytes(engine.weights)}, KV cache "
        if gpu_bytes is None or engine.largest_kv_cache is None:
            return f"{needs}what is left"
        is_more = engine.weights + engine.largest_kv_cache > gpu_bytes - taken
        too_much = ", more than there is: lower engine.max_num_seqs" if is_more else ""
        return f"{needs}up to {gigabytes(engine.largest_kv_cache)}{too_much}"
    kv_cache = engine.kv_cache - taken
    total = gigabytes(engine.weights + kv_cache)
    return f"engine {total}: weights {gigabytes(engine.weights)}, KV cache {gigabytes(kv_cache)}"


def _rank_memory(rank: RankMemory) -> str:
    return f"trainer {gigabytes(rank.total)}: {rank.in_words()}"


def _notes(config: RunConfig, size: ClusterSize, fit: ModelFit | None, *, has_turns: bool) -> list[str]:
    if not size.num_gpus:
        return []
    notes = []
    if fit is None:
        notes.append("The model's config.json does not give its sizes, so its memory is unknown.")
    elif fit.gpu_bytes is None:
        remedy = "" if config.cluster is None else "; set cluster.gpu_memory_gb"
        notes.append(f"The memory of a GPU is unknown here, so whether all fits is not checked{remedy}.")
    else:
        notes.append(f"A GPU has {gigabytes(fit.gpu_bytes)}.")
    if fit is not None:
        notes.append(f"The longest sequence takes {gigabytes(fit.engine.sequence)} of the KV cache.")
    if fit is not None and fit.gpu_bytes is not None and fit.rank.total > fit.gpu_bytes:
        notes.append(
            "The trainer's activations may not fit: lower trainer.max_tokens_per_microbatch, or set "
            "trainer.recompute_activations=true or trainer.logits_chunk_tokens=1024."
        )
    if has_turns:
        notes.append("Taking turns: engines sleep while the trainer works; otherwise its state is in host memory.")
    return notes
