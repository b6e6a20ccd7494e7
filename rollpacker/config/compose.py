"""Turns the arguments of a command line into a validated configuration: Hydra composes, the schema validates.

Every mistake is reported in one `ConfigError`, before anything is created on disk. Hydra's
base configuration is the schema's own default tree, so that every legal key can be overridden although the files in
`conf/` do not repeat defaults, and a misspelt one is refused with the nearest legal name.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from rollpacker.config.composed_choices import ComposedChoices
from rollpacker.config.given_file import NO_FILE, GivenFile, take_file
from rollpacker.config.keys import REQUIRED, Key, legal_keys, nearest, section_names, value_at
from rollpacker.config.launching import is_chosen, single_run_mistake
from rollpacker.config.mistakes import combined, raise_mistakes
from rollpacker.config.names_elsewhere import key_for
from rollpacker.config.roots import SCORE, TRAIN, Root, Schema_co, conf_dir, groups
from rollpacker.config.schema import RunConfig
from rollpacker.config.score_schema import ScoreConfig
from rollpacker.config.words import shown
from rollpacker.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from hydra._internal.hydra import Hydra  # only the type: GlobalHydra hands the object out
    from hydra.core.override_parser.types import Override
    from pydantic_core import ErrorDetails


_KEYS_OF_HYDRA = ("hydra.searchpath", "hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper")


Complete = Callable[[dict[str, Any], AbstractSet[str]], Mapping[str, object]]
"""Chooses keys that nobody named, from the composed tree and the names of those that somebody did: words of the command
line, and what differs from the defaults. Raises a `UserError`."""


def compose(
    overrides: Sequence[str], complete: Complete | None = None, *, not_from_file: Collection[str] = ()
) -> RunConfig:
    """Compose and validate the configuration of one training run.

    A word `config=FILE` takes the values of a file in place of the defaults, but for the sections in `not_from_file`;
    the other words override them.
    """
    given, overrides = take_file(TRAIN, overrides)
    given = given.without(not_from_file)
    overrides = without_plus(TRAIN, overrides)
    with hydra_session(given=given) as session:
        if is_chosen(parse_overrides(session, TRAIN, overrides)):
            raise single_run_mistake()
        return compose_in(session, TRAIN, overrides, given=given, complete=complete)


def compose_score(overrides: Sequence[str]) -> ScoreConfig:
    """Compose and validate the configuration of `rollpacker score`."""
    with hydra_session(SCORE) as session:
        return compose_in(session, SCORE, without_plus(SCORE, overrides))


def without_plus(root: Root[BaseModel], overrides: Sequence[str]) -> list[str]:
    """Accept `+experiment=x` for `experiment=x`, as Hydra requires where a group has no default."""
    plus = tuple(f"+{group}=" for group in groups(root))
    return [text.removeprefix("+") if text.startswith(plus) else text for text in overrides]


@contextlib.contextmanager
def hydra_session(root: Root[BaseModel] = TRAIN, *, given: GivenFile = NO_FILE) -> Iterator[Hydra]:
    """A Hydra session on a file of the packaged `conf/`; the state of a surrounding Hydra program is restored after.

    The base configuration without a given file stays in Hydra's store for the next session.
    """
    store, entry = ConfigStore.instance(), f"{root.base_name}.yaml"
    if given is not NO_FILE or entry not in store.repo:
        store.store(name=root.base_name, node=_base_config(root, given), provider="rollpacker")
    surrounding, surrounding_config = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(conf_dir()), job_name="rollpacker", version_base="1.3"):
            session = GlobalHydra.instance().hydra
            assert session is not None
            if given is NO_FILE:
                session.config_loader = _packaged(conf_dir())
            yield session
    finally:
        if given is not NO_FILE:
            store.repo.pop(entry, None)
        GlobalHydra.instance().hydra = surrounding
        HydraConfig.instance().cfg = surrounding_config


@functools.cache
def _packaged(folder: Path) -> ComposedChoices:
    """Of the files of this version, over the base configuration without a given file; neither changes."""
    return ComposedChoices(create_config_search_path(str(folder)))


def compose_in(
    session: Hydra,
    root: Root[Schema_co],
    overrides: Sequence[str],
    *,
    job_num: int | None = None,
    given: GivenFile = NO_FILE,
    complete: Complete | None = None,
) -> Schema_co:
    """Compose one configuration within a session of that file, as Hydra composes the job `job_num` of a multirun."""
    parsed = parse_overrides(session, root, overrides)
    raise_mistakes([mistake for override in parsed for mistake in _sweep_mistakes(override)])
    with translated_errors(root):
        words = [*_settled(session, root, overrides, given), *overrides]
        config = session.config_loader.load_configuration(root.name, words, run_mode=RunMode.RUN)
        if job_num is not None:
            with open_dict(config.hydra.job):
                config.hydra.job.num = job_num
        HydraConfig.instance().cfg = config  # type: ignore[assignment]  # as `set_config` does, but for a copy
    return validate(root, config, complete, given)


def _settled(session: Hydra, root: Root[BaseModel], overrides: Sequence[str], given: GivenFile) -> list[str]:
    """The overrides by which a file's sections stand in place of options that nothing chooses."""
    if given is NO_FILE:
        return []
    chosen = session.config_loader.compute_defaults_list(root.name, list(overrides), RunMode.RUN).overrides
    return given.settled_groups({*chosen.override_choices, *chosen.deletions})


