"""Starts what runs environments on every node: `environment.nodes=all`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rollpacker.config.schema import RunConfig
from rollpacker.protocols.backend import BackendContext
from rollpacker.runtime.ray.node import pin_of
from rollpacker.runtime.ray.remote import EnvironmentProcess, PinnedPlace, make_environment_process


async def start_environment_hosts(
    config: RunConfig, num_nodes: int, context: BackendContext
) -> Sequence[EnvironmentProcess]:
    """Start one on each node; none where environments run beside the driver, or there are none."""
    if config.environment is None or config.environment.nodes == "first":
        return ()
    hosts: list[EnvironmentProcess] = []
    for node in range(num_nodes):
        name = f"environments-{node}"
        place = PinnedPlace(pin=pin_of(node), log=context.logs.absolute() / f"{name}.log")
        hosts.append(make_environment_process(name, place))
        context.add_stack_source(name, hosts[-1].stacks)
    starting = asyncio.gather(*(host.start(config) for host in hosts))
    await context.within(config.backend.deadlines.start_s, "environments to start", starting)
    return hosts
