"""Records the golden runs.

    python -m tests.golden

Read in review what changes by that.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.golden import modelled, placements, real
from tests.golden.records import text_of

RECORDED = Path(__file__).parent / "recorded"


def main() -> None:
    """Write one file per run."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in modelled.RUNS:
            (RECORDED / f"{name}.json").write_text(text_of(modelled.train(name, Path(scratch))))
        (RECORDED / "placements.txt").write_text(placements.table(Path(scratch)))
        (RECORDED / "real.json").write_text(text_of(real.to_record(real.train(Path(scratch)))))


if __name__ == "__main__":
    main()
