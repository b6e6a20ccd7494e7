"""What the options of groups set that somebody chose, so that their names can stand for their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.types import RunMode
from omegaconf import OmegaConf

from rollpacker.config.compose import hydra_session, parse_overrides, readable
from rollpacker.config.given_file import take_file
from rollpacker.config.roots import TRAIN, groups

_RECIPE = "experiment"
"""The group whose options choose those of others: its values are worth telling."""


def chosen_options(overrides: Sequence[str]) -> dict[str, str]:
    """The option of each group that legal words choose, but for recipes."""
    with hydra_session() as session:
        parsed = parse_overrides(session, TRAIN, readable(TRAIN, take_file(TRAIN, overrides)[1]))
    return {
        each.key_or_group: str(each.value())
        for each in parsed
        if each.key_or_group in groups(TRAIN) and each.key_or_group != _RECIPE and isinstance(each.value(), str)
    }


def values_of(options: Mapping[str, str]) -> dict[str, Any]:
    """The tree that these options make of the defaults, with interpolations as they stand."""
    with hydra_session() as session:
        words = [f"{group}={option}" for group, option in options.items()]
        config = session.config_loader.load_configuration(TRAIN.name, words, run_mode=RunMode.RUN)
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    return {str(name): value for name, value in tree.items()}
