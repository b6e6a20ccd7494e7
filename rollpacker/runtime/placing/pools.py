"""Divides the GPUs of an asynchronous run: some for the engines, the others for the trainer.

Which split is best depends on what responses and their training cost, which a run knows only when it runs. So the GPUs
are halved, and the trainer gets as many more as it, and the engines on the rest, need to fit; `rollpacker check` of a
modelled run says what theory suggests (`rollpacker.sim.split`). The trainer has the last GPUs, whole nodes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rollpacker.config.gpu_map import REST, GpuMap, map_text, rest_of
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import ConfigError
from rollpacker.data.shapes import Transformer
from rollpacker.runtime.placing.draft import Draft
from rollpacker.runtime.placing.engine_choice import engines_fit
from rollpacker.runtime.placing.gpus import Gpus
from rollpacker.runtime.placing.trainer_choice import smallest_trainer_fits

_ROLES: Final = ("engine", "trainer")
_POOLS = 2
_HALF = "half of the GPUs; `rollpacker check backend=sim` says what theory suggests"


def complete_pools(draft: Draft, gpus: Gpus) -> None:
    """Give one role what the other one's map leaves, or each role half; raises `ConfigError` for a single GPU."""
    if gpus.number < _POOLS:
        raise ConfigError(
            f"system.max_staleness={draft.value('system.max_staleness')} on {gpus}.",
            "Engines generate while the trainer learns, so each has GPUs of its own.",
            "Take two GPUs or more, or set system.max_staleness=0.",
        )
    if draft.value("placement.trainer") is not None:
        draft.choose("all that the trainer does not have", {"placement.engine": REST})
    elif draft.value("placement.engine") is not None:
        others = rest_of(GpuMap.parse(str(draft.value("placement.engine"))))
        by_node = [others.gpus_of(node, gpus.per_node) for node in range(gpus.num_nodes)]
        draft.choose("all that the engines do not have", {"placement.trainer": map_text(by_node)})
    else:
        _divide(draft, gpus, gpus.number // 2, _HALF)


def choose_pools(draft: Draft, gpus: Gpus, config: RunConfig, model: Transformer | None) -> None:
    """Divide the GPUs where no map is named; raises `ConfigError` where what is named leaves one role none."""
    for role in _ROLES:
        if not draft.is_free(f"placement.{role}"):
            _check_share(draft, gpus, f"placement.{role}", len(gpus.places(draft.gpu_map(role))))
            return
    _divide(draft, gpus, *_trainer_gpus(draft, gpus, config, model))


def last_gpus(number: int, num_nodes: int, per_node: int) -> Sequence[Sequence[int]]:
    """By node: so many GPUs, the last ones."""
    first = num_nodes * per_node - number
    return [range(min(max(first - node * per_node, 0), per_node), per_node) for node in range(num_nodes)]


def _divide(draft: Draft, gpus: Gpus, number: int, reason: str) -> None:
    draft.choose(reason, {"placement.trainer": map_text(last_gpus(number, gpus.num_nodes, gpus.per_node))})
    draft.choose("all that the trainer does not have", {"placement.engine": REST})


def _trainer_gpus(draft: Draft, gpus: Gpus, config: RunConfig, model: Transformer | None) -> tuple[int, str]:
    """How many GPUs train, and why."""
    if config.trainer.name == "torch":
        return 1, "one process"
    if not draft.is_free("trainer.data_parallel"):
        _check_share(draft, gpus, "trainer.data_parallel", config.trainer.num_ranks)
        return config.trainer.num_ranks, "a GPU for each rank that is named"
    if not draft.is_free("engine.num_engines"):
        of_engines = config.engine.num_engines * config.engine.tensor_parallel
        _check_share(draft, gpus, "engine.num_engines", of_engines)
        return gpus.number - of_engines, "what the engines leave"
    half = gpus.number // 2
    holding = [number for number in range(half, gpus.number) if smallest_trainer_fits(draft, gpus, model, number)]
    both = [number for number in holding if engines_fit(draft, gpus, model, _counts_of_rest(gpus, number))]
    number = next(iter(both or holding), gpus.number - 1)
    if number == half:
        return number, _HALF
    return number, "the fewest from half of the GPUs on which the trainer fits, and the engines on the rest"


def _check_share(draft: Draft, gpus: Gpus, key: str, number: int) -> None:
    """Refuse a named value by which one role has all GPUs, or none."""
    most = gpus.number - 1
    if not 1 <= number <= most:
        raise ConfigError(
            f"{key}={draft.value(key)} takes {number} of {gpus}.",
            f"With system.max_staleness={draft.value('system.max_staleness')} engines and trainer have GPUs of their "
            f"own: each of them 1{f' to {most}' if most > 1 else ''}.",
            f"Change {key}, take more GPUs, or set system.max_staleness=0.",
        )


def _counts_of_rest(gpus: Gpus, number: int) -> list[int]:
    """GPUs of each node that the trainer leaves, of nodes with any."""
    by_node = last_gpus(number, gpus.num_nodes, gpus.per_node)
    return [gpus.per_node - len(ranks) for ranks in by_node if len(ranks) < gpus.per_node]
