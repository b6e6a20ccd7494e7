"""How programs of responses are run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import NOT_IN_FINGERPRINT, Count, PositiveSeconds, Section
from rollpacker.paths import real_path


class SandboxSection(Section):
    """The code sandbox: Python programs of responses against test cases, each in a process tree of its own."""

    isolation: Literal["bubblewrap", "rlimits"] = "bubblewrap"
    """`bubblewrap`: namespaces of its own, no network, of this machine only Python can be read. `rlimits`: limits of
    resources alone, where user namespaces are missing; a program then may read what the run's user may, write where it
    may, use the network, and end the user's processes, the run's too."""
    num_workers: Annotated[Count | None, NOT_IN_FINGERPRINT] = Field(None, ge=1)
    """Programs at the same time; null: as many as the cores that the reward's process may use. Where programs may never
    end, several for each core keep the others running: limits count a program's own time."""
    max_case_s: PositiveSeconds = 30.0
    """The longest limit of a test case: with system.reward=async or batch that of every one, with scheduled that of one
    that no program has passed (the paper's T_max). It counts the program's own time, computing or sleeping; not the
    time that it waits for a core."""
    memory_mb: Count = Field(1024, ge=64)
    """Of all processes of a program together, with kernel memory: file names, sockets, tables."""
    processes: Count = Field(32, ge=1)
    """Processes and threads of a program at a time."""
    files_mb: Count = Field(64, ge=1)
    """That a program may write to its /tmp, in memory; also of any one file."""
    open_files: Count = Field(64, ge=16)
    """Of each process."""
    output_mb: Count = Field(16, ge=1)
    """That a program may write or return per test case."""
    packages: Path | None = None
    """A folder of installed packages that programs may import beside the standard library, such as one made by `pip
    install --target`; it is mounted read-only."""

    @model_validator(mode="after")
    def _packages_are_there(self) -> Self:
        if self.packages is not None and not self.packages.is_dir():
            raise ValueError(
                f"reward.sandbox.packages={self.packages} is no folder.\n"
                "It is a folder of packages that programs may import.\n"
                "Make it by `pip install --target FOLDER PACKAGE`, or leave it out."
            )
        return self

    def bounds_json(self) -> str:
        """What a sandbox may take, for the process that makes it."""
        names = {"isolation", "memory_mb", "processes", "files_mb", "open_files", "output_mb"}
        packages = None if self.packages is None else str(real_path(self.packages))
        return json.dumps(self.model_dump(include=names) | {"packages": packages})
