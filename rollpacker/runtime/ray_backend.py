"""The real backend: engines, trainer and reward as Ray actors on a Ray that lives as long as the run.

On this machine alone, or over the nodes of a Slurm allocation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollpacker.config.schema import RunConfig
from rollpacker.data.prompts import load_prompts
from rollpacker.data.tokenization import PromptTokenizer, select_fitting
from rollpacker.protocols.backend import Fleet, Surroundings, Workers
from rollpacker.protocols.rollout import TokenizedPrompt
from rollpacker.runtime.allocation import Allocation
from rollpacker.runtime.blocking import in_daemon_thread
from rollpacker.runtime.placement import start_actors
from rollpacker.runtime.planning import cluster_size
from rollpacker.runtime.ray_cluster import RayCluster
from rollpacker.runtime.ray_node import node_here
from rollpacker.runtime.rendezvous import Rendezvous, rendezvous_of


class RayBackend:
    """Implements `rollpacker.protocols.backend.Backend`."""

    is_modelled = False

    def __init__(self, config: RunConfig, allocation: Allocation | None) -> None:
        self._config = config
        self._allocation = allocation

    @asynccontextmanager
    async def open(self, surroundings: Surroundings) -> AsyncIterator[Workers]:
        """Start Ray while the prompts are read, then the actors."""
        config, deadlines = self._config, self._config.backend.deadlines
        reading = asyncio.create_task(in_daemon_thread(lambda: _tokenized_prompts(config)))
        async with self._cluster(surroundings):
            surroundings.stage("reading prompts")
            prompts, num_dropped = await reading
            if num_dropped:
                limit = config.data.max_prompt_tokens
                surroundings.note(f"Dropped {num_dropped} prompts of more than data.max_prompt_tokens={limit} tokens.")
            surroundings.stage("starting engines, trainer and reward")
            actors = await start_actors(config, cluster_size(config, self._allocation), surroundings)
            yield Workers(
                prompts=prompts,
                fleets={1: Fleet(engines=actors.engines)},
                trainer=actors.trainer,
                reward=actors.reward,
            )
            await actors.close(deadlines.stop_s)

    def _cluster(self, surroundings: Surroundings) -> RayCluster:
        """Prepare Ray over the nodes of the allocation, or on this machine alone."""
        config, allocation = self._config, self._allocation
        meeting = rendezvous_of(config.run.dir, allocation) if allocation else None
        log = meeting.log_of(allocation.node_name) if allocation and meeting else surroundings.logs / "ray.log"
        head = node_here(config, allocation, log)
        return RayCluster(
            head,
            node_names=allocation.node_names if allocation else (head.offer.name,),
            rendezvous=meeting or Rendezvous(head.folder),
            start_deadline_s=config.backend.deadlines.start_s,
            stage=surroundings.stage,
        )


def _tokenized_prompts(config: RunConfig) -> tuple[dict[str, TokenizedPrompt], int]:
    """Read and tokenize the prompts; also gives how many were too long."""
    tokenizer = PromptTokenizer(config.model.directory)
    fitting, num_dropped = select_fitting(load_prompts(config.data.file), tokenizer, config.data.max_prompt_tokens)
    prompts = {prompt.key: TokenizedPrompt(prompt=prompt, token_ids=token_ids) for prompt, token_ids in fitting}
    return prompts, num_dropped
