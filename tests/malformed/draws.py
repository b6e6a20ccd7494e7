"""Malformed inputs, drawn from seeds: command lines, and files that were in order until something happened to them.

A draw is a command line for a folder that is in order (`ground`), a change to one file of it, or both. Nothing outside
the folder is written, whatever a command would do. Some draws are legal by chance: then the command may do its work.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rollpacker.cli.main import COMMANDS
from rollpacker.config.keys import legal_keys, section_names
from rollpacker.config.schema import RunConfig
from tests.malformed.ground import MODELLED, REAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One malformed input."""

    words: tuple[str, ...]
    """Of the command line, after `rollpacker`."""
    names: tuple[str, ...]
    """A clear error says one of them: what was wrong."""
    harm: str = ""
    """What was done to a file; empty where the command line alone is malformed."""
    change: Callable[[Path], None] = lambda _: None
    """Does it, in a fresh copy of the ground."""


def draw(seed: int) -> Draw:
    """Draw one input; the same seed gives the same."""
    rng = random.Random(seed)
    families = (
        _misspelt_key,
        _bad_value,
        _bad_value,
        _bad_option,
        _bad_words,
        _bad_file,
        _bad_file,
        _bad_run,
        _bad_run,
    )
    return rng.choice(families)(rng)


_SCORE = ("score", "reward=walk", "data.path=prompts.jsonl", "responses=responses.jsonl", "out=scores.jsonl")
_PLAN = ("plan", "gpus=2", "model=qwen2.5-7b", "workload.lengths=lengths.csv")
_AGAIN = ("train", *MODELLED, "run.num_steps=4", "run.dir=run", "run.resume=auto")
_OF_RUNS = (("report", "run"), ("trace", "run"), ("replay", "run"), ("jobs", "run"))

LEGAL = tuple(
    Draw(words=words, names=()) for words in (("check", *REAL), ("check", *MODELLED), _SCORE, _AGAIN, *_OF_RUNS)
)
"""In order as they are; what is wrong with a draw is what it adds."""


# Command lines

_TEXTS = (
    *("", "null", "true", "abc", "-1", "0", "1e308", "1e-320", "1" + "0" * 30, "nan", "inf", "-inf", "0x10", "1_000"),
    *("1,2", "[1,2]", "{a: 1}", "[", "}", "'", "\\", "~/x", "$HOME/x", "'$HOME/x'", "a b", "'a\nb'", "\x1b[31mred"),
    *("日本", "😀", ":", "*", ";", "@", "..", ".", "'[/red]'", "'[red]'", "x" * 300, "/dev/null", "/dev/zero"),
    *("/proc/self/mem", "model", "prompts.jsonl", "run", "!!python/object:x", "${oc.env:HOME}", "${nope}", "???"),
    *("../x", "\u202ex"),
)
"""Values of no key, and of some."""

_OUTWARD = ("run.dir", "hydra.run.dir", "cluster.scratch")
"""Keys whose value says where something is written: `train` gets them inside the trial's folder alone."""


def _misspelt_key(rng: random.Random) -> Draw:
    known = [*legal_keys(RunConfig), *section_names(RunConfig)]
    key = rng.choice(known)
    place = rng.randrange(len(key))
    wrong = rng.choice(
        (
            key[:place] + key[place + 1 :],
            key[:place] + key[place] + key[place:],
            key[:place] + rng.choice("abcxyz_") + key[place + 1 :],
            key.upper(),
            key.replace("_", "-"),
            key.replace(".", ".."),
            key.rpartition(".")[2],
            f"{key}.x",
            f".{key}",
            f"--{key}",
            f"+{key}",
            f"~{key}",
        )
    )
    word = wrong if wrong.startswith("~") else f"{wrong}={rng.choice(('1', 'abc', 'true', ''))}"
    return _asked(rng, word, names=(wrong, wrong.lstrip("+~-."), key.partition(".")[0]))


