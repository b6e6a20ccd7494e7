"""Divides the GPUs of an asynchronous run: some for the engines, the others for the trainer.

Which split is best depends on what responses and their training cost, which a run knows only when it runs. So the GPUs
are halved, and the trainer gets as many more as it needs to fit; `rollpacker check` of a modelled run says what
theory suggests (`rollpacker.sim.split`). The trainer has the last GPUs, whole nodes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollpacker.config.gpu_map import REST, GpuMap, map_text, rest_of
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.placing.draft import Draft
from rollpacker.runtime.placing.gpus import Gpus

_POOLS = 2


def complete_pools(draft: Draft, gpus: Gpus) -> None:
    """Give one role what the other one's map leaves, where only one is named; raises `ConfigError` for a single GPU."""
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


def choose_pools(draft: Draft, gpus: Gpus, config: RunConfig, fits: Callable[[int], bool]) -> None:
    """Divide the GPUs where no map is named; `fits` tells whether a trainer of so many ranks does."""
    number, reason = _trainer_gpus(draft, gpus, config, fits)
    draft.choose(reason, {"placement.trainer": map_text(last_gpus(number, gpus.num_nodes, gpus.per_node))})
    draft.choose("all that the trainer does not have", {"placement.engine": REST})


def last_gpus(number: int, num_nodes: int, per_node: int) -> Sequence[Sequence[int]]:
    """By node: so many GPUs, the last ones."""
    first = num_nodes * per_node - number
    return [range(min(max(first - node * per_node, 0), per_node), per_node) for node in range(num_nodes)]


def _trainer_gpus(draft: Draft, gpus: Gpus, config: RunConfig, fits: Callable[[int], bool]) -> tuple[int, str]:
    """How many GPUs train, and why."""
    if config.trainer.name == "torch":
        return 1, "one process"
    if not draft.is_free("trainer.data_parallel"):
        return config.trainer.num_ranks, "a GPU for each rank that is named"
    if not draft.is_free("engine.num_engines"):
        return gpus.number - config.engine.num_engines * config.engine.tensor_parallel, "what the engines leave"
    half = gpus.number // 2
    number = next(filter(fits, range(half, gpus.number)), half)
    theory = "`rollpacker check backend=sim` says what theory suggests"
    if number == half:
        return number, f"half of the GPUs; {theory}"
    return number, f"the fewest from half of the GPUs on which the trainer fits; {theory}"
