"""Starts processes of environments, each as isolated as the configuration says."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollpacker.config.python_names import START_LIMIT_S
from rollpacker.environments.isolation import bubblewrap_command, variables_of_environment
from rollpacker.environments.sources import files_of, source_of
from rollpacker.processes.package_modules import words_that_run
from rollpacker.processes.server_process import ServerProcess

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

PROCESS = "rollpacker.environments.process"

_KEPT = "rollpacker.environments.kept_process"

_FIRST_PID = "1"
"""Of the process that bubblewrap starts in a namespace, the parent of an environment's."""

_ROLE = "environment process"


class EnvironmentStarter:
    """Starts processes of one class of environments.

    Args:
        source: Of the class, `FILE.py:NAME` or `PACKAGE.MODULE:NAME`.
        arguments: Given to it by name.
        python: The interpreter of its processes; None is this one.
        pass_variables: Names of variables that they get beside those that all get.
        is_isolated: By bubblewrap.
        has_network: Although it is isolated.
        readable: Files and folders that it needs, although it is isolated.
        start_limit_s: For a process to be ready.

    Raises:
        UserError: No such process can start on this machine.
    """

    def __init__(
        self,
        source: str,
        arguments: Mapping[str, Any],
        *,
        python: str | None = None,
        pass_variables: Sequence[str] = (),
        is_isolated: bool = False,
        has_network: bool = False,
        readable: Sequence[Path] = (),
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._start_limit_s = start_limit_s
        self._words = [source, json.dumps(dict(arguments))]
        self._python = python
        self._variables = variables_of_environment(pass_variables, python)
        self._isolation = (
            bubblewrap_command(self._variables, python, readable, has_network=has_network) if is_isolated else []
        )

    def start(self) -> ServerProcess:
        """Start one, and do not wait for it."""
        if self._isolation:
            module = _KEPT
            words = [*self._isolation, *words_that_run(PROCESS, self._python), *self._words, _FIRST_PID]
            python: str | None = sys.executable
        else:
            module, words, python = PROCESS, self._words, self._python
        return ServerProcess(module, words, _ROLE, python, self._variables, start_limit_s=self._start_limit_s)


def starter_of(config: RunConfig) -> EnvironmentStarter:
    """Make what starts a configuration's environments.

    Raises:
        UserError: They cannot start on this machine.
    """
    section = config.environment
    assert section is not None
    source = source_of(config)
    return EnvironmentStarter(
        source.name,
        source.arguments,
        python=section.interpreter,
        pass_variables=section.pass_variables,
        is_isolated=section.isolation == "bubblewrap",
        has_network=section.network,
        readable=tuple(files_of(config)),
        start_limit_s=section.start_limit_s,
    )
