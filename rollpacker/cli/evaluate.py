"""`rollpacker evaluate`: scores a policy on held-out prompts, by a run of no steps.

So it takes the engines, the reward and the placement of a run, its checks and its ways to end; the table is read from
what that run wrote. Its folder goes when the command ends, unless `run.dir` names one, or a process failed: then its
logs say why.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollpacker.cli.arguments import OVERWRITE, Arguments, is_overwriting
from rollpacker.cli.command_help import KEYS_OF_TRAIN, CommandHelp
from rollpacker.cli.temporary_folder import temporary_folder
from rollpacker.config.words import key_of, quoted, replaced, shown
from rollpacker.core.errors import ConfigError, EngineFailed, Interrupted, ModelError, UserError, WorldError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from rollpacker.cli.scores import ScoreTable
    from rollpacker.config.schema import RunConfig
    from rollpacker.evaluation.comparison import Rewards

SETTINGS = ("at", "against", "require", "out", "overwrite")

HELP = CommandHelp(
    purpose=(
        "Score a policy on held-out prompts: a checkpoint of a run, whose settings are the defaults, or any model. "
        "Nothing is trained, and no trainer starts. Prints a line for each set; the samples of a set are the same each "
        "time, so that two policies are compared sample by sample. Runs on this machine, or in the Slurm job that it "
        "is started in, over several nodes with a run.dir that all of them see. With run.dir its folder stays, and "
        "`rollpacker show` prints what was answered."
    ),
    usage="RUN|model.path=DIR [at=last] [against=OTHER] [require='SET>=N'] [out=FILE] [overwrite=true] [key=value] ...",
    arguments=(
        ("RUN", "The run.dir of a run with real engines."),
        ("at", "Which policy of RUN: last, best, start, all, or a number of steps. Default: last; untrained, start"),
        (
            "against",
            (
                "A run (its newest evaluation) or a file of out=: paired differences, and prompts that lost most. A "
                "note says where reward, sampling or length limit of a run differ; a file does not tell."
            ),
        ),
        ("require", "Exits with 1 unless each SET>=N, separated by commas, holds of the set's mean reward."),
        ("out", "A Parquet file for all rewards, with the columns of the table evaluation_responses."),
        OVERWRITE,
        KEYS_OF_TRAIN,
    ),
    examples=(
        "rollpacker evaluate runs/x at=best evaluation.path=aime24.jsonl \\\n    evaluation.num_samples=32",
        "rollpacker evaluate runs/x at=start out=start.parquet",
        "rollpacker evaluate runs/x at=best against=start.parquet",
        "rollpacker evaluate model.path=DIR evaluation.path=test.jsonl reward=math \\\n    require='test>=0.3'",
    ),
)

_OWN = ("run.num_steps", "run.resume", "config")
"""Keys that the command sets, or has no use for."""

_NOT_OF_THE_RUN = ("run", "tracker", "cluster")
"""Sections that an evaluation does not take from the configuration of a run."""

_REQUIREMENT = re.compile(r"(.+)>=([-+]?\d+(?:\.\d*)?|[-+]?\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What must hold of a set."""

    set_name: str
    least: float


def run(arguments: Arguments) -> None:
    """Evaluate, and print the scores.

    Raises:
        WorldError: A requirement does not hold; or the evaluation failed.
        Interrupted: Ctrl-C or another signal ended it.
    """
    from rollpacker.cli.screen import show_notes
    from rollpacker.cli.settings import parse_settings
    from rollpacker.runtime.run.streams import keep_writing

    keep_writing("stdout", is_result=True)  # without a reader `out` is written and `require` decides the exit code
    others, settings = parse_settings(
        "evaluate", arguments.words, dict.fromkeys(SETTINGS, ""), example="runs/x", takes_keys=True
    )
    run_dir, words = _run_and_words(others)
    requirements = parse_requirements(settings["require"])
    _refuse_own_keys(words, run_dir)
    if settings["at"] and run_dir is None:
        raise ConfigError(f"at={settings['at']} without a run.", "It names a checkpoint of one.", "Name the run.")

    out = _out(settings)
    policies: Mapping[int, Path | None] = {0: None}
    if run_dir is not None:
        from rollpacker.runtime.run.policies import policies_at

        record = _record_of(run_dir, words)
        has_trained = (record.get("run") or {}).get("num_steps") != 0
        policies = policies_at(run_dir, settings["at"] or ("last" if has_trained else "start"))
    against = Path(settings["against"]) if settings["against"] else None
    others_rewards = _rewards_of(against) if against is not None else None
    with _messages_beside(out), _folder(words) as folder:
        configs = _compose(run_dir, policies, words, folder)
        first = next(iter(configs.values()))
        _check_sets(first, requirements, settings["against"], others_rewards)
        if against is not None and against.is_dir():
            show_notes(notes_of_other_settings(first, against))
        checkpoints = {model for model in policies.values() if model is not None}
        scored: dict[int, Path] = {}
        table: ScoreTable | None = None
        try:
            for step, config in configs.items():
                _evaluate(config, checkpoints)
                scored[step] = config.run.dir
        finally:  # what was scored before a failure is shown; `out` has all or none: the command can be repeated
            if scored and _has_results():
                out = out if len(scored) == len(configs) else None
                table = _give(scored, out, others_rewards, other=settings["against"], has_steps=len(configs) > 1)
    if table is not None:
        _require(requirements, table.scores)


