"""`rollpacker score`: tries a reward on given responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.cli.arguments import OVERWRITE, Arguments, is_overwriting, refuse_other_format
from rollpacker.cli.command_help import CommandHelp
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.protocols.reward import RewardWorker


HELP = CommandHelp(
    purpose="Score given responses with a reward: one line of id, reward and reason per response.",
    usage="reward=OPTION|reward.KEY=... data.path=FILE responses=FILE out=FILE [overwrite=true] [key=value] ...",
    arguments=(
        ("reward=OPTION", "What scores, or a key of it such as reward.function=my.py:score. Default: math"),
        ("data.path=FILE", "The prompts, with what the reward compares with. Needed."),
        ("responses=FILE", 'JSON lines {"id": ID, "response": TEXT}, Parquet, Arrow or CSV. Needed.'),
        ("out=FILE", "The file to write: JSON lines of id, reward and reason; - is standard output. Needed."),
        OVERWRITE,
    ),
    examples=(
        "rollpacker score reward=math data.path=prompts.jsonl \\\n    responses=answers.jsonl out=scores.jsonl",
        "rollpacker score reward.function=my.py:score data.path=prompts.jsonl \\\n    responses=a.jsonl out=s.jsonl",
    ),
    lists_keys_of="score",
)


def run(arguments: Arguments) -> None:
    """Score a file of responses, and print what came out."""
    from rollpacker.cli.screen import facts, heading, output
    from rollpacker.cli.settings import parse_settings
    from rollpacker.config.compose import compose_score
    from rollpacker.metrics.outputs import check_output, is_stream
    from rollpacker.rewards.scoring import score_file
    from rollpacker.runtime.run.folder_checks import check_creatable

    words, settings = parse_settings(
        "score", arguments.words, {"overwrite": ""}, example="out=FILE overwrite=true", takes_keys=True
    )
    config = compose_score(words)
    _refuse_run(config.responses)
    refuse_other_format(config.out)
    can_replace = is_overwriting(settings)
    check_output(config.out, can_replace=can_replace)
    if not is_stream(config.out):
        check_creatable("out", config.out)
    if config.reward.has_judge:
        from rollpacker.runtime.run.preflight import check_judged_length

        check_judged_length(config.reward.judge)
        import torch  # noqa: F401  # before the judge's tokenizer: see load_tokenizer

    summary = score_file(
        config.reward, config.data.files, config.responses, config.out, open_judge=_open_judge, can_replace=can_replace
    )
    reasons = [
        (reason, f"{number:,} ({number / summary.num_responses:.1%})")
        for reason, number in summary.num_by_reason.items()
    ]
    rows = [
        ("responses", f"{summary.num_responses:,}"),
        ("mean reward", f"{summary.reward_mean:.4f}"),
        *((f"mean of {name}", f"{mean:.4f}") for name, mean in summary.parts_mean.items()),
        *reasons,
        *([] if is_stream(config.out) else [("written to", str(config.out))]),
    ]
    console = output(beside=config.out)
    table = facts([(_cut(label, console.width // 2), content) for label, content in rows])
    console.print(heading(f"Reward {config.reward.name_of()}"), table, sep="\n")


def _refuse_run(responses: Path) -> None:
    """Refuse the folder of a run, and say how its responses become a file."""
    if (responses / "run.json").exists():
        raise ConfigError(
            f"responses={responses} is a run, and no file of responses.",
            "The responses are JSON lines, Parquet, Arrow or CSV with the columns id and response.",
            f"In Python, `rollpacker.load({str(responses)!r}).samples` has those that the run kept: name its columns "
            "prompt and response_text id and response, and write it by to_parquet.",
        )


def _cut(label: str, width: int) -> str:
    """Shorten a reason or the name of a part, which may have any length, to so many cells."""
    from rich.text import Text

    text = Text(label)
    text.truncate(width, overflow="ellipsis")
    return text.plain


def _open_judge(section: JudgeSection) -> RewardWorker:
    """Load the LLM judge in this process."""
    from rollpacker.engines.factory import open_judge
    from rollpacker.rewards.judge.reading import JudgePrompts
    from rollpacker.rewards.judge.worker import JudgeRewardWorker

    prompts = JudgePrompts(section)
    return JudgeRewardWorker(open_judge(section), prompts, section)
