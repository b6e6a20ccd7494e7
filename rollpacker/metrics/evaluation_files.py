"""Held-out responses outside a run's folder: the file that `rollpacker evaluate` writes, and reads to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollpacker.core.errors import DataError
from rollpacker.metrics.evaluation_schemas import EVALUATION_RESPONSES
from rollpacker.metrics.outputs import open_output
from rollpacker.metrics.tables import read_table
from rollpacker.paths import reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Row = dict[str, Any]

_COMPARED = ("step", "set", "prompt", "sample", "reward")
"""What a comparison needs."""
_SCHEMA = pa.schema([EVALUATION_RESPONSES.to_arrow().field(name) for name in _COMPARED])
_SOURCES = "It is the run.dir of a run with evaluations, or a file that `rollpacker evaluate out=FILE` wrote"


def write_responses(out: Path, run_dirs: Mapping[int, Path]) -> None:
    """Write the table `evaluation_responses` of some runs of no steps as one Parquet file.

    Args:
        out: The file.
        run_dirs: By the step of the policy that each of them evaluated, which its rows then have.
    """
    tables = []
    for step, run_dir in run_dirs.items():
        table = read_table(run_dir, EVALUATION_RESPONSES.name)
        place = table.schema.get_field_index("step")
        tables.append(table.set_column(place, table.schema.field(place), pa.array([step] * len(table), pa.int64())))
    with open_output(out) as file:
        pq.write_table(pa.concat_tables(tables), file)


def read_newest_responses(source: Path) -> list[Row]:
    """Read the responses of the newest evaluation of a run, or of such a file: set, prompt, sample and reward.

    Raises:
        DataError: It is neither, as a folder of runs is, has no evaluation, or values of another type, nulls or NaN.
    """
    if not source.exists():
        raise DataError(f"{source} does not exist", _SOURCES, "Correct the path")
    if source.is_dir():
        _refuse_folder_of_runs(source)
        table = read_table(source, EVALUATION_RESPONSES.name).select(list(_COMPARED))
    else:
        try:
            read = pq.read_table(source, columns=list(_COMPARED)).select(list(_COMPARED))
            _refuse_no_numbers(source, read.schema.field("reward").type)
            table = read.cast(_SCHEMA)
        except (OSError, ValueError, KeyError, NotImplementedError) as error:  # pyarrow's own are among them
            reason = reason_of(error).partition("\n")[0]
            raise DataError(
                f"{source} cannot be read as held-out responses: {reason}", _SOURCES, "Correct the path"
            ) from error
    if pc.any(pc.is_nan(table["reward"])).as_py():
        raise DataError(
            f"{source} has rewards that are NaN",
            "The reward of a held-out response is a number",
            "Take those rows out, or evaluate once more",
        )
    if len(table):
        table = table.filter(pc.equal(table["step"], pc.max(table["step"])))
    rows: list[Row] = table.to_pylist()
    if not rows:
        raise DataError(f"{source} has no held-out responses", "It has at least one evaluation", "Name another one")
    return rows


def _refuse_folder_of_runs(folder: Path) -> None:
    """Refuse what `rollpacker evaluate at=all run.dir=DIR` and multiruns leave."""
    runs = sorted(path.parent for path in folder.glob("*/run.json"))
    if runs and not (folder / "run.json").exists():
        remedy = f"Name one of the runs in it, such as {runs[-1]}"
        raise DataError(f"{folder} is a folder of runs, and no run itself", _SOURCES, remedy)


def _refuse_no_numbers(source: Path, kind: pa.DataType) -> None:
    """Refuse rewards of a type that a cast would silently turn into numbers, such as text and booleans."""
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise DataError(
            f"{source} has rewards of the type {kind}",
            "The reward of a held-out response is a number",
            "Write the column as floating-point numbers, or name another file",
        )
