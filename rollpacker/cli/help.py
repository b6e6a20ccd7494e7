"""Help texts, written from the schema's docstrings and the files of `conf/`, so that they cannot go stale."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rollpacker.cli.screen import facts, heading, output
from rollpacker.config.keys import REQUIRED, Key, legal_keys, section_docs
from rollpacker.config.launching import LauncherSettings, launcher_defaults
from rollpacker.config.roots import (
    DEFAULT_RUN_DIR,
    SCORE,
    TRAIN,
    Root,
    default_choices,
    groups,
    option_notes,
    option_summary,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import BaseModel
    from rich.console import RenderableType

    from rollpacker.cli.main import Command

INPUTS = "model.path=DIR data.path=prompts.jsonl"


def show_overview(commands: Iterable[Command]) -> None:
    """Print `rollpacker --help`."""
    console = output()
    _print_sections(
        console,
        [
            ("", Text("RL post-training that packs long-tail rollouts into rounds of their own.")),
            ("Usage", Text("rollpacker COMMAND [key=value | group=option] ...")),
            ("Commands", facts((command.name, Text(command.summary)) for command in commands)),
            ("Groups of train and check", _group_overview(TRAIN)),
            ("Example", _commands(f"rollpacker train {INPUTS} \\\n    reward=math system=rollpacker run.dir=runs/x")),
            ("", Text("`rollpacker COMMAND --help` says what a command takes; `train --help` lists every key.")),
        ],
    )


def show_train_help(command: str) -> None:
    """Print what `rollpacker train` and `rollpacker check` take."""
    purpose = {
        "train": "Train a model by reinforcement learning. Everything is judged before anything starts.",
        "check": "Print the resolved run and what it will do. Loads no model, creates nothing.",
    }[command]
    sections: list[tuple[str, RenderableType]] = [
        ("", Text(purpose)),
        ("Usage", Text(f"rollpacker {command} [-m] [key=value | group=option] ...")),
        (
            "Options",
            facts(
                [
                    (
                        "-m, --multirun",
                        Text("Run once per combination of comma-separated values, each in its own run.dir."),
                    ),
                    ("-h, --help", Text("This text.")),
                ]
            ),
        ),
        (
            "Examples",
            _commands(
                f"rollpacker {command} {INPUTS} \\\n    reward=math system=rollpacker run.dir=runs/x",
                f"rollpacker {command} -m {INPUTS} \\\n    system=verl,rollpacker run.seed=0,1",
                f"rollpacker {command} -m {INPUTS} \\\n    hydra/launcher=slurm cluster=slurm run.seed=0,1",
            ),
        ),
        ("Groups (each option sets several keys)", _group_table(TRAIN)),
        ("Prompt files (data=jsonl)", Text(option_notes("data", "jsonl"))),
    ]
    _print_sections(output(), [*sections, *_key_sections(TRAIN), _launcher_section()])


def show_jobs_help() -> None:
    """Print what `rollpacker jobs` takes."""
    _print_sections(
        output(),
        [
            (
                "",
                Text(
                    "Show the runs below some folders: what runs, waits, failed, died or was requeued, the step and "
                    "reward of each, and the reason why it waits or stopped. Asks Slurm where a run has a job. A run "
                    "that says it runs although its job is over is shown as died. Changes nothing."
                ),
            ),
            ("Usage", Text("rollpacker jobs [DIR ...] [watch]")),
            (
                "Arguments",
                facts(
                    [
                        ("DIR", Text("A run.dir, or a folder with runs somewhere below it. Default: runs")),
                        ("watch", Text("Draws the table anew every 5 s until nothing runs or waits; Ctrl-C ends it.")),
                    ]
                ),
            ),
            ("Example", _commands("rollpacker jobs runs/e2e watch")),
        ],
    )


def show_doctor_help() -> None:
    """Print what `rollpacker doctor` takes."""
    _print_sections(
        output(),
        [
            (
                "",
                Text(
                    "Say what would stop a run here, one line per check: ok, a warning or a problem with its remedy. "
                    "On a login node it looks at Slurm and at what would be submitted; inside a job also at the GPUs, "
                    "memory, ports and clocks of its nodes. Writes a few small files into run.dir and removes them. "
                    "The exit code is 1 when there is a problem."
                ),
            ),
            ("Usage", Text("rollpacker doctor [cluster=OPTION] [run.dir=DIR] [key=value | group=option] ...")),
            (
                "Arguments",
                facts(
                    [
                        ("cluster", Text("The cluster that is meant, with its partition, container and limits.")),
                        ("run.dir", Text("Where a run would write. Default: runs")),
                        ("all others", Text("Keys of cluster and backend, as `rollpacker train --help` lists them.")),
                    ]
                ),
            ),
            ("Example", _commands("rollpacker doctor cluster=h800 run.dir=runs/x")),
        ],
    )


def show_plan_help() -> None:
    """Print what `rollpacker plan` takes."""
    _print_sections(
        output(),
        [
            (
                "",
                Text(
                    "Model what tail batching would save: many short runs of the real scheduler in virtual time, from "
                    "coarse to fine, under plain and tail batching, with the eta, TP and GPUs to ask for. Nothing is "
                    "measured; it needs no GPU and takes about a minute on two cores."
                ),
            ),
            ("Usage", Text("rollpacker plan gpus=N model=OPTION [hardware=OPTION] [key=value | group=option] ...")),
            (
                "Arguments",
                facts(
                    [
                        ("gpus", Text("How many you have in mind; half and twice as many are tried, too.")),
                        (
                            "workload.lengths",
                            Text(
                                "Your response lengths: a CSV, Parquet or JSONL file with the column length_tokens "
                                "(and prompt and domain where known), or a recorded run.dir. Default: the paper's."
                            ),
                        ),
                        ("out", Text("The folder to write to. Default: a fresh one below runs/plan")),
                        ("seconds", Text("No further modelled run begins after so long. Default: 60")),
                        ("seeds", Text("Repetitions of what is compared. Default: 3")),
                        ("systems", Text("Compared with the first. Default: verl,rlhfuse,rollpacker, where there")),
                        ("workers", Text("Processes. Default: one per core")),
                        ("engine.tensor_parallel", Text("Fixes TP; else all degrees that fit are tried.")),
                        ("all others", Text("As `rollpacker train` takes them; `rollpacker train --help` lists them.")),
                    ]
                ),
            ),
            (
                "Example",
                _commands(
                    "rollpacker plan model=qwen2.5-14b hardware=h800 gpus=32 \\\n"
                    "    workload.lengths=lengths.parquet rollout.num_prompts=128 rollout.max_response_tokens=16384"
                ),
            ),
        ],
    )


def show_profile_help() -> None:
    """Print what `rollpacker profile` takes."""
    _print_sections(
        output(),
        [
            (
                "",
                Text(
                    "Measure what engines, trainer, reward and weight transfer take on this machine, by the calls that "
                    "a run makes, and write it to one Parquet file. A modelled run reads it: backend=sim "
                    "hardware.profile=FILE."
                ),
            ),
            ("Usage", Text("rollpacker profile out=FILE [overwrite=true] [key=value | group=option] ...")),
            (
                "Arguments",
                facts(
                    [
                        ("out", Text("The Parquet file to write.")),
                        ("overwrite", Text("true replaces it when it exists. Default: false")),
                        ("all others", Text("As `rollpacker train` takes them; `rollpacker train --help` lists them.")),
                    ]
                ),
            ),
            ("Example", _commands(f"rollpacker profile {INPUTS} \\\n    reward=math out=profile.parquet")),
        ],
    )


def show_score_help() -> None:
    """Print what `rollpacker score` takes."""
    _print_sections(
        output(),
        [
            ("", Text("Score given responses with a reward: one line of id, reward and reason per response.")),
            ("Usage", Text("rollpacker score reward=OPTION data.path=FILE responses=FILE out=FILE [key=value] ...")),
            (
                "Example",
                _commands(
                    "rollpacker score reward=math data.path=prompts.jsonl \\\n"
                    "    responses=answers.jsonl out=scores.jsonl"
                ),
            ),
            ("Groups", _group_table(SCORE)),
            *_key_sections(SCORE),
        ],
    )


def show_replay_help() -> None:
    """Print what `rollpacker replay` takes."""
    _print_sections(
        output(),
        [
            (
                "",
                Text(
                    "Feed the event logs of a run into fresh schedulers and verify that they give the same commands. "
                    "A log that replays is a regression test; one that does not shows what changed."
                ),
            ),
            ("Usage", Text("rollpacker replay RUN")),
            ("Arguments", facts([("RUN", Text("The run.dir of a run, finished or not."))])),
            ("Example", _commands("rollpacker replay runs/x")),
        ],
    )


def show_report_help() -> None:
    """Print what `rollpacker report` takes."""
    _print_sections(
        output(),
        [
            (
                "",
                Text(
                    "Write one self-contained HTML page about a run, finished or not: what ran, where the time of each "
                    "step went, what each engine did, one step actor by actor, the ten worst waits in words, response "
                    "lengths, rewards, the long-prompt queue and wasted tokens. With a second run, both side by side "
                    "with ratios. Numbers of modelled runs are marked."
                ),
            ),
            ("Usage", Text("rollpacker report RUN [AGAINST] [step=N] [out=FILE]")),
            (
                "Arguments",
                facts(
                    [
                        ("RUN", Text("The run.dir of a run.")),
                        ("AGAINST", Text("The run.dir of the run that it is held against.")),
                        ("step", Text("Which step is drawn actor by actor. Default: the one of median duration")),
                        ("out", Text("The file to write. Default: RUN/report.html")),
                    ]
                ),
            ),
            ("Example", _commands("rollpacker report runs/rollpacker runs/verl")),
        ],
    )


def show_trace_help() -> None:
    """Print what `rollpacker trace` takes."""
    _print_sections(
        output(),
        [
            (
                "",
                Text(
                    "Write a trace of a run, finished or not, from its tables and event logs: every request on its "
                    "engine, migrations as arrows, trainer, rewards and driver, rounds and steps, lost engines, and "
                    "how many requests ran and waited. Open it at ui.perfetto.dev or chrome://tracing. Forty steps on "
                    "64 GPUs take some seconds."
                ),
            ),
            ("Usage", Text("rollpacker trace RUN [steps=FIRST:END] [out=FILE]")),
            (
                "Arguments",
                facts(
                    [
                        ("RUN", Text("The run.dir of a run.")),
                        ("steps", Text("Which steps; END does not count. One number is one step. Default: all")),
                        ("out", Text("The file to write; compressed when it ends in .gz. Default: RUN/trace.json.gz")),
                    ]
                ),
            ),
            ("Example", _commands("rollpacker trace runs/x steps=10:20 out=x.json.gz")),
        ],
    )


def show_fuzz_help() -> None:
    """Print what `rollpacker fuzz` takes."""
    _print_sections(
        output(),
        [
            (
                "",
                Text(
                    "Run small modelled runs, drawn from seeds, in which engines crash, messages are lost or come "
                    "twice, weights tear and the driver is killed. Every invariant is checked after every event. A "
                    "violation is shrunk and saved as a replay test, and the exit code is 1."
                ),
            ),
            ("Usage", Text("rollpacker fuzz [seeds=FIRST:END] [jobs=N] [out=DIR]")),
            (
                "Arguments",
                facts(
                    [
                        ("seeds", Text("Which worlds; END is not run. Default: 0:1000")),
                        ("jobs", Text("Processes that run them. Default: 1")),
                        ("out", Text("Where replay tests of violations go. Default: runs/fuzz")),
                    ]
                ),
            ),
            ("Example", _commands("rollpacker fuzz seeds=0:10000 jobs=2")),
        ],
    )


def _commands(*lines: str) -> Text:
    return Text("\n".join(lines), style="green", no_wrap=True)


def _print_sections(console: Console, sections: Sequence[tuple[str, RenderableType]]) -> None:
    for title, content in sections:
        if title:
            console.print(Group(heading(title), Padding(content, (0, 0, 1, 2), expand=False)))
        else:
            console.print(Padding(content, (0, 0, 1, 0), expand=False))


def _group_overview(root: Root[BaseModel]) -> Table:
    return facts((name, Text(" | ".join(group.options))) for name, group in groups(root).items())


def _group_table(root: Root[BaseModel]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, group in groups(root).items():
        for option in group.options:
            choice = Text.assemble((name, "bold"), f"={option}")
            mark = " (default)" if option == group.default else ""
            table.add_row(choice, Text.assemble(option_summary(name, option), (mark, "dim")))
    return table


def _key_sections(root: Root[BaseModel]) -> list[tuple[str, RenderableType]]:
    docs = section_docs(root.schema)
    chosen = default_choices(root)
    rows: dict[str, list[Key]] = {}
    for key in legal_keys(root.schema).values():
        rows.setdefault(key.name.partition(".")[0] if "." in key.name else "", []).append(key)
    return [
        (f"{section}: {docs[section]}" if section else "Keys", _key_table(keys, chosen))
        for section, keys in rows.items()
    ]


def _launcher_section() -> tuple[str, RenderableType]:
    """What a multirun that is submitted to Slurm takes beside the points' own keys."""
    prefix = "hydra.launcher."
    keys = [replace(key, name=f"{prefix}{key.name}") for key in legal_keys(LauncherSettings).values()]
    defaults = {f"{prefix}{name}": value for name, value in launcher_defaults().items()}
    return "hydra/launcher=slurm: A multirun's points as Slurm jobs; `cluster` says what each asks for", _key_table(
        keys, defaults
    )


