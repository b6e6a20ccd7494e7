"""A few of the draws of `python -m tests.malformed`, of which a developer runs a thousand."""

import subprocess
import sys
from pathlib import Path

NUM_DRAWS = 24


def test_malformed_inputs_are_answered_in_words_and_leave_nothing() -> None:
    drawn = subprocess.run(
        [sys.executable, "-m", "tests.malformed", f"{NUM_DRAWS}", "1000"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert drawn.returncode == 0, drawn.stdout + drawn.stderr
