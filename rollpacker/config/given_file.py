"""The word `config=FILE`: the values of a run's record, or of a file of one's own, in place of the defaults.

Invariant: what the file says counts as a default does, so every other word of the command line overrides it: a key, or
an option of a group with the keys that it sets and the options that it chooses. Where an option describes its whole
section, as one of `system` does, and the file describes another one there, the file's section counts no longer; of one
that names none, settings that the option does not set stay. In a group that no word chooses, the file's section names
the option, or lies over the default one. Relative paths of a run's record lead where they led when the run was started,
and those of other words begin in the present folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rollpacker.config.keys import legal_keys, nearest, section_names
from rollpacker.config.mistakes import raise_mistakes
from rollpacker.config.optional_sections import mark_empty
from rollpacker.config.record import CONFIG_FILE, started_in
from rollpacker.config.roots import Group, Root, conf_dir, groups
from rollpacker.config.words import literal, shown
from rollpacker.core.errors import ConfigError
from rollpacker.paths import read_text, reason_of

if TYPE_CHECKING:
    from pydantic import BaseModel

_WORD = "config="
_LEGAL = f"It is the {CONFIG_FILE} in a run's folder, that folder, or a YAML file of your own."

_OF_ONE_OPTION = frozenset({"system", "elastic", "placement", "hardware", "workload", "model", "cluster"})
"""Sections that describe one option each: with what a file has of another one, it would be neither. The other sections
(engine, trainer, reward, data, environment) have settings and paths that hold for whatever option is chosen."""

_OF_AN_OPTION = frozenset({"name", "automatic", "engine", "trainer"})
"""Keys by which one of these sections describes an option, and has not only settings beside one: the option's name, or,
of `placement`, which has none, what its options set."""


class _Loader(yaml.SafeLoader):
    """Reads dates as texts, and refuses a key that is written twice, as Hydra does in the files of `conf/`."""

    yaml_implicit_resolvers = {  # noqa: RUF012  as the class above has it
        sign: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for sign, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        written = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in written:
                raise yaml.MarkedYAMLError(problem=f"`{key.value}` is written twice", problem_mark=key.start_mark)
            written.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        return node


_PYTHON_FILE = re.compile(r"(.+\.py):\w+")
"""The file of a FILE.py:NAME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFile:
    """The values of a file."""

    root: Root[BaseModel] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """As the file nests them; every key is legal."""
    settled: tuple[str, ...] = ()
    """The overrides with which Hydra leaves out the default options of groups of which the file has the section."""
    beneath: Mapping[str, Any] = field(default_factory=dict)
    """What those options set, but for sections that have a name of their own."""

    def without(self, sections: Collection[str]) -> GivenFile:
        """The file as if it lacked some sections."""
        if not any(name in self.values for name in sections):
            return self
        return replace(self, values={name: value for name, value in self.values.items() if name not in sections})

    def over(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """Lay the values over a tree of defaults."""
        return _laid_over(_laid_over(defaults, self.beneath), self.values)

    def beside(self, chosen: Collection[str]) -> GivenFile:
        """The file beside words that choose an option of some groups, or an option that does."""
        replaced = {name for name in _OF_ONE_OPTION & set(chosen) if _OF_AN_OPTION & set(self.values.get(name) or {})}
        unchosen = {name: group.default for name, group in self._groups().items() if name not in chosen}
        defaults = {name: _set_by(name, option) for name, option in unchosen.items() if option is not None}
        named = self.named()
        return replace(
            self.without(replaced),
            settled=tuple(f"~{name}" for name, keys in defaults.items() if keys),
            beneath={name: keys for name, keys in defaults.items() if f"{name}.name" not in named},
        )

    def named(self) -> set[str]:
        """The names of options that the file gives: `engine.name` and the like."""
        return {f"{name}.name" for name in self._groups() if "name" in (self.values[name] or {})}

    def _groups(self) -> dict[str, Group]:
        """Those of which the file has the section."""
        if self.root is None:
            return {}
        return {name: group for name, group in groups(self.root).items() if name in self.values}


NO_FILE = GivenFile()


def _set_by(group: str, option: str) -> dict[str, Any]:
    return yaml.safe_load((conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8")) or {}


def take_file(root: Root[BaseModel], words: Sequence[str]) -> tuple[GivenFile, list[str]]:
    """Separate `config=FILE` from the other words, and read the file.

    Raises:
        ConfigError: It cannot be read, is no YAML, or has keys that this version does not know.
    """
    paths = [word.removeprefix(_WORD) for word in words if word.startswith(_WORD)]
    if "" in paths:
        raise ConfigError(f"`{_WORD}` names no file.", _LEGAL, "Give its path; a variable of the shell may be unset.")
    if len(paths) > 1:
        files = ", ".join(f"{_WORD}{path}" for path in paths)
        raise ConfigError(f"Several files: {files}.", "A run takes one.", "Leave one of them, or join them.")
    others = [word for word in words if not word.startswith(_WORD)]
    return (_read(root, Path(paths[0])) if paths else NO_FILE), others


def refuse_file(words: Sequence[str]) -> None:
    """Raise a `ConfigError` where a multirun is given a file: its jobs compose their points from words alone."""
    if given := [word for word in words if word.startswith(_WORD)]:
        raise ConfigError(
            f"`{given[0]}` with -m.",
            "A file gives one run.",
            "Leave out -m, or write what the points share as words.",
        )


def _read(root: Root[BaseModel], path: Path) -> GivenFile:
    file = path / CONFIG_FILE if path.is_dir() else path
    try:
        text = read_text(file)
        values = yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader
        unfit = list(_not_plain(values))
    except FileNotFoundError:
        raise ConfigError(
            f"config={path}: {file} does not exist.",
            _LEGAL,
            "Correct the path.",
        ) from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = " ".join(reason_of(error).split())
        raise ConfigError(
            f"config={file} cannot be read: {why}.", "It is YAML with a mapping for each section.", "Correct the file."
        ) from error
    if not isinstance(values, dict) or not values:
        raise ConfigError(
            f"config={file} holds no sections.", "It is YAML with a mapping for each section.", "Correct the file."
        )
    raise_mistakes(
        [
            *(
                ConfigError(
                    f"config={file} has {name} of no plain type: {value!r}.",
                    "A value is a text, a number, true, false, null, a list or a mapping with such names.",
                    "Write it in quotes, as a text.",
                )
                for name, value in unfit
            ),
            *_name_mistakes(root, file, values, ""),
        ]
    )
    mark_empty(root, values)
    folder = started_in(text)
    if folder is not None and folder != Path.cwd():
        values = _led_from(folder, values, _input_paths(root))
    return GivenFile(root=root, values=_without_interpolation(values))


def _input_paths(root: Root[BaseModel]) -> frozenset[str]:
    """The keys that name what is read; also where an entry of a list is {path: PATH}."""
    keys = [key.name for key in legal_keys(root.schema).values() if key.is_path]
    return frozenset({*keys, *(f"{key}.path" for key in keys)} - {"run.dir"})


def _led_from(folder: Path, value: Any, paths: Collection[str], name: str = "") -> Any:
    """Replace what was a relative path in a folder, as a value of `paths` or as FILE.py:NAME, if it is still there."""
    match value:
        case dict():
            return {key: _led_from(folder, each, paths, f"{name}.{key}".lstrip(".")) for key, each in value.items()}
        case list():
            return [_led_from(folder, each, paths, name) for each in value]
        case str():
            of_python = _PYTHON_FILE.fullmatch(value)
            path = of_python[1] if of_python else value if name in paths else ""
            is_there = path and os.path.exists(folder / path)  # noqa: PTH110  never raises, whatever the text
            return str(folder / value) if is_there else value
        case _:
            return value


def _not_plain(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values that Hydra has no type for, such as dates and sets, each with the key that it is below."""
    match value:
        case dict():
            for key, each in value.items():
                yield from _not_plain(each, f"{name}.{key}".lstrip("."))
                if not isinstance(key, str | int | float):
                    yield name, key
        case list():
            for each in value:
                yield from _not_plain(each, name)
        case str() | int() | float() | None:
            pass
        case _:
            yield name, value


def _name_mistakes(root: Root[BaseModel], file: Path, values: Mapping[Any, Any], prefix: str) -> Iterator[ConfigError]:
    """What is no key of this version, and what stands in the place of a section."""
    keys, sections = legal_keys(root.schema), section_names(root.schema)
    for key, value in values.items():
        name = f"{prefix}{key}"
        if "." in str(key) and (name in keys or name in sections):
            yield _dotted(file, prefix, str(key), value)
        elif name in keys:
            continue
        elif name not in sections:
            yield _unknown(root, file, name)
        elif isinstance(value, dict | None):
            yield from _name_mistakes(root, file, value or {}, f"{name}.")
        else:
            yield _no_section(root, file, name, value)


def _dotted(file: Path, prefix: str, key: str, value: Any) -> ConfigError:
    *sections, leaf = f"{prefix}{key}".split(".")
    nested = f"{leaf}: {shown(value)}"
    for section in reversed(sections):
        nested = f"{section}: {{{nested}}}"
    return ConfigError(
        f"config={file} has `{key}: {shown(value)}`, a key with dots.",
        "Dotted keys are for the command line; in a file each section is a mapping.",
        f"Write {nested}",
    )


def _no_section(root: Root[BaseModel], file: Path, name: str, value: Any) -> ConfigError:
    below = [key.removeprefix(f"{name}.") for key in legal_keys(root.schema) if key.startswith(f"{name}.")]
    own = dict.fromkeys(key.partition(".")[0] for key in below)
    is_option = name in groups(root) and shown(value) in groups(root)[name].options
    return ConfigError(
        f"config={file} has `{name}: {shown(value)}`, and `{name}` is a section: a mapping with keys of its own.",
        f"They are {', '.join(own)}.",
        f"Take the line out, and give the word {name}={value}."
        if is_option
        else f"Write {name.rpartition('.')[2]}: {{KEY: VALUE}}",
    )


def _unknown(root: Root[BaseModel], file: Path, name: str) -> ConfigError:
    close = nearest(name, legal_keys(root.schema))
    return ConfigError(
        f"config={file} has `{name}`, which is not a key of this version of rollpacker.",
        f"The nearest legal key is `{close[0]}`." if close else "",
        "Use the version that wrote the file; or take the key out of a copy, and give that.",
    )


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A section that is null above stays as it is below: it is absent unless a key in it is set."""
    laid = dict(below)
    for name, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(name), Mapping):
            laid[name] = _laid_over(below[name], value)
        elif value is not None or not isinstance(below.get(name), Mapping):
            laid[name] = value
    return laid


def _without_interpolation(value: Any) -> Any:
    """Texts of a file are taken as they are: OmegaConf would look up `${name}` in them."""
    match value:
        case str():
            return literal(value)
        case dict():
            return {name: _without_interpolation(each) for name, each in value.items()}
        case list():
            return [_without_interpolation(each) for each in value]
        case _:
            return value
