"""The command that runs Python on a node inside an image, and the checks of an image before a job is submitted.

    bash -c slurm/container.sh      on the node: picks the scratch folder, adds what only the node knows
      apptainer exec --bind ... IMAGE
        env NAME=VALUE ...          inside: wins over the image's own environment and over the submitting shell's
          python3

The script is handed over as text, because a job may be submitted from inside an image, whose files no node sees. What
the image sees of the host: the home directory and the current folder, as the runtime does it, and the run's own folders
at their own paths, so that paths mean the same inside and outside.

`container_command` is pure; `paths_to_read` and `check_container` look at files.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.cluster import ContainerSection
from rollpacker.core.errors import ConfigError
from rollpacker.paths import real_path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (Linux's name for it)
"""Where Ray's object store and NCCL have their buffers; some sites give an image only 64 MB of its own there."""

_SIF_MAGIC = b"SIF_MAGIC"
_SIF_MAGIC_OFFSET = 32
"""Behind the line that makes the file executable."""
_CLEANING_OPTIONS = frozenset({"-e", "--cleanenv", "-C", "--containall"})


def container_command(
    section: ContainerSection,
    *,
    has_gpus: bool,
    write_paths: Sequence[Path],
    read_paths: Sequence[Path],
    scratch: Sequence[str],
) -> tuple[str, ...]:
    """Render the command before `-m module`.

    Args:
        section: With an image.
        has_gpus: Whether the job asks for any.
        write_paths: Folders; everything that the job writes lies below one of them.
        read_paths: Files and folders that it only reads.
        scratch: As `cluster.scratch`.

    Raises:
        ConfigError: A path cannot be bound.
    """
    assert section.image is not None
    variables = {"TMPDIR": "/tmp", **section.environment}  # noqa: S108  (where the script binds the scratch folder)
    return (
        *("bash", "-c", _script(), "container"),
        *(section.runtime, *scratch, "--"),
        *_binds(read_paths, write_paths),
        *(bind if ":" in bind else f"{bind}:{bind}" for bind in section.binds),
        "--",
        *(["--nv"] if has_gpus else []),
        *(*section.options, str(section.image.absolute())),
        *("env", *(f"{name}={value}" for name, value in variables.items()), section.python),
    )


def paths_to_read(config: RunConfig) -> tuple[Path, ...]:
    """Collect what a run reads, and where links in it lead: a model directory of the Hugging Face hub is all links."""
    given = [*_inputs(config), config.data.chat_template]
    if config.workload is not None:
        given.append(config.workload.lengths)
    given += [config.reward.judge.template, *_folders_of_own_code(config)]
    if config.hardware is not None:
        given.append(config.hardware.profile)
    given += [
        config.reward.sandbox.packages,
        config.elastic.modelled.counts,
        config.data.solve_rates,
        config.engine.profile,
        config.engine.vllm.draft_model,
    ]
    paths: dict[Path, None] = {}
    for path in given:
        if path is not None:
            paths |= dict.fromkeys((path.absolute(), real_path(path), *_link_targets(path)))
    return tuple(paths)


def paths_to_write(run_dir: Path, sweep_folder: Path) -> tuple[Path, ...]:
    """List the folder of a sweep, and what leads to it by links in the name of the run's own folder, which lies in it.

    A run takes its folder by the name that it was given.
    """
    real_sweep_folder, given = real_path(sweep_folder), run_dir.absolute()
    inside = (path for path in (given, *given.parents) if real_path(path).is_relative_to(real_sweep_folder))
    *_, outermost = inside
    return real_sweep_folder, outermost


def _inputs(config: RunConfig) -> Iterator[Path]:
    """Models and prompts; of a name of the Hub all that the cache has, since the job resolves it again."""
    for model in (config.model, config.reward.judge.model):
        if model.path is not None:
            yield model.hub_name.cached if model.hub_name else model.path
    for file in (*(config.data.path or ()), *config.evaluation.files):
        yield file.hub_name.cached if file.hub_name else file.path


def _folders_of_own_code(config: RunConfig) -> Iterator[Path]:
    """Folders of the files that are named FILE.py:NAME, which may import what lies beside them."""
    names: list[str | None] = [check.check.source for scoring in config.reward.scorings for check in scoring]
    names += [config.trainer.loss, config.trainer.advantage, config.tracker.plugin, *config.run.callbacks]
    if (environment := config.environment) is not None:
        names += [environment.env, environment.loop, *environment.tools]
    for name in names:
        place = (name or "").rpartition(":")[0]
        if place.endswith(".py"):
            yield Path(place).parent


