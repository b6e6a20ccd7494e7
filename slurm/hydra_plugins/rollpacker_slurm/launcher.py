"""`hydra/launcher=slurm`: passes the points of a multirun to `rollpacker.launch`, which submits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class SlurmLauncher(Launcher):
    """The launcher that Hydra calls; its arguments are the keys `hydra.launcher.*`."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from rollpacker.launch.launcher import launch_from_hydra

        return launch_from_hydra(
            self._context, self._task, self._config, job_overrides, initial_job_idx, settings=self._settings
        )
