"""The real backend: engines, trainer and reward as Ray actors on a Ray that lives as long as the run.

On this machine alone, or over the nodes of a Slurm allocation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, cast

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import EngineId
from rollpacker.data.fitting import fit_held_out, fit_prompts
from rollpacker.data.tokenization import PromptTokenizer
from rollpacker.environments.factory import make_environments, make_tokenizer, try_observation
from rollpacker.environments.prompts import prompts_to_train
from rollpacker.protocols.backend import BackendContext, Fleet, Workers
from rollpacker.protocols.blocking import in_daemon_thread
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.rollout import TokenizedPrompt
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.placing.actors import planned_actors
from rollpacker.runtime.placing.fleets import costs_of, degrees_of
from rollpacker.runtime.placing.planning import cluster_size
from rollpacker.runtime.ray.cluster import RayCluster
from rollpacker.runtime.ray.elastic_members import open_members
from rollpacker.runtime.ray.environment_hosts import nodes_of_environments, start_environment_hosts
from rollpacker.runtime.ray.node import node_here
from rollpacker.runtime.ray.placement import Actors, start_actors
from rollpacker.runtime.ray.rendezvous import Rendezvous, rendezvous_of
from rollpacker.runtime.ray.shelved_sync import ShelvedSync
from rollpacker.runtime.ray.weight_sync import make_offer_sync
from rollpacker.runtime.rollout.scheduling import check_supply
from rollpacker.transfer.model_files import FileSync
from rollpacker.transfer.snapshots import SnapshotSync

if TYPE_CHECKING:
    from rollpacker.protocols.trainer import Trainer
    from rollpacker.protocols.weights import WeightSync


class RayBackend:
    """Implements `rollpacker.protocols.backend.Backend`."""

    is_modelled = False

    def __init__(self, config: RunConfig, allocation: Allocation | None) -> None:
        self._config = config
        self._allocation = allocation

    @asynccontextmanager
    async def open(self, context: BackendContext) -> AsyncIterator[Workers]:
        """Start Ray while the prompts are read, then the actors."""
        config, deadlines = self._config, self._config.backend.deadlines
        reading = asyncio.create_task(in_daemon_thread(lambda: _read_prompts(config)))
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(self._cluster(context))
            context.stage("reading prompts")
            tokenizer, prompts, held_out, notes = await reading
            for note in notes:
                context.note(note)
            context.stage(f"starting {_actors_in_words(config)}")
            size = cluster_size(config, self._allocation)
            actors = await start_actors(config, size, context)
            nodes = nodes_of_environments(config, self._allocation, size.num_nodes)
            hosts = await start_environment_hosts(config, nodes, context)
            environments = make_environments(config, tokenizer, hosts) if config.environment else None
            cluster.spare(actors.spare_nodes.union(set(nodes).difference(range(size.num_nodes))), context.note)
            takes_workers = config.elastic.is_on and config.trains
            opened = open_members(config, cluster, context) if takes_workers else nullcontext()
            members = await stack.enter_async_context(opened)
            costs = {each.degree: each for each in costs_of(config)}

            async def replace_engine(slot: EngineId, name: EngineId) -> Engine:
                if actors.nodes[slot] in cluster.lost_nodes:
                    raise EngineFailed(f"{name} cannot start: its node is lost.")
                return await actors.slots.replace(slot, name)

            yield Workers(
                environments=environments,
                prompts=prompts,
                held_out=held_out,
                text_reader=tokenizer,
                fleets={
                    degree: Fleet(
                        engines=(engines := actors.slots.engines(degree)),
                        gpus={name: actors.gpus[name] for name in engines},
                        costs=costs.get(degree),
                    )
                    for degree in degrees_of(config)
                },
                trainer=cast("Trainer", actors.trainer),
                weight_sync=_weight_sync(config, actors),
                reward=actors.reward,
                trainer_parts=actors.trainer_parts,
                colocated_engines=frozenset(actors.colocated_engines),
                judges=actors.judges,
                replace_engine=replace_engine,
                end_engine=actors.slots.kill,
                members=members,
                rebuild=actors.slots.rebuilding,
            )
            await actors.close(deadlines.stop_s)

    def _cluster(self, context: BackendContext) -> RayCluster:
        """Prepare Ray over the nodes of the allocation, or on this machine alone."""
        config, allocation = self._config, self._allocation
        meeting = rendezvous_of(config, allocation) if allocation else None
        log = meeting.log_of(allocation.node_name) if allocation and meeting else context.logs / "ray.log"
        head = node_here(config, allocation, log)
        return RayCluster(
            head,
            node_names=allocation.node_names if allocation else (head.offer.name,),
            rendezvous=meeting or Rendezvous(head.folder),
            start_deadline_s=config.backend.deadlines.start_s,
            stage=context.stage,
        )


def _actors_in_words(config: RunConfig) -> str:
    """The kinds of actors that a run has: `engines and trainer`, `engines, trainer, reward and judges`."""
    names = {"engine": "engines", "trainer": "trainer", "reward": "reward", "judge": "judges"}
    roles = {actor.role for actor in planned_actors(config)}
    *first, last = (name for role, name in names.items() if role in roles)
    return f"{', '.join(first)} and {last}" if first else last


def _weight_sync(config: RunConfig, actors: Actors) -> WeightSync | None:
    if not config.trains:
        # Each node reads the whole model, from a warm cache or a slow disk; half of the deadline is left for the rest.
        straggler_s = max(config.weight_sync.timeout_s, config.backend.deadlines.weight_sync_s / 2)
        return FileSync(config.model.directory, straggler_s)
    sync = make_offer_sync(config, actors.ranks, actors.trainer, has_gpu=actors.has_trainer_gpus)
    if not config.elastic.is_on:
        return sync
    snapshots = SnapshotSync(cast("Trainer", actors.trainer), config.weight_sync.timeout_s)
    return ShelvedSync(sync or snapshots, actors.trainer, config.elastic.bucket_mb)


def _read_prompts(
    config: RunConfig,
) -> tuple[PromptTokenizer, Mapping[str, TokenizedPrompt], Mapping[str, Mapping[str, TokenizedPrompt]], Sequence[str]]:
    """Read and tokenize the prompts, of which those that fit still fill every batch, and the held-out ones.

    Also gives what a person should know of them.
    """
    tokenizer = make_tokenizer(config)
    held_out, notes = fit_held_out(config.evaluation, tokenizer, config.data)
    if not config.trains:
        return tokenizer, {}, held_out, notes
    prompts, of_rates = prompts_to_train(config)
    fitting = fit_prompts(prompts, tokenizer, config.data)
    for each in list(fitting.prompts.values())[:1]:
        try_observation(config, tokenizer, each.prompt)
    check_supply(config, Counter(tokenized.prompt.domain for tokenized in fitting.prompts.values()))
    return tokenizer, fitting.prompts, held_out, [*of_rates, *fitting.notes(config.data), *notes]