def _bad_value(rng: random.Random) -> Draw:
    key = rng.choice([key for key in legal_keys(RunConfig) if key not in _OUTWARD])
    value = rng.choice(_TEXTS)
    return _asked(rng, f"{key}={value}", names=(key, key.rpartition(".")[2], value.strip("'") or key))


def _bad_option(rng: random.Random) -> Draw:
    group = rng.choice(
        ("system", "engine", "trainer", "reward", "backend", "model", "hardware", "experiment", "cluster")
    )
    option = rng.choice((*_TEXTS, "rolpacker", "verl2", "torchh", "../x", "verl,rollpacker"))
    if rng.random() < 0.2:
        return _asked(rng, f"{group}={option}", f"{group}={rng.choice(_TEXTS)}", names=(group, option))
    return _asked(rng, f"{group}={option}", names=(group, option))


def _asked(rng: random.Random, *words: str, names: tuple[str, ...]) -> Draw:
    """Words for a command that takes keys; they come last, so that they hold."""
    train = ("train", *MODELLED, "run.num_steps=2", "run.dir=new")
    own = rng.choice((("check", *REAL), ("check", *MODELLED), train, _SCORE, _PLAN))
    return Draw(words=(*own, *words), names=names)


def _bad_words(rng: random.Random) -> Draw:
    odd = rng.choice([text for text in _TEXTS if not text.startswith("/")])
    command = rng.choice([command.name for command in COMMANDS if command.name not in {"demo", "doctor", "profile"}])
    place = rng.choice(("out", "step", "steps", "seeds", "jobs", "gpus", "rounds", "responses", "reference", "watch"))
    words = rng.choice(
        (
            (odd,),
            (command[:-1], odd),
            ("report", odd),
            ("trace", odd),
            ("replay", odd),
            ("jobs", odd),
            ("report", "run", odd),
            ("report", "run", f"step={odd}"),
            ("trace", "run", f"steps={odd}"),
            ("calibrate", "out=h.yaml", f"reference={odd}"),
            ("plan", f"gpus={odd}", "model=qwen2.5-7b"),
            ("plan", "gpus=2", f"model={odd}"),
            ("score", "reward=walk", "data.path=prompts.jsonl", f"responses={odd}", "out=scores.jsonl"),
            (rng.choice(("report", "trace", "replay")), "run", f"{place}={odd}"),
            (rng.choice(("report", "trace", "replay", "jobs")), "--watch"),
        )
    )
    return Draw(words=words, names=(*words[-1].split("=")[::-1], words[0], odd.strip("'")))


# Files


def _bad_file(rng: random.Random) -> Draw:
    """A file that a command reads, made unreadable, truncated, or of another kind."""
    name, words = rng.choice(
        (
            ("prompts.jsonl", ("check", *REAL)),
            ("prompts.jsonl", _SCORE),
            ("responses.jsonl", _SCORE),
            ("lengths.csv", _PLAN),
            ("lengths.csv", ("check", *MODELLED, "workload.lengths=lengths.csv")),
            ("model/config.json", ("check", *REAL)),
            ("model/tokenizer.json", ("check", *REAL)),
            ("model/tokenizer_config.json", ("check", *REAL)),
            ("model/generation_config.json", ("check", *REAL)),
            ("model/model.safetensors", ("check", *REAL)),
        )
    )
    return _harmed(rng, name, words)


def _bad_run(rng: random.Random) -> Draw:
    """A file of a finished run that is read again."""
    words = rng.choice((_AGAIN, _AGAIN, *_OF_RUNS))
    name = rng.choice(
        (
            *("run/config.yaml", "run/status.json", "run/run.json", "run/metrics/manifest.json"),
            *("run/events/attempt-000.jsonl", "run/metrics/steps/step-000001.parquet"),
            *("run/metrics/responses/step-000002.parquet", "run/checkpoints/step-000003/meta.json"),
            *("run/checkpoints/step-000003/order.json", "run/checkpoints/step-000003/scheduler.json"),
            *("run/checkpoints/step-000003", "run/checkpoints", "run/metrics", "run/events", "run"),
        )
    )
    return _harmed(rng, name, words)


