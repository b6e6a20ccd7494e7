"""Help texts of commands and of single topics, from the schema's docstrings and the files of `conf/`.

A topic is a section, a key, a group, an option (`system=rollpacker`), or `/word`, which searches all of these and the
commands for a word. Prose wraps at the terminal's width; command lines and JSON do not.
"""

from __future__ import annotations

import importlib
import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group as Lines
from rich.padding import Padding
from rich.text import Text

from rollpacker.cli.command_help import INPUTS
from rollpacker.cli.screen import facts, heading, output
from rollpacker.config.keys import REQUIRED, Key, is_near, legal_keys, nearest, section_docs, section_names
from rollpacker.config.launching import LauncherSettings, launcher_defaults
from rollpacker.config.names_elsewhere import key_for
from rollpacker.config.roots import (
    DEFAULT_RUN_DIR,
    SCORE,
    TRAIN,
    Group,
    Root,
    default_choices,
    groups,
    option_notes,
    option_summary,
)
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic import BaseModel
    from rich.console import RenderableType

    from rollpacker.cli.command_help import CommandHelp
    from rollpacker.cli.main import Command

MOST_NOTE_LINES = 50
"""Of an option's notes in the text of a command; longer ones are a topic of their own."""

_LAUNCHER = "hydra.launcher"
_LAUNCHER_DOC = "A multirun's points as Slurm jobs (hydra/launcher=slurm); `cluster` says what each asks for"
_OPTIONS_OF_ALL = [("-h, --help", "This text; with an argument, SECTION, KEY, GROUP or /WORD, the text on that.")]
_OPTIONS_OF_SWEEPS = [
    (
        "-m, --multirun",
        "Run once per combination of comma-separated values; `rollpacker analysis compare` compares them.",
    ),
    *_OPTIONS_OF_ALL,
]


def show_help(commands: Sequence[Command], topics: Sequence[str]) -> None:
    """Print what `rollpacker help TOPICS` asks for: the overview, a command's text, or topics of a run."""
    if not topics:
        _show_overview(commands)
        return
    if list(topics) == ["groups"]:
        options = facts((name, " | ".join(group.options)) for name, group in groups(TRAIN).items())
        _print_section("Groups of train and check", [options])
        return
    if list(topics) == ["python"]:
        _print_section("", _paragraphs(importlib.import_module("rollpacker.api").__doc__ or ""))
        return
    named = {command.name: command for command in commands}
    if topics[0] in named:
        show_command(named[topics[0]], topics[1:], commands)
        if topics[0] in {*section_names(TRAIN.schema), *groups(TRAIN)}:  # `data` is a command and a section
            _show_topics(TRAIN, topics[:1], commands)
    else:
        _show_topics(TRAIN, topics, commands)


def show_command(command: Command, topics: Sequence[str], commands: Iterable[Command]) -> None:
    """Print what a command takes; or only the text on some topics, where it takes keys.

    Args:
        command: Whose text is printed.
        topics: Its words, without those that set a key to a value; some may name arguments that it takes.
        commands: All of them, for `/word`.
    """
    text = _help_of(command)
    root = {"train": TRAIN, "score": SCORE, None: None}[text.lists_keys_of]
    if own := [argument for argument in text.arguments if argument[0] in topics]:
        _print_section("Arguments", [facts(own)])
        topics = [topic for topic in topics if topic not in dict(own)]
        if not topics:
            return
    if root:
        asked = [topic for topic in topics if "=" not in topic or _is_option(root, topic)]
    else:  # other words may be folders
        asked = [topic for topic in topics if text.takes_keys and topic in _names(TRAIN)]
    if asked:
        _show_topics(root or TRAIN, asked, commands)
        return
    _print_section("", [Text(text.purpose)])
    _print_section("Usage", [Text(f"rollpacker {command.name} {text.usage}")])
    if text.arguments:
        _print_section("Arguments", [facts(text.arguments)])
    if root:
        options = _OPTIONS_OF_SWEEPS if command.can_sweep else _OPTIONS_OF_ALL
        _print_section("Options", [facts(options)])
    _print_section("Examples" if len(text.examples) > 1 else "Example", text.examples)
    if root:
        entries = [entry for group in groups(root).values() for entry in _option_entries(group)]
        _print_section("Groups (each option sets several keys)", entries)
        for group in groups(root).values():
            _print_notes(group, most_lines=MOST_NOTE_LINES)
        for section, keys in _sections(root).items():
            _print_keys(root, section, keys)


