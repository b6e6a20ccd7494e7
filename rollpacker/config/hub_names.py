"""Names of the Hugging Face Hub, and where the local cache has what they name.

    Qwen/Qwen2.5-7B-Instruct            a model
    Qwen/Qwen2.5-7B-Instruct@COMMIT     one revision of it: a branch, a tag or a commit
    hf://openai/gsm8k/main              a folder or a file of a data set; also hf://datasets/openai/gsm8k/main
    hf://openai/gsm8k@refs/pr/1/main    the same of a pull request, or of a conversion: refs/convert/parquet

Invariant: a name with a commit means the same files everywhere and for ever; a run records no other.
The layout of the cache is huggingface_hub's (its guide "Understand caching"): `models--ORG--NAME/refs/BRANCH` holds a
commit, and `snapshots/COMMIT` the files. Nothing here is imported from it but the cache's place, so that this is fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

SCHEME = "hf:"

_PART = r"[A-Za-z0-9][\w.-]*"
_REVISION = rf"refs/pr/\d+|refs/convert/{_PART}|{_PART}"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@({_REVISION}))?(?:/(.+))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository of the Hub, or a part of it."""

    kind: Literal["model", "dataset"]
    repository: str
    """`ORG/NAME`."""
    revision: str | None
    """A branch, a tag, a commit, or one of `refs/`; None is the branch main."""
    inside: str
    """A folder or a file of it; empty is all of it."""

    def __str__(self) -> str:
        revision, inside = f"@{self.revision}" if self.revision else "", f"/{self.inside}" if self.inside else ""
        return f"{'' if self.kind == 'model' else 'hf://'}{self.repository}{revision}{inside}"

    @property
    def cached(self) -> Path:
        """The repository's folder in the cache, whether it is there or not."""
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE) / f"{self.kind}s--{self.repository.replace('/', '--')}"

    @property
    def snapshot(self) -> Path | None:
        """The files of the revision in the cache; None when they are not there."""
        revision = self.revision or "main"
        ref = self.cached / "refs" / revision
        commit = ref.read_text().strip() if ref.is_file() else revision
        snapshot = self.cached / "snapshots" / commit
        return snapshot if commit and snapshot.is_dir() else None

    def at(self, snapshot: Path) -> HubName:
        """The same with the commit of a snapshot."""
        return replace(self, revision=snapshot.name)

    @property
    def download(self) -> str:
        """The command that brings it into the cache."""
        kind = " --repo-type dataset" if self.kind == "dataset" else ""
        return f"hf download {self.repository}{kind}" + (f" --revision {self.revision}" if self.revision else "")


def parse_hub_name(path: Path, kind: Literal["model", "dataset"]) -> HubName | None:
    """Read a path of the configuration as a name; None where it cannot be one."""
    text = str(path).removeprefix(SCHEME).lstrip("/")
    match = _NAME.fullmatch(text.removeprefix("datasets/") if kind == "dataset" else text)
    if match is None or path.is_absolute() or ".." in path.parts:
        return None
    repository, revision, inside = match.groups()
    if kind == "model" and inside:
        return None
    return HubName(kind=kind, repository=repository, revision=revision, inside=inside or "")
