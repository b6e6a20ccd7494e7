"""What the options of groups set that somebody chose, so that their names can stand for their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from hydra.types import RunMode
from omegaconf import OmegaConf

from rollpacker.config.compose import hydra_session, parse_overrides, readable, translated_errors
from rollpacker.config.given_file import take_file
from rollpacker.config.roots import TRAIN, conf_dir, groups
from rollpacker.config.sections.modelled import HardwareSection

_RECIPE = "experiment"
"""The group whose options choose those of others: its values are worth telling."""

_SEARCH_PATH = "hydra.searchpath"
"""The folders with further options, which stand beside the options that are chosen."""

FITTED_FROM = "# fitted"
"""In an option of the hardware, begins what `rollpacker calibrate` writes; above it stands what data sheets say."""

_NOT_COMPARED = {"name", "fitted_to", "num_nodes", "profile"}
"""Keys of the hardware that say nothing of a GPU or a node."""


def chosen_options(overrides: Sequence[str]) -> dict[str, str]:
    """The option of each group that legal words choose, but for recipes, and where they say that more options are."""
    with hydra_session() as session:
        parsed = parse_overrides(session, TRAIN, readable(TRAIN, take_file(TRAIN, overrides)[1]))
    chosen = {}
    for each in parsed:
        if each.key_or_group == _SEARCH_PATH:
            chosen[_SEARCH_PATH] = str(each.input_line).partition("=")[2]
        elif each.key_or_group in groups(TRAIN) and each.key_or_group != _RECIPE and isinstance(each.value(), str):
            chosen[each.key_or_group] = str(each.value())
    return chosen


def values_of(options: Mapping[str, str]) -> dict[str, Any]:
    """The tree that these options make of the defaults, with interpolations as they stand.

    Raises:
        ConfigError: There is no such option.
    """
    words = [f"{group}={option}" for group, option in options.items()]
    with hydra_session() as session, translated_errors(TRAIN):
        config = session.config_loader.load_configuration(TRAIN.name, words, run_mode=RunMode.RUN)
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    return {str(name): value for name, value in tree.items()}


def changed_hardware(hardware: HardwareSection) -> tuple[str, list[str]]:
    """The packaged option with whose GPUs the overheads of modelled hardware were fitted, and the keys that differ.

    Both are empty where the overheads are fitted to nothing, or to something else than an option's. Fitted values may
    differ where `fitted_to` says more than the option's, as in a file of `rollpacker calibrate`.
    """
    for file in sorted((conf_dir() / "hardware").glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        option = HardwareSection.model_validate(yaml.safe_load(text))
        if option.fitted_to and (hardware.fitted_to or "").startswith(option.fitted_to):
            left_out = set(_NOT_COMPARED)
            if hardware.fitted_to != option.fitted_to:
                left_out |= option.model_fields_set - yaml.safe_load(text.partition(FITTED_FROM)[0]).keys()
            compared = (key for key in HardwareSection.model_fields if key not in left_out)
            return file.stem, [key for key in compared if getattr(hardware, key) != getattr(option, key)]
    return "", []