def _give(
    run_dirs: Mapping[int, Path], out: Path | None, others: Mapping[str, Rewards] | None, *, other: str, has_steps: bool
) -> ScoreTable:
    """Write the rewards, and print the table, also where the file cannot be written."""
    from rollpacker.cli.scores import score_table
    from rollpacker.cli.screen import output
    from rollpacker.metrics.evaluation_files import write_responses

    table = score_table(run_dirs, others, other=other, has_steps=has_steps)
    try:
        if out is not None:
            with suppress(BrokenPipeError):  # as above, where `out` is what nobody reads
                write_responses(out, run_dirs)
    finally:
        output().print(*table.shown, sep="\n")
    return table


def parse_requirements(text: str) -> list[Requirement]:
    """Read `SET>=N,SET>=N`."""
    requirements = []
    for part in filter(None, text.split(",")):
        found = _REQUIREMENT.fullmatch(part.strip())
        if found is None:
            raise ConfigError(
                f"require={text}: `{part}` cannot be read.",
                "It is SET>=N: the name of a held-out set, and its least mean reward; several are separated by commas.",
                "For example: require='aime24>=0.3,math500>=0.8'",
            )
        requirements.append(Requirement(set_name=found[1].strip(), least=float(found[2])))
    return requirements


def _out(settings: Mapping[str, str]) -> Path | None:
    from rollpacker.metrics.outputs import check_output, is_stream
    from rollpacker.runtime.run.folder_checks import check_creatable

    can_replace = is_overwriting(settings)
    if not settings["out"]:
        return None
    out = Path(settings["out"])
    check_output(out, can_replace=can_replace)
    if not is_stream(out):
        check_creatable("out", out)
    return out


def _messages_beside(out: Path | None) -> AbstractContextManager[object]:
    """Print progress and scores on stderr where stdout carries the rewards."""
    from rollpacker.metrics.outputs import is_standard_output

    return redirect_stdout(sys.stderr) if out is not None and is_standard_output(out) else nullcontext()


def _rewards_of(source: Path) -> Mapping[str, Rewards]:
    from rollpacker.evaluation.comparison import rewards_by_set
    from rollpacker.metrics.evaluation_files import read_newest_responses

    return rewards_by_set(read_newest_responses(source))


