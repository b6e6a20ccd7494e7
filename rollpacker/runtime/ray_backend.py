"""The real backend: engines, trainer and reward as Ray actors on a Ray that lives as long as the run."""

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
        surroundings.stage("reading prompts and starting Ray")
        reading = asyncio.create_task(in_daemon_thread(lambda: _tokenized_prompts(config)))
        size = cluster_size(config)
        async with RayCluster(
            num_cpus=size.num_cpus,
            num_gpus=size.num_gpus,
            object_store_mb=config.backend.object_store_mb,
            log=surroundings.logs / "ray.log",
            start_deadline_s=deadlines.start_s,
        ):
            prompts, num_dropped = await reading
            if num_dropped:
                limit = config.data.max_prompt_tokens
                surroundings.note(f"Dropped {num_dropped} prompts of more than data.max_prompt_tokens={limit} tokens.")
            surroundings.stage("starting engines, trainer and reward")
            actors = await start_actors(config, surroundings)
            yield Workers(
                prompts=prompts,
                fleets={1: Fleet(engines=actors.engines)},
                trainer=actors.trainer,
                reward=actors.reward,
            )
            await actors.close(deadlines.stop_s)


def _tokenized_prompts(config: RunConfig) -> tuple[dict[str, TokenizedPrompt], int]:
    """Read and tokenize the prompts; also gives how many were too long."""
    tokenizer = PromptTokenizer(config.model.directory)
    fitting, num_dropped = select_fitting(load_prompts(config.data.file), tokenizer, config.data.max_prompt_tokens)
    prompts = {prompt.key: TokenizedPrompt(prompt=prompt, token_ids=token_ids) for prompt, token_ids in fitting}
    return prompts, num_dropped
