"""Composes by Hydra, and keeps files and what choices among them gave: to read and merge is nearly all of the work.

Configurations that choose the same options differ in single values, as the points of a multirun do that differ in their
seed. Their files are composed once, and each sets its values in a copy, as Hydra would have done. What is kept is
pickled: to load it takes a quarter of the time of a copy.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

if TYPE_CHECKING:
    from typing import Any

    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.override_parser.types import Override
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import DictConfig

_MOST_KEPT = 256
"""Compositions, of some 50 kB each. The points of a multirun come in an order in which few alternate."""


class _KeptFiles(ConfigRepository):
    """Hydra's reader of files, which reads each of them once."""

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self._kept: dict[str, bytes] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> _KeptFiles:
        return copy.copy(self)  # for each composition Hydra makes one, which may get other sources; none is changed

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self._kept:
            self._kept[config_path] = pickle.dumps(super().load_config(config_path))
        loaded: ConfigResult | None = pickle.loads(self._kept[config_path])  # noqa: S301 our own
        return loaded


class ComposedChoices(ConfigLoaderImpl):
    """Hydra's loader of configurations, for files that do not change while it lives."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = _KeptFiles(config_search_path)
        self._kept: OrderedDict[tuple[str | None, ...], bytes] = OrderedDict()

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,  # Hydra's signature
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Compose what a run is given; of a multirun, and where only Hydra knows what a word is, by Hydra alone."""
        parsed = OverridesParser.create().parse_overrides(overrides)
        if run_mode is not RunMode.RUN or any(map(_is_hydras_business, parsed)):
            return super().load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        values = [override for override in parsed if self._is_value(override)]
        choices = [str(override.input_line) for override in parsed if not self._is_value(override)]
        config = self._chosen(config_name, choices)
        try:
            self._apply_overrides_to_config(values, config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException from error
        own = [override for override in parsed if not override.is_hydra_override()]
        config.hydra.overrides.task = [override.input_line for override in own]
        names = config.hydra.job.config.override_dirname
        config.hydra.job.override_dirname = get_overrides_dirname(
            overrides=own, kv_sep=names.kv_sep, item_sep=names.item_sep, exclude_keys=names.exclude_keys
        )
        config.hydra.runtime.cwd = os.getcwd()  # noqa: PTH109  # as Hydra has it
        return config

    def _is_value(self, override: Override) -> bool:
        """Whether it sets a key of the run; other words choose a file, or set a key of Hydra."""
        is_choice = self.repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
        return not is_choice and not override.is_hydra_override()

    def _chosen(self, config_name: str | None, choices: list[str]) -> DictConfig:
        key = (config_name, *choices)
        if key not in self._kept:
            self._kept[key] = pickle.dumps(super().load_configuration(config_name, choices, RunMode.RUN))
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        config: DictConfig = pickle.loads(self._kept[key])  # noqa: S301 our own
        return config


def _is_hydras_business(override: Override) -> bool:
    """Whether it takes something away, has several values, or says where more files are."""
    return override.is_delete() or override.is_sweep_override() or override.key_or_group.startswith("hydra.searchpath")