def _key_table(keys: Iterable[Key], chosen: Mapping[str, object]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for key in keys:
        default = chosen.get(key.name, key.default)
        value = Text(_default_text(default))
        if default == REQUIRED:  # what is required of an absent section comes with its group's option
            value = Text("...") if key.absent_section else Text("REQUIRED", style="yellow")
        name = Text.assemble((key.name, "bold"), "=", value)
        table.add_row(name, Text.assemble(key.doc, " " if key.doc else "", (_takes(key), "dim")))
    return table


def _default_text(default: object) -> str:
    if default == DEFAULT_RUN_DIR:
        return "runs/..."
    if isinstance(default, float):
        return f"{default:g}"
    return default if isinstance(default, str) else json.dumps(default)


def _takes(key: Key) -> str:
    legal = f"{key.legal[0].upper()}{key.legal[1:]}."
    return f"{legal} Default: {DEFAULT_RUN_DIR}" if key.name == "run.dir" else legal


def show_calibrate_help() -> None:
    """Print what `rollpacker calibrate` takes."""
    _print_sections(
        output(),
        [
            (
                "",
                Text(
                    "Fit eight parameters of a node type to the paper's numbers of the 7B and 14B models, by modelled "
                    "runs of its setups, and write a hardware file with these parameters and every row's residual. "
                    "Everything else in the paper is left to be predicted. Takes about ten minutes on two cores."
                ),
            ),
            ("Usage", Text("rollpacker calibrate out=FILE [reference=DIR] [hardware=NAME] [rounds=N] [jobs=N]")),
            (
                "Arguments",
                facts(
                    [
                        ("out", Text("The hardware file to write, such as conf/hardware/h800.yaml")),
                        ("reference", Text("The paper's numbers as CSV files. Default: analysis/paper")),
                        ("hardware", Text("Whose data sheet is taken. Default: h800")),
                        ("rounds", Text("Rounds of the fit; 0 compares the starting values. Default: 2")),
                        ("jobs", Text("Processes that model runs. Default: 1")),
                    ]
                ),
            ),
            ("Example", _commands("rollpacker calibrate out=h800.yaml jobs=2")),
        ],
    )