def validate(
    root: Root[Schema_co], config: DictConfig, complete: Complete | None = None, given: GivenFile = NO_FILE
) -> Schema_co:
    """Resolve a composed configuration, complete it and validate it by the schema."""
    with translated_errors(root):
        sections = {str(name): _resolved(config, str(name)) for name in config if name != "hydra"}
    tree = _without_missing(_with_absent_sections(root, sections), root.defaults())
    if complete is not None:
        try:
            chosen = complete(tree, _named(root, tree) | given.named())
        except UserError:
            raise
        except Exception:  # of what is no configuration, which has any shape
            _validated(root, tree)
            raise
        for name, value in chosen.items():
            *parents, leaf = name.split(".")
            node = functools.reduce(lambda inner, part: inner[part], parents, tree)
            node[leaf] = value
    return _validated(root, tree)


def _resolved(config: DictConfig, name: str) -> Any:
    """A section, or a value at the top; what is missing stays `???`."""
    if OmegaConf.is_missing(config, name):
        return REQUIRED
    value = config[name]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _validated(root: Root[Schema_co], tree: Any) -> Schema_co:
    try:
        return root.schema.model_validate(tree)
    except ValidationError as error:
        raise combined([_schema_mistake(root, details) for details in error.errors(include_url=False)]) from error


def _named(root: Root[BaseModel], tree: Any) -> frozenset[str]:
    """The keys that Hydra's words name, and those whose values are not the defaults."""
    keys = [word.partition("=")[0].lstrip("+") for word in _words() if not word.startswith("~")]
    named = {f"{key}.name" if key in groups(root) else key for key in keys}
    for key in legal_keys(root.schema).values():
        value = value_at(tree, key.name)
        if value is not None and value != key.default:
            named.add(key.name)
    return frozenset(named)


def _words() -> list[str]:
    """The overrides that Hydra composes."""
    return list(map(str, HydraConfig.get().overrides.task)) if HydraConfig.initialized() else []


def parse_overrides(session: Hydra, root: Root[Schema_co], overrides: Sequence[str]) -> list[Override]:
    """Parse overrides by Hydra's grammar; raises for all unknown keys and unknown options together."""
    parser = OverridesParser.create(session.config_loader)
    parsed: list[Override] = []
    mistakes: list[UserError] = []
    for text in overrides:
        try:
            parsed.extend(parser.parse_overrides([text]))
        except OverrideParseException:
            mistakes.append(_grammar_mistake(root, text))
    mistakes.extend(_name_mistakes(root, parsed))
    raise_mistakes(mistakes)
    return parsed


