"""`rollpacker check`: prints what `train` would do with the same arguments, by the same validation; starts nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.text import Text

from rollpacker.cli.command_help import CONFIG_FILE, INPUTS, CommandHelp
from rollpacker.cli.run_words.placement import placement_table
from rollpacker.cli.run_words.summary import summary_of
from rollpacker.cli.screen import facts, heading, output
from rollpacker.core.errors import ConfigError
from rollpacker.protocols.backend import ModelledCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.cli.arguments import Arguments
    from rollpacker.config.compose import Complete
    from rollpacker.config.launching import LauncherSettings
    from rollpacker.config.schema import RunConfig
    from rollpacker.terminal import Terminal

FULL = "full"
"""The argument that asks for all keys."""


HELP = CommandHelp(
    purpose="Print what a run sets beside the defaults and what it will do. Loads no model, creates nothing.",
    usage="[-m | [full] [config=FILE]] [key=value | group=option] ...",
    arguments=(("full", "Print all keys, not only those that differ from their defaults."), CONFIG_FILE),
    examples=(
        f"rollpacker check {INPUTS} \\\n    reward=math system=rollpacker run.dir=runs/x",
        f"rollpacker check -m {INPUTS} \\\n    system=verl,rollpacker run.seed=0,1",
    ),
    lists_keys_of="train",
)


def run(arguments: Arguments) -> None:
    """Print the resolved run, or every point of a multirun."""
    overrides = [argument for argument in arguments.words if argument != FULL]
    if arguments.is_multirun and FULL in arguments.words:
        raise ConfigError(
            f"`{FULL}` with -m.",
            "All keys are printed of a single run.",
            f"Leave out {FULL}, or -m and all but one value.",
        )
    if arguments.is_multirun:
        _check_sweep(overrides)
    else:
        _check_run(overrides, is_full=FULL in arguments.words)


def _check_run(overrides: Sequence[str], *, is_full: bool) -> None:
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.config.compose import compose
    from rollpacker.data.hub import with_pinned_names
    from rollpacker.runtime.placing.automatic import Chooser
    from rollpacker.runtime.run.preflight import validate

    chooser = Chooser()
    config = with_pinned_names(compose(overrides, chooser.complete), can_download=False)
    resolved = validate(config, run_facts_of)
    described = summary_of(config, resolved, _notes_of_tokens(config))
    console = output()
    _print_configuration(console, config, overrides, is_full=is_full)
    if chooser.chosen:
        rows = ((f"  {choice.word}", choice.reason) for choice in chooser.chosen)
        console.print(heading("Chosen for the GPUs (placement=auto)"), facts(rows), "", sep="\n")
    console.print(heading("What it will do"), facts(described.items()), sep="\n")
    if not isinstance(resolved.cluster, ModelledCluster):
        console.print("", heading("Placement"), placement_table(config, resolved.cluster, resolved.fit), sep="\n")


def _print_configuration(console: Terminal, config: RunConfig, overrides: Sequence[str], *, is_full: bool) -> None:
    from rollpacker.config.chosen_options import chosen_options, values_of
    from rollpacker.config.keys import value_at
    from rollpacker.config.record import differences, to_yaml

    if is_full:
        console.print(heading("Configuration"), Text(to_yaml(config)), sep="\n")
        return
    options = chosen_options(overrides)
    given = values_of(options)
    changed = {name: value for name, value in differences(config).items() if value_at(given, name) != value}
    rows = [*options.items(), *((name, json.dumps(value, ensure_ascii=False)) for name, value in changed.items())]
    console.print(
        heading("Configuration: options chosen, and what else is not the default (all keys: `check full ...`)"),
        facts((f"  {name}", text) for name, text in rows),
        "",
        sep="\n",
    )


def _check_sweep(overrides: Sequence[str]) -> None:
    """Print what all points share, then each point with what is its own."""
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.cli.screen import tell_points
    from rollpacker.config.multirun import compose_sweep, point_names
    from rollpacker.data.hub import with_pinned_names
    from rollpacker.launch.validation import validate_sweep
    from rollpacker.runtime.placing.automatic import Chooser

    choosers: list[Chooser] = []

    def complete_point(launcher: LauncherSettings | None) -> Complete:
        choosers.append(Chooser.of_point(launcher))
        return choosers[-1].complete

    sweep = compose_sweep(overrides, tell_points, complete_point).with_configs(
        lambda config: with_pinned_names(config, can_download=False)
    )
    resolved_runs = validate_sweep(sweep, run_facts_of)
    are_jobs = sweep.launcher is not None and sweep.launcher.is_for_slurm
    notes: dict[str, list[str]] = {}  # of points with the same model and data: read once
    points = []
    for config, resolved, chooser in zip(sweep.configs, resolved_runs, choosers, strict=True):
        inputs = config.model_dump_json(include={"model", "data", "rollout"})
        if inputs not in notes:
            notes[inputs] = _notes_of_tokens(config)
        chosen = ", ".join(choice.word for choice in chooser.chosen)
        described = summary_of(config, resolved, notes[inputs], is_job=are_jobs)
        points.append(described | ({"chosen": chosen} if chosen else {}))
    shared = {label: text for label, text in points[0].items() if all(point.get(label) == text for point in points)}
    console = output()
    console.print(heading(f"All {len(points)} points"), facts(shared.items()), "", sep="\n")
    for number, (own, point) in enumerate(zip(point_names(sweep.points), points, strict=True)):
        own_facts = {label: text for label, text in point.items() if label not in shared}
        console.print(heading(f"Point {number}  {own}"), facts(own_facts.items()), "", sep="\n")


def _notes_of_tokens(config: RunConfig) -> list[str]:
    """Notes on the prompts of a real run, read with its tokenizer unless an image has the libraries."""
    if config.backend.name != "ray" or (config.cluster is not None and config.cluster.container.image is not None):
        return []
    from rollpacker.runtime.run.prompt_look import notes_of_tokens

    return notes_of_tokens(config)
