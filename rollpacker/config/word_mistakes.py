"""What is wrong with the words of a command line: unknown names and options, and values that Hydra does not read."""

from __future__ import annotations

import difflib
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException

from rollpacker.config.entry_names import unescaped_names
from rollpacker.config.keys import Key, is_near, legal_keys, nearest, section_names
from rollpacker.config.names_elsewhere import (
    is_set_otherwise,
    key_beside,
    key_for,
    value_for,
    value_set_by,
    why_absent,
)
from rollpacker.config.names_in_slurm import key_for_job, key_of_option
from rollpacker.config.roots import Root, groups
from rollpacker.config.words import in_quotes, key_of, shown
from rollpacker.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from pydantic import BaseModel

_KEYS_OF_HYDRA = ("hydra.searchpath", "hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper")

_ERRORS_OF_SWEEPS = (HydraException, ValueError, ArithmeticError)
_MOST_CHOICES = 100
"""Far more than any group has options."""

_JOB = "cluster"
"""The section of what a Slurm job asks for."""

KEYS_LISTED = "`rollpacker {command} --help` lists every group and key."


def name_mistakes(root: Root[BaseModel], parsed: Sequence[Override]) -> Iterator[UserError]:
    """Names that are no key and no group, and options that their group does not have."""
    keys, sections, known_groups = legal_keys(root.schema), section_names(root.schema), groups(root)
    names = {override.key_or_group for override in parsed}
    has_searchpath = "hydra.searchpath" in names  # only Hydra knows the options then
    of_hydra = _KEYS_OF_HYDRA if root.command == "train" else _KEYS_OF_HYDRA[:1]  # no other root has multiruns
    for override in parsed:
        name = override.key_or_group
        if re.match(r"hydra\b", name):  # Hydra's own keys, which Hydra validates
            if not name.startswith(of_hydra):
                yield _useless_key_of_hydra(name, of_hydra)
            elif re.match(r"hydra\.launcher\b", name) and "hydra/launcher" not in names and not has_searchpath:
                yield _key_without_launcher(name)
            continue
        if not name:
            yield ConfigError(
                f"`{override.input_line}` names no key.",
                "An argument is key=value or group=option.",
                "Write a key before the `=`.",
            )
            continue
        if name in known_groups and not isinstance(override._value, dict):  # noqa: SLF001 - value() refuses sweeps
            if not has_searchpath:
                yield from _option_mistakes(override, known_groups[name].options)
        elif name not in keys and name not in sections and not _is_below_mapping(name, keys):
            yield unknown_key(root, name, (override.input_line or "").partition("=")[2])


def _useless_key_of_hydra(name: str, useful: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"`{name}` has no effect: Hydra only composes the configuration and runs the points of a multirun.",
        f"Hydra's own keys that have one: {', '.join(useful)}.",
        "Leave it out; run.dir says where a run writes.",
    )


def _key_without_launcher(name: str) -> ConfigError:
    return ConfigError(
        f"`{name}` belongs to hydra/launcher=slurm.",
        "Hydra's own launcher, which runs the points of a multirun on this machine, has no keys.",
        "Add hydra/launcher=slurm.",
    )


def _option_mistakes(override: Override, options: Sequence[str]) -> Iterator[UserError]:
    group = override.key_or_group
    if override.is_delete():
        yield ConfigError(
            f"`{override.input_line}` deletes a group, and every run has one option of each.",
            f"The options of `{group}` are {', '.join(options)}.",
            f"Choose one of them: {group}={options[0]}",
        )
        return
    for choice in _choices(override):
        for option in choice if isinstance(choice, list) else [choice]:
            if option not in options:
                yield unknown_option(group, shown(option), options)


