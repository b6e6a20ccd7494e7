"""`rollpacker demo`: trains a small model under two systems on this machine, and compares them."""

from __future__ import annotations

import sys

from rollpacker.cli.arguments import Arguments
from rollpacker.cli.command_help import KEYS_OF_TRAIN, CommandHelp

HELP = CommandHelp(
    purpose="Train a small model on this machine under plain and tail batching, and compare the two, in two to four "
    "minutes on two cores. It makes a model and prompts, runs the commands that a user would run, and prints each.",
    usage="[mixed] [key=value | group=option] ...",
    arguments=(
        ("mixed", "Walks that a rule scores, programs that a sandbox runs, and climbs that a small LLM judge scores."),
        KEYS_OF_TRAIN,
    ),
    examples=("rollpacker demo", "rollpacker demo mixed", "rollpacker demo engine=vllm engine.num_engines=2"),
)


def run(arguments: Arguments) -> None:
    """Run the demo, and end the process with the exit code of the first command that failed."""
    from rollpacker.demo.three_commands import run_demo

    if code := run_demo(arguments.words):
        sys.exit(code)
