"""Which claims of the paper hold, against the record of those that held before.

The record is `analysis/verdicts.csv`, of modelled runs; `rollpacker analysis verdicts accept=true` rewrites it.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rollpacker.analysis.numbers import Claim, Numbers, Source, Standing
from rollpacker.metrics.files import write_atomically

RECORD: Final = Path(__file__).parent / "verdicts.csv"

_COLUMNS: Final = ("exhibit", "claim", "paper", "modelled", "unit", "standing")

_RANK = {Standing.REPRODUCED: 2, Standing.DIRECTION: 1, Standing.NOT: 0}


def lost_claims(numbers: Mapping[str, Numbers], record: Path = RECORD) -> list[str]:
    """A sentence for each claim that stood better in the record; measured runs are not held against it."""
    before = {(row["exhibit"], row["claim"]): Standing(row["standing"]) for row in _rows(record)}
    lost = []
    for exhibit, claim in _modelled_claims(numbers):
        earlier = before.get((exhibit, claim.text), Standing.NOT)
        if _RANK[claim.standing] < _RANK[earlier]:
            lost.append(f"{exhibit}, {claim.text}: was {earlier}, is {claim.standing}")
    return lost


def unchecked_claims(numbers: Mapping[str, Numbers], record: Path = RECORD) -> list[str]:
    """A sentence for each claim that stood in the record and that no run here says anything of."""
    told = {(exhibit, claim.text) for exhibit, own in numbers.items() for claim in own.claims if claim.ours is not None}
    return [
        f"{row['exhibit']}, {row['claim']}: was {row['standing']}, has no run"
        for row in _rows(record)
        if row["standing"] != Standing.NOT and (row["exhibit"], row["claim"]) not in told
    ]


def accept(numbers: Mapping[str, Numbers], record: Path = RECORD) -> None:
    """Write the record of what holds now; a claim without a modelled number keeps its row."""
    before = {(row["exhibit"], row["claim"]): row for row in _rows(record)}
    rows = {
        exhibit: [row for claim in own.claims if (row := _row(exhibit, claim) or before.get((exhibit, claim.text)))]
        for exhibit, own in numbers.items()
    }
    for (exhibit, _), row in before.items():
        if exhibit not in numbers or not numbers[exhibit].claims:  # as of runs of another size
            rows.setdefault(exhibit, []).append(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(itertools.chain.from_iterable(rows.values()))
    write_atomically(record, text.getvalue().encode())


def _rows(record: Path) -> list[dict[str, str]]:
    """Of the record; none before it was first written."""
    if not record.exists():
        return []
    with record.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _row(exhibit: str, claim: Claim) -> dict[str, str] | None:
    """Of the record; None of a claim without a modelled number."""
    if claim.ours is None or claim.ours.source is not Source.MODELLED:
        return None
    values = (exhibit, claim.text, f"{claim.paper:.4g}", f"{claim.ours.y:.4g}", claim.unit, str(claim.standing))
    return dict(zip(_COLUMNS, values, strict=True))


def _modelled_claims(numbers: Mapping[str, Numbers]) -> list[tuple[str, Claim]]:
    return [
        (exhibit, claim)
        for exhibit, of_exhibit in numbers.items()
        for claim in of_exhibit.claims
        if claim.ours is not None and claim.ours.source is Source.MODELLED
    ]
