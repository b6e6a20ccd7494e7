"""Models many runs side by side.

A run that was stopped is begun again by the next call. One that failed does not keep the others from being modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rollpacker.analysis.processes import open_processes
from rollpacker.core.errors import RollpackerError

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


def model_runs(configs: Iterable[RunConfig], num_processes: int) -> Iterator[tuple[RunConfig, str]]:
    """Model runs, and yield each as it ends, with what it failed of; empty when it did not.

    Raises:
        WorldError: A process died.
    """
    with open_processes(num_processes) as processes:
        yield from processes.results(_model, configs)


def _model(config: RunConfig) -> str:
    from rollpacker import pipeline
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.runtime.run.preflight import validate

    try:
        validate(config, run_facts_of)
        pipeline.run(config)
    except RollpackerError as error:
        return str(error)
    return ""
