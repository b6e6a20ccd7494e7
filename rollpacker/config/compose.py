"""Turns the arguments of a command line into a validated configuration: Hydra composes, the schema validates.

Every mistake is reported in one `ConfigError`, before anything is created on disk. Hydra's
base configuration is the schema's own default tree, so that every legal key can be overridden although the files in
`conf/` do not repeat defaults, and a misspelt one is refused with the nearest legal name.
"""

from __future__ import annotations

import contextlib
import functools
import threading
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
from rollpacker.config.entry_names import escaped, unescaped, unescaped_names
from rollpacker.config.given_file import NO_FILE, GivenFile, take_file
from rollpacker.config.keys import REQUIRED, legal_keys, value_at
from rollpacker.config.launching import is_chosen, single_run_mistake
from rollpacker.config.mistakes import combined, raise_interruption, raise_mistakes
from rollpacker.config.optional_sections import base_tree, take_defaults, with_defaults_of_deleted, without_absent
from rollpacker.config.roots import SCORE, TRAIN, Root, Schema_co, conf_dir, groups
from rollpacker.config.schema import RunConfig
from rollpacker.config.score_schema import ScoreConfig
from rollpacker.config.sections.base import CEILINGS, LARGEST, SMALLEST
from rollpacker.config.word_mistakes import (
    KEYS_LISTED,
    grammar_mistake,
    name_mistakes,
    remedy_of_value,
    sweep_mistakes,
    unknown_key,
    unknown_option,
)
from rollpacker.config.words import key_of, shown
from rollpacker.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from hydra._internal.hydra import Hydra  # only the type: GlobalHydra hands the object out
    from hydra.core.override_parser.types import Override
    from pydantic_core import ErrorDetails


_HYDRA = threading.RLock()
"""Held by the thread that uses Hydra, which keeps its state for the whole process."""

_LIMITS_OF_TYPES = CEILINGS | {-LARGEST, SMALLEST}
"""A message names them where a value exceeds one."""

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
    overrides = readable(TRAIN, overrides)
    if given is not NO_FILE:
        with hydra_session() as session:
            given = given.without(not_from_file).beside(_chosen_groups(session, TRAIN, overrides))
    with hydra_session(given=given) as session:
        if is_chosen(parse_overrides(session, TRAIN, overrides)):
            raise single_run_mistake()
        return compose_in(session, TRAIN, overrides, given=given, complete=complete)


def compose_score(overrides: Sequence[str]) -> ScoreConfig:
    """Compose and validate the configuration of `rollpacker score`."""
    with hydra_session(SCORE) as session:
        return compose_in(session, SCORE, readable(SCORE, overrides))


def readable(root: Root[BaseModel], overrides: Sequence[str]) -> list[str]:
    """Give words as Hydra takes them: `experiment=x` for `+experiment=x`, and names of entries without other signs."""
    keys = legal_keys(root.schema)
    known, mappings = {*groups(root), *keys}, [key.name for key in keys.values() if key.is_mapping]
    words = [text.lstrip("+") if text.startswith("+") and key_of(text) in known else text for text in overrides]
    return [escaped(word, mappings) for word in words]


@contextlib.contextmanager
def hydra_session(root: Root[BaseModel] = TRAIN, *, given: GivenFile = NO_FILE) -> Iterator[Hydra]:
    """A Hydra session on a file of the packaged `conf/`; the state of a surrounding Hydra program is restored after.

    One thread has a session at a time; others wait for it. The base configuration without a given file stays in Hydra's
    store for the next session.
    """
    with _HYDRA:
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
    _refuse_sweeps(session, root, overrides)
    with translated_errors(root):
        words = [*given.settled, *with_defaults_of_deleted(root, overrides)]
        config = session.config_loader.load_configuration(root.name, words, run_mode=RunMode.RUN)
        if job_num is not None:
            with open_dict(config.hydra.job):
                config.hydra.job.num = job_num
        HydraConfig.instance().cfg = config  # type: ignore[assignment]  # as `set_config` does, but for a copy
    return validate(root, config, complete, given)


def _refuse_sweeps(session: Hydra, root: Root[Schema_co], overrides: Sequence[str]) -> None:
    parsed = parse_overrides(session, root, overrides)
    raise_mistakes([mistake for override in parsed for mistake in sweep_mistakes(override)])


def _chosen_groups(session: Hydra, root: Root[BaseModel], overrides: Sequence[str]) -> set[str]:
    """The groups that the words choose an option of, or an option that they choose."""
    _refuse_sweeps(session, root, overrides)
    with translated_errors(root):
        chosen = session.config_loader.compute_defaults_list(root.name, list(overrides), RunMode.RUN).overrides
    return {*chosen.override_choices, *chosen.deletions}


def validate(
    root: Root[Schema_co], config: DictConfig, complete: Complete | None = None, given: GivenFile = NO_FILE
) -> Schema_co:
    """Resolve a composed configuration, complete it and validate it by the schema."""
    with translated_errors(root):
        absent = take_defaults(root, config)
        sections = {str(name): _resolved(config, str(name)) for name in config if name != "hydra"}
    for key in legal_keys(root.schema).values():
        if key.is_mapping and value_at(sections, key.name):
            parent, _, leaf = key.name.rpartition(".")
            node = value_at(sections, parent)
            node[leaf] = unescaped(node[leaf])
    tree = _without_missing(_with_deleted(root, without_absent(sections, absent)), root.defaults())
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
        raise combined([_schema_mistake(root, tree, details) for details in error.errors(include_url=False)]) from error


