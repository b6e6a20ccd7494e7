"""The policies of a run that are on the disk: the one that it began with, and those of its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError
from rollpacker.runtime.run.checkpoints import BEST, CheckpointStore

if TYPE_CHECKING:
    from pathlib import Path

AT = ("last", "best", "start", "all")
"""Names of policies; a step is one, too."""


def policies_at(run_dir: Path, at: str) -> dict[int, Path | None]:
    """Find policies by a name of `AT` or by the number of finished steps, ascending.

    Returns:
        By finished steps, the directory in Hugging Face format; None is that which the run began with.

    Raises:
        ConfigError: There is none of this name.
    """
    store = CheckpointStore(run_dir, keep=1)
    kept: dict[int, Path | None] = {}
    for step in store.steps():
        if ((folder := store.folder(step) / "trainer" / "model") / "config.json").is_file():
            kept[step] = folder
    best = store.folder(0).with_name(BEST)
    best_name = best.readlink().name if best.is_symlink() else ""
    named: dict[str, dict[int, Path | None]] = {
        "start": {0: None},
        "all": {0: None, **kept},
        "last": dict([*kept.items()][-1:]),
        "best": {step: folder for step, folder in kept.items() if store.folder(step).name == best_name},
    }
    found = named[at] if at in named else {int(at): kept[int(at)]} if at.isdecimal() and int(at) in kept else {}
    if not found:
        steps = ", ".join(map(str, kept)) or "none"
        raise ConfigError(
            f"at={at}: {run_dir} has no such checkpoint.",
            f"`at` is {', '.join(AT)}, or a step whose checkpoint was kept: {steps}. `best` needs run.keep_best=true.",
            f"Write at={[*kept][-1] if kept else 'start'}.",
        )
    return found
