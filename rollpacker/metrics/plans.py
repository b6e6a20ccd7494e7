"""A plan's files: what modelled runs around one question came to, and the response lengths that they drew.

    DIR/plan.parquet      one row per modelled run
    DIR/lengths.parquet   quantiles of the lengths, by domain

Invariant: every row is modelled, and says so. A plan's folder appears as a whole (`files.publish_folder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rollpacker.core.errors import DataError
from rollpacker.metrics.files import storage_errors
from rollpacker.metrics.schemas import Column, TableSchema

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

PLAN_FILE = "plan.parquet"
LENGTHS_FILE = "lengths.parquet"

_MODELLED = Column(name="modelled", type="bool", unit="", description="True: computed by a model, not measured")

PLAN = TableSchema(
    name="plan",
    grain="One row per modelled run; per-step numbers are means of the steady state",
    columns=(
        Column(name="system", type="text", unit="", description="Name of the scheduling policy"),
        Column(
            name="eta",
            type="float",
            unit="1",
            description="Speculation factor of prompts and responses; null without speculation",
            is_nullable=True,
        ),
        Column(name="tensor_parallel", type="int", unit="1", description="GPUs of each engine, at the start"),
        Column(name="num_gpus", type="int", unit="1", description="GPUs of engines and trainer, which take turns"),
        Column(name="num_all_gpus", type="int", unit="1", description="With those of a judge that has its own"),
        Column(name="rho", type="float", unit="1", description="Correlation of the lengths within a prompt, assumed"),
        Column(name="seed", type="int", unit="1", description="Of prompts and lengths"),
        Column(name="num_steps", type="int", unit="1", description="Steps of the run"),
        Column(name="step_time_s", type="float", unit="s", description="Per step, until engines hold new weights"),
        Column(name="rollout_time_s", type="float", unit="s", description="Per step, until the batch was complete"),
        Column(name="train_time_s", type="float", unit="s", description="Per step, of the trainer"),
        Column(name="speedup", type="float", unit="1", description="Over plain batching, same seed", is_nullable=True),
        Column(name="long_share", type="float", unit="1", description="Long rounds among all rounds"),
        Column(name="bubble_ratio", type="float", unit="1", description="Idle share of the decode slots"),
        Column(name="wasted_share", type="float", unit="1", description="Generated tokens that were not trained"),
        Column(name="preemptions", type="float", unit="1", description="Preempted requests per step, all engines"),
        Column(name="kv_peak_share", type="float", unit="1", description="Largest share of a KV cache in use"),
        Column(name="kv_tokens_per_engine", type="int", unit="tokens", description="That fit an engine's KV cache"),
        Column(name="gpu_hours_per_1000_steps", type="float", unit="h", description="Of all GPUs"),
        Column(name="is_asked", type="bool", unit="", description="True at the GPUs and the rho of the question"),
        _MODELLED,
    ),
)

LENGTHS = TableSchema(
    name="lengths",
    grain="One row per quantile of a domain's response lengths as runs draw them",
    columns=(
        Column(name="domain", type="text", unit="", description="The domain of the prompts"),
        Column(name="p", type="float", unit="1", description="Share of responses that are at most so long"),
        Column(name="length_tokens", type="int", unit="tokens", description="Length, cut at the limit"),
        Column(name="limit_tokens", type="int", unit="tokens", description="rollout.max_response_tokens"),
        _MODELLED,
    ),
)

Row = Mapping[str, object]


def write_plan(folder: Path, trials: Sequence[Row], lengths: Sequence[Row]) -> None:
    """Write both tables into a folder that exists."""
    for name, table, rows in ((PLAN_FILE, PLAN, trials), (LENGTHS_FILE, LENGTHS, lengths)):
        with storage_errors(folder / name):
            pq.write_table(pa.Table.from_pylist(list(rows), schema=table.to_arrow()), folder / name)


def read_plan(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read runs and lengths.

    Raises:
        DataError: The folder holds no plan.
    """
    try:
        trials, lengths = (pq.ParquetFile(folder / name).read().to_pandas() for name in (PLAN_FILE, LENGTHS_FILE))
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{folder} holds no plan: {error}.",
            f"`rollpacker plan` writes {PLAN_FILE} and {LENGTHS_FILE} into out.",
            "Check the path.",
        ) from error
    return trials, lengths
