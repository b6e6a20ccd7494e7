"""The tables of rollout workers and of what a run's machines cost. They have no steps: each is one file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rollpacker.metrics.columns import TableSchema, count, flag, number, seconds, text, tokens

WORKERS = TableSchema(
    name="workers",
    grain="One row per life of a rollout worker that came to the run, in the order of arrival",
    columns=(
        text("worker", "Its name: element of the job array, and the number of the life"),
        text("job", "The element, as Slurm's commands take it; null where it was in no job", is_nullable=True),
        text("node", "Host; null where none is known, as of a modelled worker", is_nullable=True),
        count("num_engines", "Engines that it came with"),
        count("attempt", "Of the run"),
        seconds("joined_at_s", "When it arrived, since the run began"),
        seconds("serving_at_s", "When its engines first held the newest policy; null: never", is_nullable=True),
        seconds("left_at_s", "When it was gone; null: it was there at the end of what is logged", is_nullable=True),
        text("end_reason", "Why it went, in words; null while it is there", is_nullable=True),
        tokens("num_tokens", "That its engines generated and that were kept, trained or not"),
        count("num_requests", "Requests that it finished"),
        count("num_moved_in", "Requests that went on there after another engine"),
        count("num_moved_out", "Requests that went on elsewhere"),
        tokens("tokens_kept", "Of num_tokens, those of requests that it was lost with, which it had reported"),
        tokens(
            "tokens_lost",
            "Estimate of what these requests lost: their tokens since its last report, at its mean rate; all, where "
            "elastic.keeps_tokens is false",
        ),
        count("num_pulls", "Times that an engine of it fetched and loaded a policy"),
        count("pulled_bytes", "In these fetches, by the model's size", unit="bytes"),
        seconds("pulling_s", "Sum of their durations"),
        flag("modelled", "True when times are from the modelled cluster"),
    ),
)

ALLOCATIONS = TableSchema(
    name="allocations",
    grain="One row per attempt of a Slurm job of the run, the trainer's first; without one, of the run or a life",
    columns=(
        text("kind", "trainer (the run's own job) or worker"),
        text("job", "As Slurm's commands take it; null outside a job", is_nullable=True),
        text("state", "Slurm's: COMPLETED, PREEMPTED, TIMEOUT, ...; of source run: over or running"),
        text("partition", "Slurm's; null outside a job", is_nullable=True),
        text("nodes", "As Slurm writes them; null where not known", is_nullable=True),
        seconds("submitted_at_s", "Since the epoch; null where not known", is_nullable=True),
        seconds(
            "started_at_s",
            "Since the epoch, of source run since the run began",
            is_nullable=True,
        ),
        seconds("ended_at_s", "The same of its end; null: it still runs", is_nullable=True),
        seconds("elapsed_s", "That it was allocated, so far; of source run from the first step on, without starting"),
        count("num_gpus", "GPUs allocated"),
        number("gpu_seconds", "num_gpus times elapsed_s", unit="s"),
        number(
            "billing", "Slurm's billing units times hours; null where the site sets none", unit="h", is_nullable=True
        ),
        number(
            "price_per_gpu_hour",
            "cluster.price_per_gpu_hour or elastic.price_per_gpu_hour; null where none is given",
            unit="1/h",
            is_nullable=True,
        ),
        number("cost", "GPU-hours at this price, in its currency; null without one", is_nullable=True),
        text("source", "Of the times: sacct, or run (event log and worker reports)"),
    ),
)

ACCOUNT_TABLES: Mapping[str, TableSchema] = MappingProxyType({table.name: table for table in (WORKERS, ALLOCATIONS)})
"""By their names. Of a run with workers, written by `rollpacker report`."""
