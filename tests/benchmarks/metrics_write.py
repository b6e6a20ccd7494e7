"""Measures what metrics cost a run: `python -m tests.benchmarks.metrics_write`.

Prints the time that one step's tables take (1 row, 2,000 responses, 800 intervals), with and without the merging of
64 steps into one file, and how many events per second the event log takes. The goals are 10 ms and 30,000 per second.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from fractions import Fraction
from pathlib import Path

from rollpacker.core.commands import ScoreResponse
from rollpacker.core.events import Event, ResponseFinished, RewardComputed
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.core.settings import SchedulerSettings
from rollpacker.metrics.columns import Column
from rollpacker.metrics.event_log import EventLogWriter, read_event_log
from rollpacker.metrics.schemas import TABLES
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.metrics.tables import read_table

NUM_STEPS = 256
NUM_EVENTS = 100_000
NUM_ROWS = {"steps": 1, "domains": 3, "responses": 2000, "intervals": 800}


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
        case "floats by name" | "texts":
            return None


def measure_tables() -> None:
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


def measure_event_log() -> None:
    settings = SchedulerSettings(
        batching="tail",
        num_prompts=64,
        num_responses=8,
        eta_prompts=Fraction(5, 4),
        eta_responses=Fraction(5, 4),
        overlap_rewards=True,
        domain_weights=((Domain("math"), Fraction(1)),),
    )
    engine = EngineId("engine-3")
    requests = [RequestId(round=3, prompt=PromptId(epoch=0, key=f"deepmath-{n:06d}"), sample=n % 8) for n in range(500)]
    folder = Path(tempfile.mkdtemp())
    try:
        path = folder / "attempt-000.jsonl"
        writer = EventLogWriter(path, settings, None)
        started, started_cpu = time.perf_counter(), time.thread_time()
        for number in range(NUM_EVENTS):
            request = requests[number % len(requests)]
            event: Event = (
                RewardComputed(request=request, reward=1.0)
                if number % 2
                else ResponseFinished(
                    request=request, engine=engine, num_tokens=number % 900, spans=(VersionSpan(3, number % 900),)
                )
            )
            writer.append(event, number * 0.001, (ScoreResponse(request=request),))
        writer.close()
        time_s, cpu_s = time.perf_counter() - started, time.thread_time() - started_cpu
        num_bytes = path.stat().st_size
        started = time.perf_counter()
        read_event_log(path)
        read_s = time.perf_counter() - started
    finally:
        shutil.rmtree(folder)
    print(
        f"event log: {NUM_EVENTS / time_s:,.0f} events per second written ({NUM_EVENTS / cpu_s:,.0f} by its CPU time), "
        f"{num_bytes / NUM_EVENTS:.0f} bytes each; {NUM_EVENTS / read_s:,.0f} per second read"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    measure_tables()
    measure_event_log()


if __name__ == "__main__":
    main()
