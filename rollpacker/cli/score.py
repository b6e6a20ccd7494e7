"""`rollpacker score`: tries a reward on given responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.cli.arguments import Arguments


def run(arguments: Arguments) -> None:
    """Score a file of responses, and print what came out."""
    from rich.text import Text

    from rollpacker.cli.screen import facts, heading, output
    from rollpacker.config.compose import compose_score
    from rollpacker.rewards.scoring import score_file
    from rollpacker.runtime.preflight import check_creatable

    config = compose_score(arguments.words)
    check_creatable("out", config.out)
    summary = score_file(config.reward, config.data.path, config.responses, config.out)
    reasons = [
        (reason, Text(f"{number:,} ({number / summary.num_responses:.1%})"))
        for reason, number in summary.num_by_reason.items()
    ]
    output().print(
        heading(f"Reward {config.reward.name}"),
        facts(
            [
                ("responses", Text(f"{summary.num_responses:,}")),
                ("mean reward", Text(f"{summary.reward_mean:.4f}")),
                *reasons,
                ("written to", Text(str(config.out))),
            ]
        ),
        sep="\n",
    )


def show_help() -> None:
    """Print what `rollpacker score` takes."""
    from rollpacker.cli.help import show_score_help

    show_score_help()