def _show_overview(commands: Sequence[Command]) -> None:
    _print_section("", [Text("RL post-training that packs long-tail rollouts into rounds of their own.")])
    _print_section("Usage", ["rollpacker COMMAND [key=value | group=option] ..."])
    width = max(len(command.name) for command in commands)
    for section, of_section in itertools.groupby(commands, key=lambda command: command.section):
        _print_section(section, [facts((f"{one.name:{width}}", one.summary) for one in of_section)])
    _print_section("Example", [f"rollpacker train {INPUTS} \\\n    reward=math system=rollpacker run.dir=runs/x"])
    more = [
        ("rollpacker help COMMAND", "what a command takes"),
        ("rollpacker help groups", "all options of system, engine and the other groups"),
        ("rollpacker help SECTION", "the keys of a section, such as engine or engine.vllm"),
        ("rollpacker help KEY", "one key, such as rollout.num_prompts"),
        ("rollpacker help /WORD", "everything that mentions a word"),
        ("rollpacker help python", "how to train from a notebook or a script"),
    ]
    _print_section("More", [facts(more)])


def _show_topics(root: Root[BaseModel], topics: Sequence[str], commands: Iterable[Command]) -> None:
    for topic in topics:
        if topic.startswith("/"):
            _show_mentions(root, topic[1:], commands)
        elif _is_option(root, topic):
            group, _, option = topic.partition("=")
            entry = _option_entry(groups(root)[group], option)
            _print_section("", [entry, *_paragraphs(f"\n{option_notes(group, option)}")])
        else:
            _show_named(root, topic.replace("/", ".").rstrip("."), commands)


def _show_named(root: Root[BaseModel], name: str, commands: Iterable[Command]) -> None:
    """Print a group's options and a section's keys (many names are both), or one key."""
    group = groups(root).get(name)
    keys = [
        key for keys in _sections(root).values() for key in keys if key.name == name or key.name.startswith(f"{name}.")
    ]
    if group is None and not keys:
        raise _unknown_topic(root, name, commands)
    if group is not None:
        _print_section(f"Options of {name}", list(_option_entries(group)))
        _print_notes(group)
    if keys:
        _print_keys(root, name, keys)


def _show_mentions(root: Root[BaseModel], word: str, commands: Iterable[Command]) -> None:
    wanted = word.lower()
    texts = [(command, _help_of(command)) for command in commands]
    found_commands = [
        (command.name, command.summary)
        for command, text in texts
        if wanted in " ".join([command.name, command.summary, text.purpose, *map(" ".join, text.arguments)]).lower()
    ]
    found_options = [
        _option_entry(group, option)
        for group in groups(root).values()
        for option in group.options
        if wanted in f"{group.name}={option} {option_summary(group.name, option)}".lower()
    ]
    found_keys = [key for keys in _sections(root).values() for key in keys if wanted in f"{key.name} {key.doc}".lower()]
    if found_commands:
        _print_section(f"Commands that mention {word}", [facts(found_commands)])
    if found_options:
        _print_section(f"Options that mention {word}", found_options)
    if found_keys:
        _print_section(f"Keys that mention {word}", list(_key_entries(root, found_keys)))
    if not (found_commands or found_options or found_keys):
        ours = key_for(word)
        raise ConfigError(
            f"Nothing in the help mentions {word}.",
            f"Other tools' `{word}` is `{ours}` here." if ours else "",
            f"`rollpacker help {ours}` describes it." if ours else "Try a shorter word, or `rollpacker help`.",
        )


def _unknown_topic(root: Root[BaseModel], name: str, commands: Iterable[Command]) -> ConfigError:
    group = groups(root).get(name.partition("=")[0])
    if group is not None:
        return ConfigError(
            f"`{name}` is not an option of {group.name}.",
            f"Its options are {', '.join(group.options)}.",
            f"`rollpacker help {group.name}` describes them.",
        )
    option = "=".join(name.rsplit(".", 1))
    alone = {*(command.name for command in commands), "groups", "python"}
    similar = [each for each in nearest(name, alone | _names(root)) if is_near(name, each)]
    close = option if _is_option(root, option) else key_for(name) or "".join(similar)
    return ConfigError(
        f"`{name}` is not a section, group or key.",
        "Commands, `groups` and `python` are asked for alone."
        if name in alone
        else f"`rollpacker help /{name}` searches the whole help for it.",
        f"Try rollpacker help {close}"
        if close
        else "`rollpacker help` lists the commands, `rollpacker help groups` the groups.",
    )


def _help_of(command: Command) -> CommandHelp:
    return importlib.import_module(command.module).HELP  # type: ignore[no-any-return]  # every command's module has it