def _run_and_words(others: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Separate the run from keys and groups."""
    runs = [word for word in others if "=" not in word or os.path.isdir(word)]  # noqa: PTH112  of any length
    words = [word for word in others if word not in runs]
    if len(runs) > 1 or not (runs or "model.path" in map(key_of, words)):
        raise ConfigError(
            f"`rollpacker evaluate` was given {' and '.join(runs) or 'neither a run nor model.path'}.",
            "It evaluates one run, or one model.",
            "For example: rollpacker evaluate runs/x, or rollpacker evaluate model.path=DIR evaluation.path=FILE",
        )
    if not (runs or {*map(key_of, words)} & {*_BRING_SETS}):
        raise ConfigError("No held-out prompts are named.", "A model is scored on them.", "Add evaluation.path=FILE.")
    return (Path(runs[0]) if runs else None), words


def _refuse_own_keys(words: Sequence[str], run_dir: Path | None) -> None:
    for word in words:
        name = key_of(word)
        if name == "model.path" and run_dir is not None:
            raise ConfigError(
                f"{word}, and the run {run_dir}.", "One policy is evaluated.", "Leave out one of the two."
            )
        if name in _OWN or name.startswith("hydra"):
            raise ConfigError(
                f"`{word}` has no place in an evaluation.",
                "Nothing is trained, and it runs on this machine or in the Slurm job that it is started in.",
                "Leave it out.",
            )


_BRING_SETS = ("experiment", "evaluation", "evaluation.path")
"""Words that may name held-out prompts."""


def _record_of(run_dir: Path, words: Sequence[str]) -> Mapping[str, Any]:
    """Read a run's record; refuse one of no policy, or where neither it nor the words name held-out prompts."""
    from rollpacker.config.record import CONFIG_FILE, read_record

    record = read_record(run_dir)
    if record is None:
        raise ConfigError(
            f"{run_dir} has no {CONFIG_FILE}." if run_dir.exists() else f"{run_dir} does not exist.",
            "RUN is the run.dir of a run, in which its configuration lies.",
            "Correct the path, or name a model: model.path=DIR.",
        )
    if (record.get("backend") or {}).get("name") == "sim":
        raise ConfigError(
            f"{run_dir} was modelled: it has no policy.",
            "RUN is a run with real engines.",
            "Name another run, or model.path=DIR.",
        )
    if not (record.get("evaluation") or {}).get("path") and not {*map(key_of, words)} & {*_BRING_SETS}:
        raise ConfigError(
            f"{run_dir} has no held-out prompts.", "They are of the run, or given.", "Add evaluation.path=FILE."
        )
    return record


@contextmanager
def _folder(words: Sequence[str]) -> Iterator[Path | None]:
    """A folder to run in, which is removed; None where `run.dir` names one, which stays."""
    if "run.dir" in map(key_of, words):
        yield None
        return
    from rollpacker.runtime.job.allocation import current_allocation

    if (allocation := current_allocation(os.environ)) is not None and allocation.num_nodes > 1:
        raise ConfigError(
            f"The job has {allocation.num_nodes} nodes, and no run.dir is named.",
            "Its nodes meet in a folder that all of them see.",
            "Set run.dir to a new folder on the shared file system.",
        )
    with temporary_folder("evaluate") as folder:
        yield folder


def _compose(
    run_dir: Path | None, policies: Mapping[int, Path | None], words: Sequence[str], folder: Path | None
) -> dict[int, RunConfig]:
    """Configure a run of no steps for each policy."""
    from rollpacker.config.compose import compose
    from rollpacker.runtime.placing.automatic import complete
    from rollpacker.runtime.run.run_folder import has_trained

    own = ["run.num_steps=0", *([f"config={run_dir}", "evaluation.at_end=true"] if run_dir else ["data.path=null"])]
    if run_dir is not None and not {*map(key_of, words)} & {"experiment", "data", "data.path"}:
        own += _without_lost_prompts(compose(replaced(own, words), not_from_file=_NOT_OF_THE_RUN))
    configs: dict[int, RunConfig] = {}
    for step, model in policies.items():
        path = [f"model.path={quoted(model)}"] if model is not None else []
        config = compose(replaced([*own, *path], words), complete, not_from_file=_NOT_OF_THE_RUN)
        parent = folder or config.run.dir
        if has_trained(parent):
            raise ConfigError(
                f"run.dir={parent} holds a run that has trained.",
                "An evaluation has a folder of its own.",
                "Choose a new folder.",
            )
        section = {"dir": parent / f"step-{step:06d}" if len(policies) > 1 else parent}
        configs[step] = config.model_copy(update={"run": config.run.model_copy(update=section)})
    return configs


def _without_lost_prompts(config: RunConfig) -> list[str]:
    """Words that leave out the prompts that the run was trained on, where they are gone; an evaluation needs none."""
    from rollpacker.cli.screen import show_notes

    lost = [file.written for file in config.data.files if not file.location.exists()]
    if not lost:
        return []
    note = (
        f"{', '.join(lost)}, which the run was trained on, cannot be found: whether a held-out prompt is in it is not "
        "checked. data.path=FILE names it in another place."
    )
    show_notes([note])
    return ["data.path=null"]


def _check_sets(
    config: RunConfig, requirements: Sequence[Requirement], against: str, others: Mapping[str, Rewards] | None
) -> None:
    """Refuse what names no set of this evaluation."""
    from rollpacker.config.keys import nearest

    names = [rule.name for rule in config.evaluation.rules]
    for requirement in requirements:
        if requirement.set_name not in names:
            close = nearest(requirement.set_name, names)
            raise ConfigError(
                f"require names `{requirement.set_name}`, which is no held-out set.",
                f"The sets are {', '.join(names)}.",
                f"Write {(close or names)[0]}>={requirement.least:g}.",
            )
    if others is not None and not set(others) & set(names):
        raise ConfigError(
            f"against={against} has the sets {', '.join(others)}, and this evaluation {', '.join(names)}.",
            "Sets of the same name are compared.",
            "Name the files alike: evaluation.path=[{path: FILE, name: NAME}].",
        )


_NO_PART_OF_A_SCORE = (
    *("reward.max_open", "reward.overlong_buffer_tokens", "reward.overlong_penalty"),
    *("reward.judge.max_restarts", "reward.judge.restart_pause_s"),
)
"""Keys of the reward that change no held-out score: shaping is of training."""

_SAMPLING = ("temperature", "top_p", "top_k", "max_response_tokens")


def notes_of_other_settings(config: RunConfig, against: Path) -> list[str]:
    """A note where the scores of a run were made by another reward, sampling or length limit; empty otherwise."""
    from rollpacker.config.compose import compose

    try:
        other = compose([f"config={against}"], not_from_file=_NOT_OF_THE_RUN)
    except UserError as error:
        return [f"Whether against={against} was scored alike is not known: {error.problem.rstrip('.')}."]
    mine, theirs = _settings_of_scores(config), _settings_of_scores(other)
    sets = {rule.name for rule in config.evaluation.rules} & {rule.name for rule in other.evaluation.rules}
    names = [key for key in {**mine, **theirs} if key.startswith("reward.") or key.rpartition(": ")[0] in sets]
    differing = [
        f"{name} is {shown(theirs.get(name))} there and {shown(mine.get(name))} here"
        for name in names
        if mine.get(name) != theirs.get(name)
    ]
    if not differing:
        return []
    return [
        f"against={against} was scored otherwise, so differences are not the policy's alone: {'; '.join(differing)}."
    ]


def _settings_of_scores(config: RunConfig) -> dict[str, object]:
    """What held-out scores depend on beside the policy: keys of the reward, and `SET: KEY` of each set."""
    from rollpacker.config.fingerprint import defining_values

    found = {
        key: value
        for key, value in defining_values(config).items()
        if key.startswith("reward.") and key not in _NO_PART_OF_A_SCORE
    }
    for rule in config.evaluation.rules:
        found |= {f"{rule.name}: {key}": getattr(rule, key) for key in _SAMPLING}
        found[f"{rule.name}: max_response_tokens"] = rule.max_response_tokens or config.rollout.max_response_tokens
    return found


def _evaluate(config: RunConfig, checkpoints: Collection[Path]) -> None:
    """Evaluate one policy; `checkpoints` may be removed by a run that goes on."""
    from rollpacker.cli.train import validate_run
    from rollpacker.launch import ranks

    try:
        ranks.train(config, validate_run)
    except Interrupted as error:
        raise Interrupted(
            "The evaluation was interrupted.", "A score needs every response.", "Start it again.", error.args[-1]
        ) from None
    except (ConfigError, EngineFailed, ModelError) as error:
        policy = config.model.path
        if policy is None or policy not in checkpoints or policy.exists():
            raise
        raise WorldError(
            f"{error.problem}\n{policy} was removed meanwhile: its run goes on.",
            "A run keeps the last run.keep_checkpoints; the best one too, with run.keep_best=true.",
            "Start it again, or name another one: at=best.",
        ) from error


def _has_results() -> bool:
    """False in a process of the job that only serves its node."""
    from rollpacker.runtime.job.allocation import current_allocation

    allocation = current_allocation(os.environ)
    return allocation is None or allocation.is_head


def _require(requirements: Sequence[Requirement], scores: Mapping[tuple[int, str], float]) -> None:
    from rollpacker.evaluation.comparison import ROUNDING

    steps = sorted({step for step, _ in scores})
    failed = []
    for requirement, step in itertools.product(requirements, steps):
        score = scores.get((step, requirement.set_name))
        name = f"{requirement.set_name}{f' after step {step}' if len(steps) > 1 else ''}"
        if score is None:
            failed.append(f"{name} has no score.")
        elif score < requirement.least - ROUNDING:
            score_shown, least = _told_apart(score, requirement.least)
            failed.append(f"{name} is {score_shown}, below {least}.")
    if failed:
        raise WorldError(" ".join(failed), "require= asks for more.", "")


def _told_apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers in as few digits as show that they differ, but six."""
    pairs = ((f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in range(6, 18))
    return next((one, other) for one, other in pairs if one != other)
