"""Finds the files that a prompt file of the configuration means: itself, or those of a folder.

A folder is one of three:

    state.json           one split, as `datasets` saves it (save_to_disk); it names its Arrow files
    dataset_dict.json    several splits, each in a folder of that kind
    anything else        a folder of tables and JSON lines, such as a repository of the Hub; the split of a file is its
                         name without the number of a part (train-00000-of-00003.parquet), or the folder of numbered
                         files

A number is that of a part in `-of-`, behind a name that splits and parts usually have, and where the files of a name
are numbered from 0 or 1 without a gap; that of math-500.jsonl or aime_2025.jsonl is part of the name.

Invariant: no file of data is left out unsaid, and no row is read twice. A packed file (.gz) or one of tabs (.tsv)
belongs to a split as others do, and is refused with it; so are files of two formats, parts in `-of-` of which some are
missing or there twice, and parts beside a whole file. A .json file is of data, as JSON lines, where it is called as
splits usually are, or as another file of data: others describe the data, such as dataset_infos.json. Links are
followed: a folder of several names is read once, and a link to nothing is refused when it is read. A folder below that
cannot be read is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollpacker.config.hub_names import SCHEME
from rollpacker.core.errors import DataError
from rollpacker.data.jsonl import reading
from rollpacker.paths import read_text, real_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rollpacker.config.hub_names import HubName
    from rollpacker.config.sections.data import PromptFile

_SUFFIXES = frozenset({".parquet", ".arrow", ".csv", ".jsonl", ".ndjson", ".json"})
_READ = f"Allowed: files whose names end with {', '.join(sorted(_SUFFIXES))}"
_TABS = ".tsv"
_LOST_AND_FOUND = "lost+found"
"""At the root of a disk, and readable by its administrator alone."""
_PACKED = frozenset({".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip"})
_SHARD = re.compile(r"[-_.]?(\d+)-of-(\d+)(-[0-9a-f]{16})?$")
"""What the name of one of a known number of files ends with."""
_NUMBER = re.compile(r"(?:[-_]|(?<!\d)\.)(\d+)$")
"""What may be the number of a part; 1.5 is a version."""
_DIGITS = "0123456789"
_NUMBERED = frozenset(
    {"train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"}
    | {"part", "shard", "chunk"}
)
"""Names that take numbers without a sign between, as test2.jsonl; aime24.jsonl is a split of its own. The first are
those of `datasets` (SPLIT_KEYWORDS of its data_files.py)."""


def data_files(file: PromptFile) -> tuple[Path, ...]:
    """List the files, in the order in which they are read.

    Raises:
        DataError: The cache lacks the data set, or the Hub has no such names; the folder has no file, or several splits
            or data sets of which none is chosen; a folder cannot be read; the split has packed files, several formats,
            or not each of its parts once; or a file has tabs between its values.
    """
    path, name = file.location, file.hub_name
    if name is not None and name.snapshot is None:
        raise not_cached(name)
    if name is None and path.parts[:1] == (SCHEME,):
        raise DataError(
            f"hf://{'/'.join(path.parts[1:])} is no name of a data set of the Hub",
            "Allowed: hf://ORG/NAME, perhaps with a revision and a folder or a file: hf://openai/gsm8k@main/socratic",
            "Write the organisation and the name, as in the address of the data set's page",
        )
    if not path.is_dir():
        if file.split is not None and path.exists():
            raise DataError(
                f"{file.split_choice.format(file.split)}, and {file.written} is one file",
                "Allowed: a split of a folder that has several",
                "Leave out the split, or give the folder its own: [{path: DIR, split: NAME}, FILE]",
            )
        if _suffix(path) == _TABS and path.is_file():
            raise _with_tabs(file.written, "name another file")
        return (path,)
    if (path / "dataset_dict.json").is_file():
        splits = _list_of(path / "dataset_dict.json", "splits", str)
        return _saved_files(path / _choose(splits, file))
    if (path / "state.json").is_file():
        own = _content(path / "state.json").get("_split")
        if file.split is not None and own != file.split:
            raise _no_split(file, [own] if own else [])
        return _saved_files(path)
    return _found_files(file)


def not_cached(name: HubName, key: str = "") -> DataError:
    """Make the error of a data set that the cache lacks; `key` is what named it, with its equals sign."""
    return DataError(
        f"{key}{name}: the Hugging Face cache in {name.cached.parent} does not have it",
        "Allowed: a file or a folder, or a data set that is in the cache",
        f"Download it on a machine with a network: {name.download}",
    )


def _saved_files(path: Path) -> tuple[Path, ...]:
    entries = _list_of(path / "state.json", "_data_files", dict)
    return tuple(path / str(entry.get("filename")) for entry in entries)


def _content(file: Path) -> dict[str, Any]:
    """The object of a file; empty where it holds none."""
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _list_of(file: Path, key: str, kind: type) -> list[Any]:
    value = _content(file).get(key)
    if isinstance(value, list) and value and all(isinstance(each, kind) for each in value):
        return value
    raise DataError(
        f"{file} does not give a list as `{key}`",
        "Allowed: a folder as `datasets` saves it by save_to_disk",
        "Copy the whole folder again, or save the data set as Parquet: dataset.to_parquet(FILE)",
    )


def _found_files(file: PromptFile) -> tuple[Path, ...]:
    path, unpacked = file.location, dict[Path, Path]()
    for found in sorted(_files_below(path)):
        bare = found.with_suffix("") if _suffix(found) in _PACKED else found
        if _suffix(bare) in {*_SUFFIXES, _TABS}:
            unpacked[found] = bare
    in_parts = _in_parts(unpacked.values())
    by_place: dict[tuple[Path, str], list[Path]] = {}
    of_data: set[tuple[Path, str]] = set()
    for found, bare in unpacked.items():
        place = _place(path, bare, in_parts)
        by_place.setdefault(place, []).append(found)
        if _suffix(bare) != ".json" or place[1].lower() in _NUMBERED:
            of_data.add(place)
    by_place = {place: files for place, files in by_place.items() if place in of_data}
    if not by_place:
        raise DataError(
            f"The folder {file.written} holds no data",
            "Allowed: files of Parquet, Arrow, CSV or JSON lines (.jsonl), or a folder of `datasets` (save_to_disk)",
            "Check the path; a data set that was cloned from the Hub without its large files is downloaded again",
        )
    folders = {folder for folder, name in by_place if file.split in {None, name}}
    if len(folders) > 1:
        names = sorted(str(folder.relative_to(path)) for folder in folders)
        raise DataError(
            f"The folder {file.written} holds several data sets: {', '.join(names)}",
            "Allowed: one of them",
            f"Name its folder: {file.written}/{next(name for name in names if name != '.')}",
        )
    chosen = _choose(sorted({name for _, name in by_place}), file)
    files = tuple(found for (_, name), files in by_place.items() if name == chosen for found in files)
    _check_formats(file, files)
    _check_parts(file, files)
    return files


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the paths of what is neither a folder nor hidden.

    Links to folders come last: a folder of several names has one without links, if there is one.
    """
    walked = set[Path]()
    starts = deque([folder])
    while starts:
        for parent, folders, names in os.walk(starts.popleft(), onerror=_refuse_unreadable):
            here = Path(parent)
            if (real := real_path(here)) in walked:
                folders.clear()
                continue
            walked.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != _LOST_AND_FOUND)
            starts.extend(here / name for name in folders if (here / name).is_symlink())
            yield from (here / name for name in names if not name.startswith("."))