@contextlib.contextmanager
def translated_errors(root: Root[BaseModel]) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into a `ConfigError`."""
    try:
        yield
    except MissingConfigException as error:
        group, _, option = str(error.missing_cfg_file or "").rpartition("/")
        raise _unknown_option(group, option, error.options or ()) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        source = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        first_line = str(source).strip().partition("\n")[0]
        key = getattr(source, "full_key", None)
        if isinstance(source, ConfigKeyError | ConfigAttributeError) and key and not key.startswith("hydra"):
            raise unknown_key(root, key) from error
        raise ConfigError(
            f"{key}: {first_line}" if key else first_line or type(source).__name__,
            "",
            _KEYS_LISTED.format(command=root.command),
        ) from error


def _base_config(root: Root[BaseModel], given: GivenFile) -> DictConfig:
    config = OmegaConf.create(given.over(root.defaults()))
    for key in legal_keys(root.schema).values():
        if key.is_mapping:
            # Hydra refuses new keys in the whole tree; in a mapping the user chooses them.
            OmegaConf.set_struct(OmegaConf.select(config, key.name), False)
    return config


def _with_absent_sections(root: Root[BaseModel], tree: Any) -> Any:
    """Make an optional section null that is as in the base configuration: no option of its group was chosen."""
    defaults = root.defaults()
    absent = {key.absent_section for key in legal_keys(root.schema).values()} - {""}
    for name in sorted(absent, key=lambda name: name.count(".")):  # what lies in another one after it
        *parents, leaf = name.split(".")
        node, default = tree, defaults
        for parent in parents:
            node, default = node[parent] if isinstance(node, dict) else None, default[parent]
        if isinstance(node, dict) and node[leaf] == default[leaf]:  # else the schema refuses it
            node[leaf] = None
    return tree


def _without_missing(tree: dict[str, Any], defaults: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Leave out what is still `???`, so that the schema reports it as missing with all other mistakes.

    Raises:
        ConfigError: It is the value of a key that has a default.
    """
    whole = {}
    for name, value in tree.items():
        default = defaults.get(name)
        if value == REQUIRED and default != REQUIRED:
            raise ConfigError(
                f"{parent}{name}={REQUIRED} is no value.",
                f"{REQUIRED} is how YAML files of Hydra mark what the user must give.",
                "Give a value, or leave the key out for its default.",
            )
        if value != REQUIRED:
            below = default if isinstance(default, dict) else {}
            whole[name] = _without_missing(value, below, f"{parent}{name}.") if isinstance(value, dict) else value
    return whole


def _name_mistakes(root: Root[BaseModel], parsed: Sequence[Override]) -> Iterator[UserError]:
    keys, sections, known_groups = legal_keys(root.schema), section_names(root.schema), groups(root)
    has_searchpath = any(override.key_or_group == "hydra.searchpath" for override in parsed)
    for override in parsed:
        name = override.key_or_group
        if re.match(r"hydra\b", name):  # Hydra's own keys, which Hydra validates
            if not name.startswith(_KEYS_OF_HYDRA):
                yield _useless_key_of_hydra(name)
            continue
        if name in known_groups and not isinstance(override._value, dict):  # noqa: SLF001 - value() refuses sweeps
            if not has_searchpath:  # with one, only Hydra knows the options
                yield from _option_mistakes(override, known_groups[name].options)
        elif name not in keys and name not in sections and not _is_below_mapping(name, keys):
            yield unknown_key(root, name)