def _harmed(rng: random.Random, name: str, words: tuple[str, ...]) -> Draw:
    harm, seed = rng.choice((*_CONTENTS, *_PLACES)), rng.random()

    def change(folder: Path) -> None:
        if harm in _CONTENTS:
            _write(folder / name, harm, random.Random(seed))
        else:
            _put_in_its_place(folder / name, harm)

    return Draw(words=words, names=(name, Path(name).name, Path(name).stem), harm=f"{name}: {harm}", change=change)


_CONTENTS = (
    *(
        "empty",
        "truncated",
        "random bytes",
        "random bytes in the middle",
        "NUL bytes",
        "UTF-16",
        "compressed",
        "a list",
    ),
    *("an object", "a number", "deep", "one value", "one value", "one value", "a line lost", "every line twice"),
)
"""What a file can hold instead."""

_PLACES = ("missing", "a folder", "a FIFO", "a device", "a link to itself", "a link to nothing")
"""What can be where a file was."""


def _write(path: Path, harm: str, rng: random.Random) -> None:
    """Damage a file, or one of a folder's."""
    if path.is_dir():
        path = rng.choice(sorted(file for file in path.rglob("*") if file.is_file()))
    path.write_bytes(_damaged(path.read_bytes(), harm, rng))


def _damaged(content: bytes, harm: str, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    place = rng.randrange(1 + len(content))
    damaged: dict[str, bytes] = {
        "empty": b"",
        "truncated": content[:place],
        "random bytes": rng.randbytes(200),
        "random bytes in the middle": content[:place] + rng.randbytes(50) + content[place + 50 :],
        "NUL bytes": bytes(len(content)),
        "UTF-16": content.decode(errors="replace").encode("utf-16"),
        "compressed": gzip.compress(content),
        "a list": b"[]\n",
        "an object": b"{}\n",
        "a number": b"1\n",
        "deep": b"[" * 100_000,
        "one value": _with_another_value(content, rng),
        "a line lost": b"".join(lines[: len(lines) // 2] + lines[len(lines) // 2 + 1 :]),
        "every line twice": b"".join(2 * lines),
    }
    return damaged[harm]


def _with_another_value(content: bytes, rng: random.Random) -> bytes:
    """Replace or drop one value of a file of JSON, or of one of its lines."""
    lines = content.decode(errors="replace").splitlines() or [""]
    number = rng.randrange(len(lines))
    for part in (content, lines[number].encode()):
        try:
            changed = json.dumps(_changed(json.loads(part), rng))
        except ValueError:
            continue
        if part is content:
            return changed.encode()
        return "\n".join([*lines[:number], changed, *lines[number + 1 :], ""]).encode()
    return content.replace(b"1", b"nan", 1)


def _changed(value: object, rng: random.Random) -> object:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.2:
            return {other: value[other] for other in value if other != key}
        return value | {key: _changed(value[key], rng)}
    strange = ("", "abc", "\x1b[31m\x00", 10**30, 1e308, float("nan"), -1, 0, 1.5, None, True, [], [[]], {}, {"a": 1})
    return rng.choice(strange)


def _put_in_its_place(path: Path, harm: str) -> None:
    path.rename(path.with_name("moved"))
    match harm:
        case "a folder":
            path.mkdir()
        case "a FIFO":
            os.mkfifo(path)
        case "a device":
            _make_device(path)
        case "a link to itself":
            path.symlink_to(path.name)
        case "a link to nothing":
            path.symlink_to("nothing")


def _make_device(path: Path) -> None:
    """Make a device without an end, as /dev/zero is; a link to that where only root may make one."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")
