"""`rollpacker report`: writes one HTML page about a run, alone or against another one."""

from __future__ import annotations

from pathlib import Path

from rollpacker.cli.arguments import OVERWRITE, Arguments, is_overwriting
from rollpacker.cli.command_help import CommandHelp

SETTINGS = ("step", "out", "overwrite")
REPORT_FILE = "report.html"


HELP = CommandHelp(
    purpose=(
        "Write one self-contained HTML page about a run, finished or not: what ran, where the time of each step went, "
        "what each engine did, one step actor by actor, the ten worst waits in words, response lengths, rewards, the "
        "long-prompt queue and wasted tokens; of a run with rollout workers, what each made, lost and cost, and its "
        "tables workers and allocations (RUN/accounts). With a second run, both side by side with ratios. Numbers of "
        "modelled runs are marked."
    ),
    usage="RUN [AGAINST] [step=N] [out=FILE] [overwrite=true]",
    arguments=(
        ("RUN", "The run.dir of a run."),
        ("AGAINST", "The run.dir of a run to compare with."),
        ("step", "The step that is drawn actor by actor, counted from 1. Default: the one of median duration"),
        ("out", "The file to write, or - for standard output. Default: RUN/report.html, which is always replaced"),
        OVERWRITE,
    ),
    examples=("rollpacker report runs/rollpacker runs/verl",),
)


def run(arguments: Arguments) -> None:
    """Write the page, and print its path and main numbers."""
    from rollpacker.cli.settings import parse_runs, whole_number

    runs, settings = parse_runs("report", arguments.words, SETTINGS, max_runs=2)
    step = whole_number(settings, "step") - 1 if settings["step"] else None
    default = runs[0] / REPORT_FILE
    out = Path(settings["out"] or default)

    from rollpacker.cli.screen import output
    from rollpacker.metrics.outputs import check_output, is_stream, open_output
    from rollpacker.paths import real_path
    from rollpacker.timeline.run_tables import refuse_other_folders

    check_output(out, can_replace=is_overwriting(settings) or real_path(out) == real_path(default))
    for run_dir in runs:
        refuse_other_folders(run_dir)  # before the libraries that draw are loaded
    from rollpacker.report.page import render
    from rollpacker.report.story import read_story
    from rollpacker.report.words import plural, size

    stories = [read_story(run_dir, step) for run_dir in runs]
    problems = [story.accounts.write(story.tables.run_dir) for story in stories if story.accounts is not None]
    with open_output(out) as file:
        file.write(render(stories).encode())
    console = output(beside=out)
    for story in stories:
        kind = "modelled" if story.is_modelled else "measured"
        mean_s = story.total_s / len(story.steps)
        console.print(
            f"{story.tables.run_dir}: {plural(len(story.steps), 'step')} ({kind}), {mean_s:.3g} s per step, "
            f"bubble ratio {story.bubble_ratio:.0%}.",
            soft_wrap=True,
        )
        for note in story.notes:
            console.print(note, soft_wrap=True, style="dim")
    for problem in filter(None, problems):
        console.print(problem, soft_wrap=True, style="dim")
    if not is_stream(out):
        console.print(f"{out}: {size(out.stat().st_size)}; open it in a browser.", soft_wrap=True)