def _names(root: Root[BaseModel]) -> set[str]:
    """Of all groups, sections and keys."""
    return {*groups(root), *section_names(root.schema), *legal_keys(root.schema)}


def _is_option(root: Root[BaseModel], topic: str) -> bool:
    name, _, option = topic.partition("=")
    group = groups(root).get(name)
    return group is not None and option in group.options


def _sections(root: Root[BaseModel]) -> dict[str, list[Key]]:
    """All keys by their section; those of no section under an empty name."""
    sections: dict[str, list[Key]] = {}
    for key in legal_keys(root.schema).values():
        sections.setdefault(key.name.partition(".")[0] if "." in key.name else "", []).append(key)
    if root is TRAIN:
        defaults = launcher_defaults()
        sections[_LAUNCHER] = [
            replace(key, name=f"{_LAUNCHER}.{key.name}", default=defaults.get(key.name, key.default))
            for key in legal_keys(LauncherSettings).values()
        ]
    return sections


def _print_keys(root: Root[BaseModel], section: str, keys: Iterable[Key]) -> None:
    doc = {**section_docs(root.schema), _LAUNCHER: _LAUNCHER_DOC}.get(section, "")
    title = f"{section}: {doc}" if doc else section or "Keys"
    _print_section(title, list(_key_entries(root, keys)))


def _key_entries(root: Root[BaseModel], keys: Iterable[Key]) -> Iterator[RenderableType]:
    chosen = default_choices(root)
    for key in keys:
        default = chosen.get(key.name, key.default)
        value = Text(_default_text(default))
        if default == REQUIRED:  # an option of its group sets what an absent section requires
            value = Text("...") if key.absent_section else Text("REQUIRED", style="yellow")
        yield Text.assemble((key.name, "bold"), "=", value)
        yield _indented(Text.assemble(key.doc, " " if key.doc else "", (_takes(key), "dim")))


def _option_entries(group: Group) -> Iterator[RenderableType]:
    for option in group.options:
        yield _option_entry(group, option)


def _option_entry(group: Group, option: str) -> RenderableType:
    mark = "(default) " if option == group.default else ""
    name = Text.assemble((group.name, "bold"), f"={option} ", (mark, "dim"))
    return Lines(name, _indented(Text(option_summary(group.name, option))))


def _print_notes(group: Group, most_lines: int | None = None) -> None:
    for option in group.options:
        notes, name = option_notes(group.name, option), f"{group.name}={option}"
        if most_lines is not None and len(notes.splitlines()) > most_lines:
            _print_section(name, [Text(f"`rollpacker help {name}` has notes on it.")])
        elif notes:
            _print_section(name, _paragraphs(notes))


def _paragraphs(notes: str) -> list[RenderableType | str]:
    """Join the lines of each paragraph and item, so that they wrap at the width at hand; keep examples and tables.

    An indented line is an example, unless it continues an item.
    """
    blocks: list[RenderableType | str] = []
    prose: list[str] = []
    for line in [*notes.splitlines(), ""]:
        in_item = bool(prose) and prose[0].startswith("* ")
        if in_item and line.startswith("  "):
            prose.append(line.strip())
            continue
        is_kept = line.startswith(("  ", "{", "'", "json.")) or "   " in line
        if prose and (in_item or is_kept or not line or line.startswith("* ")):
            blocks.append(Text(" ".join(prose)))
            prose.clear()
        if is_kept or not line:
            blocks.append(line)
        else:
            prose.append(line)
    return blocks[:-1]


def _print_section(title: str, contents: Sequence[RenderableType | str]) -> None:
    """Print a title and contents; a `str` is to be copied, so that its lines are not wrapped."""
    console = output()
    if title:
        console.print(heading(title))
    indent = 2 if title else 0
    for content in contents:
        if isinstance(content, str):
            lines = "\n".join(" " * indent + line for line in content.splitlines())
            console.print(Text(lines, style="green"), soft_wrap=True)
        else:
            console.print(_indented(content, indent))
    console.print()


def _indented(content: RenderableType, indent: int = 4) -> Padding:
    return Padding(content, (0, 0, 0, indent), expand=False)


def _default_text(default: object) -> str:
    if default == DEFAULT_RUN_DIR:
        return "runs/..."
    if isinstance(default, float):
        return f"{default:g}"
    return default if isinstance(default, str) else json.dumps(default)


def _takes(key: Key) -> str:
    legal = f"{key.described[0].upper()}{key.described[1:]}."
    return f"{legal} Default: {DEFAULT_RUN_DIR}" if key.name == "run.dir" else legal