def _named(root: Root[BaseModel], tree: Any) -> frozenset[str]:
    """The keys that Hydra's words name, and those whose values are not the defaults."""
    keys = [key_of(word) for word in _words() if not word.startswith("~")]
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
            mistakes.append(grammar_mistake(root, unescaped_names(text)))
    mistakes.extend(name_mistakes(root, parsed))
    raise_mistakes(mistakes)
    return parsed


@contextlib.contextmanager
def translated_errors(root: Root[BaseModel]) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into a `ConfigError`."""
    try:
        yield
    except MissingConfigException as error:
        raise_interruption(error)
        group, _, option = str(error.missing_cfg_file or "").rpartition("/")
        raise unknown_option(group, option, error.options or ()) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise_interruption(error)
        source = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        first_line = unescaped_names(str(source).strip().partition("\n")[0])
        key = getattr(source, "full_key", None)
        if isinstance(source, ConfigKeyError | ConfigAttributeError) and key and not key.startswith("hydra"):
            raise unknown_key(root, key) from error
        raise ConfigError(
            f"{key}: {first_line}" if key else first_line or type(source).__name__,
            "",
            KEYS_LISTED.format(command=root.command),
        ) from error


def _base_config(root: Root[BaseModel], given: GivenFile) -> DictConfig:
    config = OmegaConf.create(given.over(base_tree(root)))
    for key in legal_keys(root.schema).values():
        if key.is_mapping:
            # Hydra refuses new keys in the whole tree; in a mapping the user chooses them.
            OmegaConf.set_struct(OmegaConf.select(config, key.name), False)
    return config


def _with_deleted(root: Root[BaseModel], tree: Any) -> Any:
    """Give keys that were deleted (`~KEY`) their defaults."""
    for key in legal_keys(root.schema).values():
        if key.default != REQUIRED and not key.absent_section:
            *parents, leaf = key.name.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {}) if isinstance(node, dict) else None
            if isinstance(node, dict):
                node.setdefault(leaf, key.default)
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


def _schema_mistake(root: Root[BaseModel], tree: Any, details: ErrorDetails) -> ConfigError:
    keys = legal_keys(root.schema)
    path = [str(part) for part in details["loc"]]
    name = ".".join(path)
    # An error inside a list or a mapping belongs to the key of the list or mapping.
    key = next((keys[".".join(path[:end])] for end in range(len(path), 0, -1) if ".".join(path[:end]) in keys), None)
    match details["type"]:
        case "extra_forbidden":
            return unknown_key(root, name)
        case "missing" if not isinstance(details["loc"][-1], int):  # an index is of a list that is too short
            group = name.removesuffix(".name")
            if group in groups(root):
                options = groups(root)[group].options
                own = [word for word in _words() if key_of(word).startswith(f"{group}.")]
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
    place = _place_in(tree, details["loc"])
    name = ".".join(place)
    given = f"{name}={shown(details['input'])}"
    if key is None:  # a section that is no mapping
        own = [other for other in keys if other.startswith(f"{name}.")]
        return ConfigError(
            f"{given} is not legal: `{name}` is a section, which has keys of its own.",
            f"They are {', '.join(own)}." if own else "",
            f"Set single keys, such as {own[0]}=..." if own else KEYS_LISTED.format(command=root.command),
        )
    beyond = path[len(place) :]
    is_name = beyond[-1:] == ["[key]"]  # pydantic's mark of a name in a mapping
    if is_name:
        given = f"`{shown(details['input'])}`, a name in {key.name},"
    is_out_of_bounds = _fault(details["type"]) == "out of bounds"
    exceeds_type = is_out_of_bounds and set(details.get("ctx", {}).values()) <= _LIMITS_OF_TYPES
    # pydantic's words are of one type where others are legal, too, and of `model_type` they name a class of ours
    says_more = is_name or (key.name != name and not beyond and details["type"] != "model_type")
    as_text = f"Write {key.name}.NAME=... on the command line, or the name in quotes in a YAML file."
    return ConfigError(
        f"{given} is {_fault(details['type'])}" + (f": {details['msg'].lower()}." if says_more else "."),
        f"`{key.name}` is {key.legal if exceeds_type else key.described}.",
        as_text if is_name and details["type"] == "string_type" else remedy_of_value(key, shown(details["input"])),
    )


def _place_in(tree: Any, location: Sequence[int | str]) -> list[str]:
    """The place of a mistake as far as it was given: pydantic adds each type of several, and fields of an entry."""
    place, node = [], tree
    for part in location:
        if not (part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))):
            break
        place.append(str(part))
        node = node[part]
    return place


def _fault(kind: str) -> str:
    return "out of bounds" if kind.startswith(("greater_than", "less_than", "finite_number")) else "not legal"
