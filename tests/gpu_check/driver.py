"""Rows that are not real, and a process that checks them: `python -m` this, FOLDER GPUS MODEL ROW ..."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rollpacker.gpu_check import workers
from rollpacker.gpu_check.checking import Checking, Machine
from rollpacker.gpu_check.outcomes import NotPossible, require
from rollpacker.gpu_check.table import ROWS, Row

_HERE = "tests.gpu_check.driver"
PATIENCE_S = 900
"""For rows that end, on machines that do other things."""
TOGETHER = ("flash-attention", "turns", "sequence-cost-megatron", "round-start")
"""What `together` does."""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1e6)"


async def passes(bench):
    with (bench.folder / "passes").open("a") as file:
        file.write("once more\n")
    return {"tokens_per_s": 12.5}


async def refutes(bench):
    require(bench.num_gpus == 99, "the sleep freed nothing")


async def raises(bench):
    raise TypeError("varlen_attn() got an unexpected keyword argument")


async def crashes(bench):
    os.kill(os.getpid(), 11)


async def lacks(bench):
    raise NotPossible("the daemon does not start")


async def hangs(bench):
    """With a process in a session of its own, as Ray's are, which ignores what can be ignored."""
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=True, stdout=subprocess.PIPE)  # noqa: ASYNC220
    process.stdout.readline()
    (bench.folder / "pids").write_text(f"{os.getpid()} {process.pid}")
    time.sleep(PATIENCE_S)  # noqa: ASYNC251  # it hangs


async def together(bench):
    """Real rows in one process, whose workers are all forked from one that has imported what they need."""
    workers._PRELOADS += ("rollpacker.trainers.megatron.policy",)
    rows = {row.name: row for row in ROWS}
    figures = {}
    for name in TOGETHER:
        module, _, function = rows[name].function.partition(":")
        try:
            found = await getattr(importlib.import_module(module), function)(bench, **rows[name].arguments)
        except Exception as error:
            raise RuntimeError(f"{name}: {error}") from error
        figures |= {f"{name}.{figure}": value for figure, value in found.items()}
    return figures


FAKES = [
    Row(name=name, shows="nothing", function=f"{_HERE}:{name}", deadline_s=PATIENCE_S)
    for name in ("refutes", "passes", "raises", "crashes", "lacks", "hangs", "together")
]


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what runs in its background
    folder, num_gpus, model, *names = sys.argv[1:]
    deadline_s = float(os.environ.get("DEADLINE_S", PATIENCE_S))
    rows = {row.name: row for row in (*ROWS, *FAKES)}
    chosen = [
        Row(**_fields(rows[name]) | {"deadline_s": deadline_s if name == "hangs" else PATIENCE_S}) for name in names
    ]
    machine = Machine(hardware=f"{num_gpus} pretended GPUs", num_gpus=int(num_gpus), has_gpus=False)
    checking = Checking(folder=Path(folder), machine=machine, model=Path(model) if model else None)
    for row, outcome in checking.run(chosen):
        print(json.dumps([row.name, outcome.status, outcome.why, outcome.figures]), flush=True)  # noqa: T201


def _fields(row):
    return {name: getattr(row, name) for name in row.__slots__}


if __name__ == "__main__":
    main()