def check_container(
    section: ContainerSection, setup: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> list[ConfigError]:
    """Find what would stop every job of this image, without submitting one; empty without an image.

    Args:
        section: Of one run.
        setup: As `cluster.setup`: lines that may load the runtime on the nodes.
        environment: Of this process, which may itself be in an image, and then sees neither runtime nor image.
    """
    if section.image is None:
        return []
    mistakes = [*_option_mistakes(section.options)]
    is_inside = "APPTAINER_CONTAINER" in environment or "SINGULARITY_CONTAINER" in environment
    if not (is_inside and not section.image.exists()):
        mistakes += _image_mistakes(section.image)
    if not (is_inside or setup) and shutil.which(section.runtime, path=environment.get("PATH")) is None:
        mistakes.append(
            ConfigError(
                f"cluster.container.runtime={section.runtime} is not on the PATH.",
                "The nodes run the image with it.",
                "Load its module before you submit, choose the other of apptainer and singularity, or name the lines "
                "that load it on the nodes: cluster.setup=['module load apptainer'].",
            )
        )
    return mistakes


def _script() -> str:
    """The wrapper without its comments; it lies beside this file when installed, and in `slurm/` in a checkout."""
    installed = Path(__file__).with_name("container.sh")
    file = installed if installed.is_file() else Path(__file__).parents[2] / "slurm" / "container.sh"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() and not line.startswith("#"))


def _binds(read_paths: Sequence[Path], write_paths: Sequence[Path]) -> Iterator[str]:
    """Outer folders first, since a later bind hides what lies below it; of two for one path the writable one counts."""
    modes = {str(path.absolute()): ":ro" for path in read_paths}
    modes |= {str(path.absolute()): "" for path in (*write_paths, SHARED_MEMORY)}
    for path in sorted(modes):
        if ":" in path or "," in path:
            raise ConfigError(
                f"{path} cannot be seen in a container.",
                "The runtime separates what it binds by colons and commas.",
                "Rename it.",
            )
        yield f"{path}:{path}{modes[path]}"


def _link_targets(path: Path) -> Iterator[Path]:
    """The folders outside of a folder that links directly in it lead to."""
    if path.is_dir():
        folder = real_path(path)
        for entry in sorted(path.iterdir()):
            target = real_path(entry)
            if entry.is_symlink() and not target.is_relative_to(folder):
                yield target if target.is_dir() else target.parent


def _option_mistakes(options: Sequence[str]) -> Iterator[ConfigError]:
    for option in options:
        if option in _CLEANING_OPTIONS:
            yield ConfigError(
                f"cluster.container.options has {option}.",
                "It keeps Slurm's variables out of the image, by which a rank knows its number and its job.",
                "Leave it out; --contain alone is fine.",
            )


def _image_mistakes(image: Path) -> Iterator[ConfigError]:
    if not image.exists():
        yield ConfigError(
            f"cluster.container.image={image} does not exist.",
            "It is a SIF file or an unpacked image, on a file system that the nodes see; a registry's name is neither.",
            f"Build it in a checkout of RollPacker: slurm/build_image.sh {shlex.quote(image.name)}; or fetch it: "
            "apptainer pull FILE docker://...",
        )
    elif not _is_image(image):
        yield ConfigError(
            f"cluster.container.image={image} is no image.",
            "An image is a SIF file, or a folder that `apptainer build --sandbox` has made.",
            "Name another one, or build it in a checkout of RollPacker: slurm/build_image.sh rollpacker.sif",
        )
    elif not os.access(image, os.R_OK):
        yield ConfigError(
            f"cluster.container.image={image} is not readable.",
            "Its jobs run as your user.",
            f"Ask its owner for: chmod a+r {shlex.quote(str(image))}",
        )


def _is_image(image: Path) -> bool:
    if image.is_dir():
        return (image / ".singularity.d").is_dir()
    try:
        with image.open("rb") as file:
            file.seek(_SIF_MAGIC_OFFSET)
            return file.read(len(_SIF_MAGIC)) == _SIF_MAGIC
    except PermissionError:
        return True  # reported as not readable
