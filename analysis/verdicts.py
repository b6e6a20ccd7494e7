"""Which claims of the paper hold, against the record of those that held before.

The record is `analysis/verdicts.csv`, of modelled runs; `rollpacker analysis verdicts accept=true` rewrites it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rollpacker.analysis.numbers import Claim, Numbers, Source, Standing
from rollpacker.metrics.files import write_atomically

RECORD: Final = Path(__file__).parent / "verdicts.csv"

_RANK = {Standing.REPRODUCED: 2, Standing.DIRECTION: 1, Standing.NOT: 0}


def lost_claims(numbers: Mapping[str, Numbers], record: Path = RECORD) -> list[str]:
    """A sentence for each claim that stood better in the record; measured runs are not held against it."""
    if not record.exists():
        return []
    with record.open(newline="", encoding="utf-8") as lines:
        before = {(row["exhibit"], row["claim"]): Standing(row["standing"]) for row in csv.DictReader(lines)}
    lost = []
    for exhibit, claim in _modelled_claims(numbers):
        earlier = before.get((exhibit, claim.text), Standing.NOT)
        if _RANK[claim.standing] < _RANK[earlier]:
            lost.append(f"{exhibit}, {claim.text}: was {earlier}, is {claim.standing}")
    return lost


def accept(numbers: Mapping[str, Numbers], record: Path = RECORD) -> None:
    """Write the record of what holds now."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["exhibit", "claim", "paper", "modelled", "unit", "standing"])
    for exhibit, claim in _modelled_claims(numbers):
        assert claim.ours is not None
        row = (exhibit, claim.text, f"{claim.paper:.4g}", f"{claim.ours.y:.4g}", claim.unit, str(claim.standing))
        writer.writerow(row)
    write_atomically(record, text.getvalue().encode())


def _modelled_claims(numbers: Mapping[str, Numbers]) -> list[tuple[str, Claim]]:
    return [
        (exhibit, claim)
        for exhibit, of_exhibit in numbers.items()
        for claim in of_exhibit.claims
        if claim.ours is not None and claim.ours.source is Source.MODELLED
    ]
