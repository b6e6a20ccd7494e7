"""Imports what a configuration names in Python, as `FILE.py:NAME` or `PACKAGE.MODULE:NAME`.

Modules are also found in the working directory, and beside the file. A process imports a file once, as it does a
module: what two names of one file refer to shares its state.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from rollpacker.core.errors import RollpackerError

START_LIMIT_S = 120.0
"""For a process to be ready that imports such a thing, from a slow network file system, on a node where many start."""

LONGEST_TEXT = 300
"""Characters of an error's own words."""

_PACKAGE = f"{Path(__file__).parents[1]}/"


class UnusableFunction(Exception):
    """A source names nothing that can be used; the message says why."""


def load_named(source: str, *, prepare: str = "") -> Any:
    """Import what `FILE.py:NAME` or `PACKAGE.MODULE:NAME` names.

    Args:
        source: The name.
        prepare: A function of the module that is called first, if there is one; once in a process.

    Raises:
        UnusableFunction: There is no such thing, or its module cannot be imported.
    """
    place, _, name = source.rpartition(":")
    module = module_of(source, prepare=prepare)
    if not hasattr(module, name):
        nearest = _nearest_name(name, module)
        raise UnusableFunction(f"{place} has no `{name}`" + (f"; it has `{nearest}`" if nearest else ""))
    return getattr(module, name)


def module_of(source: str, *, prepare: str = "") -> ModuleType:
    """Import the module of what `load_named` loads; takes and raises the same."""
    place, _, _ = source.rpartition(":")
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        raise UnusableFunction(f"there is no file {place}")
    try:
        module = _load_file(Path(place).resolve()) if is_file else _load_module(place)
        if prepare:
            _call_once(module, prepare)
    except UnusableFunction:
        raise
    except (Exception, SystemExit) as error:
        raise UnusableFunction(f"importing {place} raised {in_words(error)}") from error
    return module


def parameters_of(
    function: Callable[..., object], known: Sequence[str], *, elsewhere: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """The parameters of a function that are given to it by name, all of them where it takes any.

    Args:
        function: The function.
        known: The names.
        elsewhere: For a message: parameters of other tools' functions, and what takes their place here.

    Raises:
        UnusableFunction: It is no function, or has a parameter without a default that is none of the `known`.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UnusableFunction(f"its parameters cannot be read: {error}") from error
    taken, unfit = [], []
    for each in parameters:
        if each.name in known and each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}:
            taken.append(each.name)
        elif each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
            unfit.append(each.name)
    if unfit:
        named = ", ".join(f"`{name}`" for name in unfit)
        are, have = (f"parameters {named} are", "they have") if len(unfit) > 1 else (f"parameter {named} is", "it has")
        hints = "".join(f"; `{name}` is {elsewhere[name]} here" for name in unfit if name in elsewhere)
        raise UnusableFunction(
            f"its {are} none of {', '.join(known)}, which are given by name, and {have} no default{hints}"
        )
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return tuple(known) if takes_any else tuple(taken)


def refusal(function: Callable[..., object], *arguments: object, **named: object) -> str:
    """Say why a function does not take these arguments; of a decorated one the wrapper's signature counts.

    Empty if it takes them, or has no signature, as some functions in C; a wrapper of *args takes everything.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except ValueError:
        return ""
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        return str(error)
    return ""


def in_words(error: BaseException, *callers: str) -> str:
    """The error and the line that raised it, of the innermost file that is neither a caller nor part of an import.

    An error of this package is whole, and ends with what to do; its line is that of the innermost file outside it.
    """
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if each.filename not in {__file__, importlib.__file__, *callers} and not each.filename.startswith("<")
    ]
    name = type(error).__name__
    if isinstance(error, RollpackerError):
        outside = [each for each in frames if not each.filename.startswith(_PACKAGE)]
        return f"{name}{_place_of(outside or frames)}: {error}"
    return f"{name}: {str(error)[:LONGEST_TEXT]}{_place_of(frames)}"


def _place_of(frames: Sequence[traceback.FrameSummary]) -> str:
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


@functools.cache
def _load_file(path: Path) -> ModuleType:
    """Import a file by its resolved path; the folder that it lies in comes last on the path of further imports."""
    # The stem alone may be that of a library, such as math, or of a second file.
    name = f"own_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}"
    _search_in(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    _search_in(Path.cwd())
    return importlib.import_module(name)


@functools.cache
def _call_once(module: ModuleType, name: str) -> None:
    """Call a function of a module, if it has one of that name."""
    if callable(function := getattr(module, name, None)):
        function()


def _nearest_name(name: str, module: ModuleType) -> str:
    """A public function or class of a similar name, imported ones after those of the module; empty where none is."""
    public = {each: found for each, found in vars(module).items() if callable(found) and not each.startswith("_")}
    own = [
        each
        for each, found in public.items()
        if f"{getattr(found, '__module__', '')}.".startswith(f"{module.__name__}.")
    ]
    close = difflib.get_close_matches(name, own, n=1) or difflib.get_close_matches(name, public, n=1)
    return close[0] if close else ""


def _search_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