def _refuse_unreadable(error: OSError) -> None:
    with reading(Path(error.filename), "folder"):
        raise error


def _suffix(found: Path) -> str:
    return found.suffix.lower()


def _in_parts(files: Iterable[Path]) -> set[tuple[Path, str]]:
    """The names, each with its folder, whose files are numbered from 0 or 1 without a gap."""
    numbers: defaultdict[tuple[Path, str], set[int]] = defaultdict(set)
    for found in files:
        number = _NUMBER.search(found.stem)
        numbers[found.parent, _NUMBER.sub("", found.stem)].add(int(number[1]) if number else -1)
    return {name for name, found in numbers.items() if min(found) in {0, 1} and max(found) - min(found) < len(found)}


def _place(path: Path, found: Path, in_parts: Collection[tuple[Path, str]]) -> tuple[Path, str]:
    """The folder below `path` that a file's split lies in, and the split's name."""
    name = _SHARD.sub("", found.stem)
    if name == found.stem:
        unnumbered = _NUMBER.sub("", name)
        bare = unnumbered.rstrip(_DIGITS)
        is_part = not bare or bare.lower() in _NUMBERED or (found.parent, unnumbered) in in_parts
        name = unnumbered if is_part else name
    bare = name.rstrip(_DIGITS)
    if not bare:
        return (path, path.absolute().name) if found.parent == path else (found.parent.parent, found.parent.name)
    return found.parent, bare if bare.lower() in _NUMBERED else name


