"""How a multirun is submitted to Slurm: the keys `hydra.launcher.*` of `hydra/launcher=slurm`.

What a job asks for may differ between the points of a sweep, so it is in their section `cluster`. A key of other
launchers is refused with its name in `cluster`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field, ValidationError

from rollpacker.config.keys import legal_keys, nearest
from rollpacker.config.mistakes import combined
from rollpacker.config.names_in_slurm import key_for_job
from rollpacker.config.roots import conf_dir
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import Count, Flag, PositiveSeconds, Section
from rollpacker.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

OPTION = "slurm"
"""Of Hydra's group `hydra/launcher`: the file that has the defaults."""
LAUNCHER = "hydra_plugins.rollpacker_slurm.launcher.SlurmLauncher"
"""The class that this file names."""

_PREFIX = "hydra.launcher."


class LauncherSettings(Section):
    """The keys `hydra.launcher.*`. The defaults are in `conf/hydra/launcher/slurm.yaml`."""

    executor: Literal["slurm", "local", "debug"]
    """`slurm` submits jobs; `local` starts processes on this machine; `debug` runs the points in this process."""
    detach: Flag
    """End as soon as all jobs are submitted; otherwise wait until all have ended, and show their status."""
    dry_run: Flag
    """Print what would be submitted, and submit nothing."""
    array_parallelism: Count | None = Field(ge=1)
    """Jobs of one array, or local processes, at the same time; null: as many as Slurm allows, or as there are."""
    container: Path | None
    """The image in which every rank of every job runs; null: each point's `cluster.container.image`."""
    poll_interval_s: PositiveSeconds
    """How often Slurm is asked about the jobs while waiting."""

    @property
    def is_for_slurm(self) -> bool:
        """Whether the points become jobs."""
        return self.executor == "slurm"


def launcher_defaults() -> dict[str, object]:
    """The defaults of the keys, by their names without the prefix."""
    file = conf_dir() / "hydra" / "launcher" / f"{OPTION}.yaml"
    values: dict[str, object] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {name: values[name] for name in LauncherSettings.model_fields}


def is_chosen(overrides: Iterable[Override]) -> bool:
    """Whether these overrides choose our launcher."""
    return any(
        override.key_or_group == "hydra/launcher" and not override.is_sweep_override() and override.value() == OPTION
        for override in overrides
    )


def validate_launcher(values: dict[str, Any]) -> LauncherSettings:
    """Validate what Hydra composed; raises all mistakes together."""
    given = {name: value for name, value in values.items() if name != "_target_"}
    try:
        settings = LauncherSettings.model_validate(given)
    except ValidationError as error:
        keys = legal_keys(LauncherSettings)
        mistakes = [
            ConfigError(
                f"{_PREFIX}{details['loc'][0]}={details['input']} is not legal.",
                f"It is {keys[str(details['loc'][0])].legal}.",
            )
            for details in error.errors(include_url=False)
        ]
        raise combined(mistakes) from error
    if settings.container is not None and not settings.is_for_slurm:
        raise ConfigError(
            f"{_PREFIX}container={settings.container} with {_PREFIX}executor={settings.executor}.",
            "Only jobs run in an image; this executor runs the points in the environment of this command.",
            f"Leave {_PREFIX}container out, or choose {_PREFIX}executor=slurm.",
        )
    return settings


def launcher_mistakes(overrides: Iterable[Override]) -> Iterator[UserError]:
    """Mistakes in overrides of `hydra.launcher.*` when the launcher is ours."""
    for override in overrides:
        name = override.key_or_group
        if not name.startswith(_PREFIX):
            continue
        leaf, _, _ = name.removeprefix(_PREFIX).partition(".")
        if leaf not in LauncherSettings.model_fields:
            yield _unknown_key(leaf)
        elif override.is_sweep_override():
            yield ConfigError(
                f"`{override.input_line}` gives several values to one launcher.",
                "All points of a multirun are launched together.",
                "Launch once per value.",
            )


def single_run_mistake() -> ConfigError:
    """The mistake of a single run that names our launcher: Hydra would start it here, silently."""
    return ConfigError(
        f"hydra/launcher={OPTION} without -m would start the run on this machine.",
        "Hydra uses its launcher only in a multirun, which may have a single point.",
        "Add -m",
    )


def _unknown_key(leaf: str) -> ConfigError:
    fields = LauncherSettings.model_fields
    problem = f"`{_PREFIX}{leaf}` is not a key of hydra/launcher={OPTION}."
    cluster_keys = {
        name.removeprefix("cluster."): name for name in legal_keys(RunConfig) if name.startswith("cluster.")
    }
    name = key_for_job(leaf) or cluster_keys.get(leaf)
    if name is None and not nearest(leaf, fields) and (close := nearest(leaf, cluster_keys)):
        name = cluster_keys[close[0]]
    if name is not None:
        return ConfigError(
            problem,
            "What a job asks for may differ between the points, so it is in their section `cluster`.",
            f"Write {name}=...",
        )
    close = nearest(leaf, fields)
    return ConfigError(
        problem,
        f"Its keys are {', '.join(fields)}.",
        f"Write {_PREFIX}{close[0]}=..." if close else "Leave it out.",
    )
