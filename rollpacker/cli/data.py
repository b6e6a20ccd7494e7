"""`rollpacker data`: converts published data sets that were downloaded into prompt files."""

from __future__ import annotations

import shlex
from pathlib import Path

from rollpacker.cli.arguments import OVERWRITE, Arguments, is_overwriting, refuse_other_format
from rollpacker.cli.command_help import CommandHelp
from rollpacker.core.errors import ConfigError

SETTINGS = {"from": "", "out": "", "split": "", "overwrite": ""}
_EXAMPLE = "gsm8k from=DIR split=train out=gsm8k.jsonl"

HELP = CommandHelp(
    purpose=(
        "Convert a published data set, which you have downloaded (`hf download NAME --repo-type dataset --local-dir "
        "DIR`), into a prompt file. `list` names the sets. Parquet and others can also be trained on as they are: see "
        "data.columns."
    ),
    usage="list | NAME from=DIR out=FILE [split=NAME] [overwrite=true]",
    arguments=(
        ("list", "Print the data sets that it knows."),
        ("NAME", "One of them; or rows, which writes any table as JSON lines, without change."),
        ("from", "The folder or the file, or hf://ORG/NAME in the Hugging Face cache."),
        ("out", "The file to write, or - for standard output."),
        ("split", "Which one, where the folder has several, such as train or test."),
        OVERWRITE,
    ),
    examples=(f"rollpacker data {_EXAMPLE}", "rollpacker data list"),
)


def run(arguments: Arguments) -> None:
    """Convert one data set, or list all."""
    from rollpacker.cli.screen import facts, heading, output
    from rollpacker.cli.settings import parse_settings
    from rollpacker.config.keys import nearest
    from rollpacker.config.words import in_hydra
    from rollpacker.data.converters import CONVERTERS, Converted, convert_rows, files_read
    from rollpacker.data.jsonl import MAX_LINE_BYTES
    from rollpacker.metrics.outputs import check_output, is_stream, open_output
    from rollpacker.paths import real_path
    from rollpacker.runtime.run.folder_checks import check_creatable

    names, settings = parse_settings("data", arguments.words, SETTINGS, example=_EXAMPLE)
    if names == ["list"]:
        entries = [
            (name, f"{each.source}{f'; reward={each.reward}' if each.reward else ''}")
            for name, each in CONVERTERS.items()
        ]
        output().print(heading("Data sets (rollpacker data NAME from=DIR out=FILE)"), facts(entries), sep="\n")
        return
    if len(names) != 1 or names[0] not in CONVERTERS:
        close = nearest(names[0], CONVERTERS) if names else ()
        raise ConfigError(
            f"`rollpacker data` was given {' '.join(names) or 'no data set'}.",
            f"It takes list, or one of {', '.join(CONVERTERS)}.",
            f"Write rollpacker data {close[0]} from=DIR out=FILE"
            if close
            else f"For example: rollpacker data {_EXAMPLE}",
        )
    for name in ("from", "out"):
        if not settings[name]:
            raise ConfigError(
                f"`{name}` is not set.", "It takes from=DIR and out=FILE.", f"For example: rollpacker data {_EXAMPLE}"
            )
    converter, source, out = CONVERTERS[names[0]], Path(settings["from"]), Path(settings["out"])
    split = settings["split"] or None
    if str(out) != "-" and real_path(out) in map(real_path, (source, *files_read(converter, source, split))):
        raise ConfigError(f"out={out} is also read.", "It is another file than those of `from`.", "Choose another out.")
    refuse_other_format(out)
    check_output(out, can_replace=is_overwriting(settings))
    if str(out) != "-":
        check_creatable("out", out)
    counts = Converted()
    with open_output(out) as file:
        for line in convert_rows(converter, source, split, counts):
            file.write(line)
    skipped = [
        (counts.num_repeated, "left out, the same as an earlier row"),
        (counts.num_contradicted, "left out, the question of an earlier row with another answer"),
        (counts.num_too_long, f"left out, longer than the {MAX_LINE_BYTES >> 20} MB that are read of a line"),
    ]
    prompts = shlex.quote(f"data.path={in_hydra(str(out))}")
    following = f"rollpacker check model.path=DIR {prompts} reward={converter.reward}"
    output(beside=out).print(
        heading(f"{converter.name}, from {settings['from']}"),
        facts(
            [
                ("rows", f"{counts.num_rows:,}"),
                *((f"{number:,}", text) for number, text in skipped if number),
                *([("domain", converter.domain), ("reward", f"reward={converter.reward}")] if converter.domain else []),
                *([] if is_stream(out) else [("written to", str(out))]),
                *([("next", following)] if converter.reward and not is_stream(out) else []),
            ]
        ),
        sep="\n",
    )
