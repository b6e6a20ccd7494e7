"""Starts what runs environments on nodes: on those of their own, or on all with `environment.nodes=all`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rollpacker.config.schema import RunConfig
from rollpacker.protocols.backend import BackendContext
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.ray.node import pin_of
from rollpacker.runtime.ray.remote import EnvironmentProcess, PinnedPlace, make_environment_process


async def start_environment_hosts(
    config: RunConfig, nodes: Sequence[int], context: BackendContext
) -> Sequence[EnvironmentProcess]:
    """Start one on each of these nodes, by index; with none, environments run beside the driver."""
    hosts: list[EnvironmentProcess] = []
    for node in nodes:
        name = f"environments-{node}"
        place = PinnedPlace(pin=pin_of(node), log=context.logs.absolute() / f"{name}.log")
        hosts.append(make_environment_process(name, place))
        context.add_stack_source(name, hosts[-1].stacks)
    starting = asyncio.gather(*(host.start(config) for host in hosts))
    await context.within(config.backend.deadlines.start_s, "environments to start", starting)
    return hosts


def nodes_of_environments(config: RunConfig, allocation: Allocation | None, num_nodes: int) -> Sequence[int]:
    """Indices of the nodes that need one, of a run whose engines and trainer are on the first so many."""
    if config.environment is None:
        return ()
    if allocation is not None and allocation.num_environment_nodes:
        return range(num_nodes, len(allocation.node_names))
    return range(num_nodes) if config.environment.nodes == "all" else ()