def _check_formats(file: PromptFile, files: Sequence[Path]) -> None:
    for found in files:
        if _suffix(found) == _TABS:
            raise _with_tabs(_written(file, found), "move it out of the folder")
        if _suffix(found) not in _SUFFIXES:
            raise DataError(f"{_written(file, found)} is packed", _READ, "Unpack it, or move it out of the folder")
    kinds = {_suffix(found): found for found in files}
    if len(kinds) > 1:
        first, second = list(kinds.values())[:2]
        raise DataError(
            f"{_written(file, first)} and {second.name} are one split in two formats, and may have the same rows",
            "Allowed: files of one format",
            f"Name the file that is meant: {_written(file, first)}",
        )


def _check_parts(file: PromptFile, files: Iterable[Path]) -> None:
    """Refuse parts in `-of-` that are incomplete or there twice, or that stand beside another file of their name.

    Parts are numbered from 0 or 1.
    """
    parts: dict[tuple[Path, str], dict[int, dict[int, Path]]] = {}
    for found in files:
        shard = _SHARD.search(found.stem)
        number, total = (int(shard[1]), int(shard[2])) if shard else (0, 0)
        of_name = parts.setdefault((found.parent, _SHARD.sub("", found.stem)), {})
        if (first := of_name.setdefault(total, {}).setdefault(number, found)) != found:
            raise _of_one_split(file, first, found)
    for of_name in parts.values():
        first, *others = (next(iter(numbered.values())) for numbered in of_name.values())
        if others:
            raise _of_one_split(file, first, others[0])
        total, numbered = of_name.popitem()
        if max(numbered) - min(numbered) >= total > 0:
            raise _of_one_split(file, numbered[min(numbered)], numbered[max(numbered)])
        if len(numbered) < total:
            raise DataError(
                f"{_written(file, first)} is one of {total:,} parts, of which {len(numbered):,} are there",
                "Allowed: all parts of a split",
                "Copy or download the others, or list the files that are meant in place of the folder",
            )


def _of_one_split(file: PromptFile, first: Path, second: Path) -> DataError:
    return DataError(
        f"{_written(file, first)} and {second.name} are one split, and may have the same rows",
        "Allowed: one file, or the parts of one numbering, each once, numbered from 0 or 1",
        "Move the others out of the folder, or list the files that are meant in place of it",
    )


def _written(file: PromptFile, found: Path) -> str:
    return f"{file.written}/{found.relative_to(file.location)}"


def _with_tabs(written: str, otherwise: str) -> DataError:
    return DataError(f"{written} has tabs between its values", _READ, f"Convert it, or {otherwise}")


def _choose(splits: Sequence[str], file: PromptFile) -> str:
    if file.split is None and len(splits) == 1:
        return splits[0]
    if file.split in splits:
        return str(file.split)
    raise _no_split(file, splits)


def _no_split(file: PromptFile, splits: Sequence[str]) -> DataError:
    may_be_parts = len({_NUMBER.sub("", split) for split in splits}) < len(splits)
    all_of_them = "; to read all, list them in place of the folder, or number the files from 0 or 1 without a gap"
    return DataError(
        f"{file.written} has no split {file.split}"
        if file.split
        else f"{file.written} has several splits, and none is chosen",
        f"Its splits: {', '.join(splits) or 'none that has a name'}",
        (f"Write {file.split_choice.format(splits[0])}" if splits else "Leave out the split")
        + (all_of_them if may_be_parts else ""),
    )
