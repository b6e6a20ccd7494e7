"""`rollpacker export`: writes the model of a checkpoint as a Hugging Face folder."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rollpacker.cli.command_help import CommandHelp
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from rollpacker.cli.arguments import Arguments
    from rollpacker.data.model_export import ExportDtype

SETTINGS = ("at", "out", "dtype")
DTYPES = ("bfloat16", "float32")

HELP = CommandHelp(
    purpose=(
        "Write the model of a checkpoint as a folder that transformers and vLLM load: weights, tokenizer, and a card "
        "from the run's configuration and held-out scores. A run leaves such a folder of its last step by itself, "
        "RUN/model (model.export_dtype)."
    ),
    usage="RUN [at=best|last|STEPS] out=DIR [dtype=bfloat16|float32]",
    arguments=(
        ("RUN", "The run.dir of a run, finished or not."),
        (
            "at",
            "The checkpoint: with the best held-out score, the last one, or the one after STEPS. Default: last",
        ),
        ("out", "The folder to write. One that exists is never replaced."),
        ("dtype", "Of the weights. Default: bfloat16"),
    ),
    examples=("rollpacker export runs/x out=my-model", "rollpacker export runs/x at=best out=my-model"),
)


def run(arguments: Arguments) -> None:
    """Write the folder, and say what it holds."""
    from rollpacker.cli.settings import choice, parse_runs

    (run_dir,), given = parse_runs("export", arguments.words, SETTINGS, max_runs=1, example="runs/x out=my-model")
    dtype = cast("ExportDtype", choice({"dtype": given["dtype"] or DTYPES[0]}, "dtype", DTYPES))

    from rollpacker.cli.screen import output
    from rollpacker.config.words import counted
    from rollpacker.runtime.run.exporting import export_at

    out = _new_folder(given["out"])
    made = out.with_name(f"{out.name}-{secrets.token_hex(4)}")
    step = export_at(run_dir, given["at"] or "last", made, dtype)
    _publish(made, out)
    output().print(f"{out}: the model of {run_dir} after {counted(step, 'step')}, in {dtype}.", soft_wrap=True)


def _publish(made: Path, out: Path) -> None:
    """Give the folder its name; renaming replaces nothing but an empty folder."""
    try:
        made.rename(out)
    except OSError as error:
        problem = "appeared while the model was written" if os.path.lexists(out) else f"cannot be: {error.strerror}"
        raise ConfigError(
            f"out={out} {problem}.",
            "What is there is never replaced.",
            f"The model is complete in {made}.",
        ) from None


def _new_folder(text: str) -> Path:
    from rollpacker.runtime.run.folder_checks import check_folder

    if not text:
        raise ConfigError("`rollpacker export` was given no out=DIR.", "It is a new folder.", "Add out=my-model.")
    out = Path(text)
    if out.exists() or out.is_symlink():
        raise ConfigError(f"out={out} exists.", "What is there is never replaced.", "Choose another out.")
    check_folder("out", out)
    return out