def _choices(override: Override) -> list[Any]:
    """The options that a group is given, the first ones of many; none of a sweep that `sweep_values` refuses."""
    if not override.is_sweep_override():
        return [override.value()]
    try:
        return list(itertools.islice(override.sweep_iterator(), _MOST_CHOICES)) if override.is_discrete_sweep() else []
    except _ERRORS_OF_SWEEPS:
        return []


def sweep_values(override: Override, most: int) -> list[str]:
    """The first values of a sweep; raises where they cannot be counted, or where there are none."""
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), most))
    except _ERRORS_OF_SWEEPS as error:
        raise ConfigError(
            f"`{unescaped_names(str(override.input_line))}` has no countable values: {error}.",
            "A multirun takes a,b,c or range(start,stop,step).",
        ) from error
    if not values:
        raise ConfigError(
            f"`{override.input_line}` has no value, so the multirun would have no point.",
            "A range excludes its end; glob(PATTERN) gives the options of a group with such names.",
            "Correct it, or list the values: KEY=A,B.",
        )
    return values


def _is_below_mapping(name: str, keys: Mapping[str, Key]) -> bool:
    ends = (index for index, character in enumerate(name) if character == ".")
    return any(key.is_mapping for end in ends if (key := keys.get(name[:end])) is not None)


def unknown_key(root: Root[BaseModel], name: str, given: str = "") -> ConfigError:
    """A key that the schema does not have; the value that it was given may be another tool's, too."""
    keys = legal_keys(root.schema)
    section, _, leaf = name.rpartition(".")
    problem = f"`{name}` is not a key of the configuration."
    if section != _JOB and (reason := why_absent(name)):
        return ConfigError(problem, reason, "Leave it out.")
    of_job = key_for_job(leaf) if section in {"", _JOB} else None
    ours = key_for(name) or of_job
    if ours and (key := keys.get(ours, keys.get(f"{_JOB}.sbatch"))):
        allowed, doc = f"The nearest key here is `{ours}`", _beginning(key.doc)
        value = value_set_by(name, given)
        if (second := key_beside(name)) is not None:
            allowed = f"The nearest keys here are `{ours}` and `{second}`: {doc}"
            return ConfigError(problem, allowed, f"Write {ours}={value or f'... and {second}=...'}")
        if is_set_otherwise(name):
            allowed += ", with other values"
        return ConfigError(problem, f"{allowed}: {doc}", f"Write {ours}={value or '...'}")
    if section and of_job is not None:
        return ConfigError(problem, "RollPacker sets this option of sbatch itself.", "Leave it out.")
    # By the name of a section alone, all of its keys would be near: the last part decides.
    legal = [key for key in keys if nearest(leaf, [key.rpartition(".")[2]])] if section else [*keys, *groups(root)]
    close = [key for key in nearest(name, legal) if is_near(name, key)]
    topic = f" {section}" if not close and section in section_names(root.schema) else ""
    listed = f"`rollpacker {root.command} --help{topic}` lists {'its keys' if topic else 'every key'}."
    is_of_job = topic and section == _JOB
    return ConfigError(
        problem,
        f"The nearest legal key is `{close[0]}`." if close else "",
        f"Write {key_of_option(leaf)}=... if it is an option of sbatch; {listed}" if is_of_job else listed,
    )


def _beginning(doc: str) -> str:
    """The first statement of a key's help text, which may be as long as a page."""
    return re.split(r"(?<!\bDr)\. |; ", doc)[0].rstrip(".") + "."


def unknown_option(group: str, choice: str, options: Sequence[str]) -> ConfigError:
    """An option that the group does not have."""
    close = nearest(choice, options)
    remedy = f"Write {group}={close[0]}." if close else "Choose one of them."
    if group == "reward" and re.search(r"\.py|:", choice):
        remedy = f"Write {_key_of_check(choice)}"
    elif group in {"model", "data"} and re.search(r"/|\.[A-Za-z]\w*$", choice):
        remedy = f"Write {group}.path={choice}"
    return ConfigError(
        f"`{choice}` is not an option of the group `{group}`.",
        f"Its options are {', '.join(options)}." if options else "The group has no options.",
        remedy,
    )