def _useless_key_of_hydra(name: str) -> ConfigError:
    return ConfigError(
        f"`{name}` has no effect: Hydra only composes the configuration and runs the points of a multirun.",
        f"Of Hydra's own keys, {', '.join(_KEYS_OF_HYDRA)} count.",
        "Leave it out; run.dir says where a run writes.",
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
    if override.is_sweep_override() and not override.is_discrete_sweep():
        return
    for choice in override.sweep_iterator() if override.is_sweep_override() else [override.value()]:
        for option in choice if isinstance(choice, list) else [choice]:
            if option not in options:
                yield _unknown_option(group, shown(option), options)


def _is_below_mapping(name: str, keys: Mapping[str, Key]) -> bool:
    ends = (index for index, character in enumerate(name) if character == ".")
    return any(key.is_mapping for end in ends if (key := keys.get(name[:end])) is not None)


def unknown_key(root: Root[BaseModel], name: str) -> ConfigError:
    """A key that the schema does not have."""
    keys = legal_keys(root.schema)
    if (ours := key_for(name)) and ours in keys:
        return ConfigError(
            f"`{name}` is not a key of the configuration.",
            f"The key of this name in other tools is `{ours}` here: {keys[ours].doc}",
            f"Write {ours}=...",
        )
    close = nearest(name, [*keys, *groups(root)])
    return ConfigError(
        f"`{name}` is not a key of the configuration.",
        f"The nearest legal key is `{close[0]}`." if close else "",
        f"`rollpacker {root.command} --help` lists every key.",
    )


def _unknown_option(group: str, choice: str, options: Sequence[str]) -> ConfigError:
    close = nearest(choice, options)
    return ConfigError(
        f"`{choice}` is not an option of the group `{group}`.",
        f"Its options are {', '.join(options)}." if options else "The group has no options.",
        f"Write {group}={close[0]}." if close else f"Choose one of them: {group}={next(iter(options), '...')}.",
    )


_NAME = re.compile(r"[+~]{0,2}\w+([./@]\w+)*", re.ASCII)
"""The name of a key or a group, with Hydra's prefix that adds or deletes it."""

_KEYS_LISTED = "`rollpacker {command} --help` lists every group and key."


def _grammar_mistake(root: Root[BaseModel], text: str) -> ConfigError:
    if "=" not in text and not text.startswith("~"):
        choices = [f"{name}={text}" for name, group in groups(root).items() if text in group.options]
        close = choices or [f"{key}=VALUE" for key in nearest(text, legal_keys(root.schema))]
        remedy = f"Write {close[0]}" if close else "Write key=value."
        return ConfigError(f"`{text}` has no value.", "An argument is key=value or group=option.", remedy)
    name, _, value = text.partition("=")
    if not _NAME.fullmatch(name):
        near = nearest(name, [*legal_keys(root.schema), *groups(root)])
        return ConfigError(
            f"`{name}` in `{text}` is not the name of a key.",
            "A name is letters, digits and _, in parts with one dot between them.",
            f"Write {near[0]}={value or 'VALUE'}" if near else _KEYS_LISTED.format(command=root.command),
        )
    if value.startswith("~"):
        return ConfigError(
            f"`{text}` cannot be read: a value does not begin with ~.",
            "The shell expands ~ only at the beginning of a word.",
            f"Write {name}=$HOME{value[1:]}",
        )
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return ConfigError(
        f"`{text}` cannot be read: a value with blanks, quotes, brackets or other special characters is quoted.",
        "The shell removes the outer quotes; the inner ones belong to the value.",
        f"Write '{name}=\"{quoted}\"'",
    )


def _sweep_mistakes(override: Override) -> Iterator[UserError]:
    if override.is_sweep_override():
        yield ConfigError(
            f"`{override.input_line}` gives several values to one run.",
            "A single run takes one value; a list is written in brackets.",
            "Add -m to run once per value.",
        )


def _schema_mistake(root: Root[BaseModel], details: ErrorDetails) -> ConfigError:
    keys = legal_keys(root.schema)
    path = [str(part) for part in details["loc"]]
    name = ".".join(path)
    # An error inside a list or a mapping belongs to the key of the list or mapping.
    key = next((keys[".".join(path[:end])] for end in range(len(path), 0, -1) if ".".join(path[:end]) in keys), None)
    match details["type"]:
        case "extra_forbidden":
            return unknown_key(root, name)
        case "missing":
            group = name.removesuffix(".name")
            if group in groups(root):
                options = groups(root)[group].options
                own = [word for word in _words() if word.lstrip("+").startswith(f"{group}.")]
                return ConfigError(
                    f"{', '.join(own) or f'keys of {group}'} without an option of the group `{group}`.",
                    f"The options are {', '.join(options)}.",
                    f"Add {group}={options[0]}, or leave out what is set of `{group}`.",
                )
            return ConfigError(
                f"`{name}` is not set.",
                key.doc if key else "",
                f"Add {name}=..." if key else f"`rollpacker {root.command} --help` lists its keys.",
            )
        case "value_error":
            return ConfigError(*str(details["ctx"]["error"]).split("\n"))
    given = f"{name}={shown(details['input'])}"
    if key is None:  # a section that is no mapping
        own = [other for other in keys if other.startswith(f"{name}.")]
        return ConfigError(
            f"{given} is not legal: `{name}` is a section, which has keys of its own.",
            f"They are {', '.join(own)}." if own else "",
            f"Set single keys, such as {own[0]}=..." if own else _KEYS_LISTED.format(command=root.command),
        )
    close = nearest(str(details["input"]), key.choices)
    is_inside = key.name != name
    return ConfigError(
        f"{given} is {_fault(details['type'])}" + (f": {details['msg'].lower()}." if is_inside else "."),
        f"`{key.name}` is {key.legal}.",
        f"Write {key.name}={close[0]}." if close else "",
    )


def _fault(kind: str) -> str:
    return "out of bounds" if kind.startswith(("greater_than", "less_than", "finite_number")) else "not legal"
