"""Pins the names of the Hugging Face Hub in a configuration to what the local cache has, before a run begins.

    Qwen/Qwen2.5-7B-Instruct  ->  Qwen/Qwen2.5-7B-Instruct@COMMIT

Invariant: what follows sees commits only, so every process of a run, and every later attempt, reads the same files: a
name without a revision is the commit that the record of its run has under the same key, whatever the branch has become.
Only a model is downloaded, and only where the caller says so.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from rollpacker.config.hub_names import HubName, parse_hub_name
from rollpacker.config.keys import value_at
from rollpacker.config.mistakes import collected, raise_mistakes
from rollpacker.config.record import read_record
from rollpacker.core.errors import DataError, ModelError, UserError, WorldError
from rollpacker.data.file_listing import not_cached
from rollpacker.data.weight_files import weight_files

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.data import PromptFile
    from rollpacker.config.sections.model import ModelSection, PolicySection

_Named = TypeVar("_Named", "ModelSection", "PolicySection", "PromptFile")
_Model = TypeVar("_Model", "ModelSection", "PolicySection")
_Place = tuple[str, str, str]
"""The key of the configuration that has a name, its repository, and what is named inside."""

_KINDS: Final[dict[str, Literal["model", "dataset"]]] = {
    **dict.fromkeys(("model.path", "reward.judge.model.path"), "model"),
    **dict.fromkeys(("data.path", "evaluation.path"), "dataset"),
}
"""What each key names."""

_UNUSED = ("*.pth", "*.pt", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*")
"""Files of a model's repository that no run reads."""
_OLD_WEIGHTS = ("*.bin", "*.bin.index.json")
"""Read only where there are no others."""


def with_pinned_names(config: RunConfig, *, can_download: bool) -> RunConfig:
    """Pin every model and data set that a configuration names.

    Args:
        config: Of the run.
        can_download: True in the first process of a training run outside of a job.

    Raises:
        UserError: The cache lacks what is named, and it may not be downloaded.
        WorldError: A download failed.
    """
    recorded = _recorded_commits(config.run.dir)
    mistakes: list[UserError] = []

    def pinned(key: str, section: _Named, *, may_download: bool) -> _Named:
        path = section.path
        with collected(mistakes):
            if (name := section.hub_name) is not None:
                commits = recorded[key, name.repository, name.inside]
                commit = commits.pop(0) if commits else None  # a list may have the same file of two revisions
                name = replace(name, revision=name.revision or commit)
                path = Path(str(_pinned(key, name, may_download=may_download)))
        return section.model_copy(update={"path": path})

    def pinned_model(key: str, section: _Model) -> _Model:
        return pinned(key, section, may_download=can_download and section.download == "auto")

    def pinned_files(key: str, files: tuple[_Named, ...] | None) -> tuple[_Named, ...] | None:
        return files and tuple(pinned(key, file, may_download=False) for file in files)

    of_judge = pinned_model("reward.judge.model.path", config.reward.judge.model)
    judge = config.reward.judge.model_copy(update={"model": of_judge})
    held_out = pinned_files("evaluation.path", config.evaluation.path)
    given = {
        "model": pinned_model("model.path", config.model),
        "data": config.data.model_copy(update={"path": pinned_files("data.path", config.data.path)}),
        "evaluation": config.evaluation.model_copy(update={"path": held_out}),
        "reward": config.reward.model_copy(update={"judge": judge}),
    }
    raise_mistakes(mistakes)
    return config.model_copy(update=given)


def _pinned(key: str, name: HubName, *, may_download: bool) -> HubName:
    snapshot = name.snapshot
    if snapshot is not None and _is_whole(name, snapshot):
        return name.at(snapshot)
    if may_download:
        return name.at(_download(name))
    raise _not_cached(key, name, snapshot)


def _is_whole(name: HubName, snapshot: Path) -> bool:
    """A tool that looked at a configuration or a tokenizer alone has left a model without weights."""
    try:
        return name.kind == "dataset" or bool(weight_files(snapshot))
    except ModelError:
        return False


def _not_cached(key: str, name: HubName, snapshot: Path | None) -> UserError:
    if name.kind == "dataset":
        return not_cached(name, f"{key}=")
    there = "has it without all of its weights" if snapshot else "does not have it"
    return ModelError(
        f"{key}={name} is no directory here, and the Hugging Face cache in {name.cached.parent} {there}",
        "Allowed: a directory in Hugging Face format, or the name of a model in the cache; with "
        f"{key.removesuffix('path')}download=auto `rollpacker train` downloads it, but not in a job",
        f"Check the name, or download it on a machine with a network: {name.download}",
    )


def _download(name: HubName) -> Path:
    from huggingface_hub import snapshot_download

    print(f"Downloading {name} into {name.cached.parent} ...", file=sys.stderr)  # noqa: T201  may take minutes
    try:
        for unused in ([*_UNUSED, *_OLD_WEIGHTS], list(_UNUSED)):
            found = Path(snapshot_download(name.repository, revision=name.revision, ignore_patterns=unused))
            if _is_whole(name, found):
                break
    except Exception as error:  # of the network, the Hub or the disk: it has no class of its own
        raise WorldError(
            f"{name} cannot be downloaded: {type(error).__name__}: {' '.join(str(error).split())}",
            "The Hub has models as ORG/NAME; some need a licence to be accepted, and a token (`hf auth login`)",
            f"Check the name and the network, or give a directory as model.path; by hand: {name.download}",
        ) from error
    return found


def _recorded_commits(run_dir: Path) -> defaultdict[_Place, list[str]]:
    """Those in the record of a run, in its order; none where it is broken, which the check of `run.dir` reports."""
    commits: defaultdict[_Place, list[str]] = defaultdict(list)
    try:
        record = read_record(run_dir) or {}
    except DataError:
        return commits
    for key, kind in _KINDS.items():
        value = value_at(record, key)
        for file in value if isinstance(value, list) else [value]:
            path = file.get("path") if isinstance(file, dict) else file
            name = parse_hub_name(Path(path), kind) if isinstance(path, str) else None
            if name is not None and name.revision is not None:
                commits[key, name.repository, name.inside].append(name.revision)
    return commits