def remedy_of_value(key: Key, given: str) -> str:
    """What to write in place of a value that is not legal; empty where that is unknown."""
    if key.name == "run.resume" and "/" in given:
        return (
            "Write run.resume=auto run.dir=RUN to continue a run. To begin from one of its steps: "
            "`rollpacker export RUN at=STEPS out=DIR`, then model.path=DIR."
        )
    close = value_for(key.name, given, key.choices)
    return f"Write {key.name}={close}." if close else ""


def _key_of_check(text: str) -> str:
    """The word that chooses a reward of the user's own."""
    if "://" in text:
        return f"reward.url={text}"
    return f"reward.function={text}" + ("" if ":" in text else ":NAME")


_NAME = re.compile(r"[+~]{0,2}\w+([./@]\w+)*", re.ASCII)
"""The name of a key or a group, with Hydra's prefix that adds or deletes it."""


_CLOSING = {"{": "}", "[": "]", "(": ")", '"': '"', "'": "'"}

_NEAREST_OPTION = 0.8
"""There are many: a word as unlike them as another key may be is hardly meant for one."""


def grammar_mistake(root: Root[BaseModel], text: str) -> ConfigError:
    """A word that Hydra's grammar does not take."""
    if "=" not in text and not text.startswith("~"):
        choices = {option: f"{name}={option}" for name, group in groups(root).items() for option in group.options}
        options = [choices[option] for option in difflib.get_close_matches(text, choices, 1, _NEAREST_OPTION)]
        names = [name for name in nearest(text, [*groups(root), *legal_keys(root.schema)]) if is_near(text, name)]
        close = options or [f"{name}=VALUE" for name in names]
        remedy = f"Write {close[0]}" if close else "Write key=value."
        return ConfigError(f"`{text}` has no value.", "An argument is key=value or group=option.", remedy)
    name, _, value = text.partition("=")
    if not _NAME.fullmatch(name):
        near = nearest(name, [*legal_keys(root.schema), *groups(root)])
        value = value.removesuffix(_CLOSING.get(name[:1], ""))
        return ConfigError(
            f"`{name}` in `{text}` is not the name of a key.",
            "A name is letters, digits and _, in parts with one dot between them.",
            f"Write {near[0]}={value or 'VALUE'}" if near else KEYS_LISTED.format(command=root.command),
        )
    if value.startswith("~"):
        return ConfigError(
            f"`{text}` cannot be read: a value does not begin with ~.",
            "The shell expands ~ only at the beginning of a word.",
            f"Write {name}=$HOME{value[1:]}",
        )
    key = legal_keys(root.schema).get(key_of(name))
    said, example = (name, "VALUE") if "@" in value else (text, value)  # it may have a password
    if value.startswith(("[", "{")) and (key is None or re.search("list|mapping", key.kind)):
        return ConfigError(
            f"`{said}` cannot be read: texts in it that have blanks, quotes or other special characters are quoted.",
            'A list is [a,"b c"], a mapping {name: "b c"} with names of ASCII letters, digits and _.',
            "Quote the texts in it, and the whole word for the shell.",
        )
    return ConfigError(
        f"`{said}` cannot be read: a value with blanks, quotes, brackets or other special characters is quoted.",
        "The shell removes the outer quotes; the inner ones belong to the value.",
        f"Write {shlex.quote(f'{name}={in_quotes(example)}')}",
    )


def sweep_mistakes(override: Override) -> Iterator[UserError]:
    """Several values in a single run."""
    if override.is_sweep_override():
        yield ConfigError(
            f"`{unescaped_names(str(override.input_line))}` gives several values to one run.",
            "A single run takes one value; a list is written in brackets.",
            "Write KEY=[A,B] for a list; `rollpacker train -m` runs once per value.",
        )
