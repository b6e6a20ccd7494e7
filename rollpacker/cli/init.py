"""`rollpacker init`: prints the `rollpacker train` command for a machine and a model, with the reason for each word."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from rollpacker.cli.command_help import KEYS_OF_TRAIN, CommandHelp
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollpacker.cli.arguments import Arguments
    from rollpacker.config.schema import RunConfig
    from rollpacker.runtime.placing.gpus import Gpus

DEFAULTS = {"model": "", "data": ""}

_KEYS_OF = {"model": {"model.path"}, "data": {"data.path", "experiment"}}
"""What of a run's keys and groups may stand in place of each."""

HELP = CommandHelp(
    purpose=(
        "Print the command that trains a model on this machine, with the reason for each word, and validate it as "
        "`rollpacker check` does. Creates nothing."
    ),
    usage="model=DIR data=FILE|RECIPE [key=value | group=option] ...",
    arguments=(
        ("model", "The model, as model.path takes it."),
        ("data", "Prompts, as data.path takes them, or a recipe of the group `experiment`: gsm8k, dapo-math."),
        KEYS_OF_TRAIN,
    ),
    examples=("rollpacker init model=DIR data=prompts.jsonl", "rollpacker init model=DIR data=gsm8k"),
)


def run(arguments: Arguments) -> None:
    """Print the command; raises what `rollpacker check` would for it, and prints nothing then."""
    from rich.text import Text

    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.cli.screen import facts, heading, output, show_notes
    from rollpacker.config.compose import compose
    from rollpacker.data.hub import with_pinned_names
    from rollpacker.runtime.placing.automatic import Chooser
    from rollpacker.runtime.run.preflight import validate

    words = _words(arguments.words)
    chooser = Chooser()
    config = with_pinned_names(compose([word for word, _ in words], chooser.complete), can_download=False)
    resolved = validate(config, run_facts_of)
    rows = [*words, *((choice.word, choice.reason) for choice in chooser.chosen)]
    command = " \\\n    ".join(["rollpacker train", *(shlex.quote(word) for word, _ in rows)])
    console = output()
    console.print(heading("Train by"), Text(command), "", heading("Why"), sep="\n", soft_wrap=True)
    reasons = [(f"  {word.partition('=')[0]}", reason) for word, reason in rows]  # a value may be wider than a screen
    console.print(facts([*reasons, *_without_choice(config, chooser.gpus)]))
    show_notes(resolved.notes)


def _words(given: Sequence[str]) -> list[tuple[str, str]]:
    """The words that are the user's, and those that every run needs, each with its reason."""
    from rollpacker.cli.settings import parse_settings
    from rollpacker.config.keys import nearest
    from rollpacker.config.roots import TRAIN, groups
    from rollpacker.config.words import key_of

    keys, settings = parse_settings("init", given, DEFAULTS, example="model=DIR data=prompts.jsonl", takes_keys=True)
    named = set(map(key_of, keys))
    missing = [name for name, value in settings.items() if not value and not named & _KEYS_OF[name]]
    if missing:
        raise ConfigError(
            f"`rollpacker init` has no {' and no '.join(missing)}.",
            "\n".join(f"{name}: {dict(HELP.arguments)[name]}" for name in missing),
            "For example: rollpacker init model=Qwen/Qwen2.5-0.5B-Instruct data=gsm8k",
        )
    recipes = groups(TRAIN)["experiment"].options
    is_recipe = settings["data"] in recipes
    close = nearest(settings["data"], recipes)
    if close and not is_recipe and not os.path.exists(settings["data"]):  # noqa: PTH110  of any length
        raise ConfigError(
            f"data={settings['data']} is neither a file nor a recipe.", HELP.arguments[1][1], f"Write data={close[0]}"
        )
    wanted = [
        ("model.path", settings["model"], "the policy"),
        ("experiment", settings["data"], "the recipe: data, reward, batch, lengths")
        if is_recipe
        else ("data.path", settings["data"], "the prompts"),
        ("run.dir", "" if "run.dir" in named else "runs/first", "everything that the run writes is below it"),
    ]
    if twice := [key for key, value, _ in wanted if value and key in named]:
        raise ConfigError(
            f"`{twice[0]}` is given twice.",
            "`model` stands for model.path, `data` for data.path, or for experiment where it names a recipe.",
            "Leave out one of the two.",
        )
    words = [(f"{key}={value}", reason) for key, value, reason in wanted if value]
    return [*words, *((word, "yours") for word in keys)]


def _without_choice(config: RunConfig, gpus: Gpus) -> Iterator[tuple[str, str]]:
    """Why nothing was chosen for GPUs, where nothing was."""
    if not gpus.number:
        yield "  no GPU is seen", f"engine={config.engine.name} and trainer={config.trainer.name} work on cores"
