"""`rollpacker train` on every node of a Slurm job, started by hand with sbatch and srun, and seen from outside."""

import os
import re
import shlex
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from slurm.mini_cluster import MiniCluster
from tests.e2e.processes import MARK, Process, ProcessesOfRun, engines_of
from tests.slurm.run_in_job import RunInJob

ROOT = Path(__file__).parents[2]
RANK = r"^\S*python\S* -m rollpacker"
RAYLET = r"^\S*/raylet "
"""How the command lines of a run's processes look; those of actors are titles, which nobody should rely on."""


class StepRun(RunInJob):
    """A run of one job on two nodes; every process that it starts carries its mark."""

    def __init__(
        self,
        cluster: MiniCluster,
        run_dir: Path,
        *overrides: str,
        cpus: int = 4,
        gpus: int = 0,
        of_rank_1: str | None = None,
        srun: str = "--kill-on-bad-exit=0",
        sbatch: Sequence[str] = (),
    ) -> None:
        """Submit it; `of_rank_1` is the command that the second rank runs instead."""
        super().__init__(cluster, run_dir)
        self.mark = uuid.uuid4().hex
        self._processes = ProcessesOfRun(self.mark)
        self._log = run_dir.with_suffix(".log")
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        words = [f"run.dir={run_dir}", "run.progress=plain", *overrides]
        command = shlex.join([sys.executable, "-m", "rollpacker.cli", "train", *words])
        task = f'if [ "$SLURM_PROCID" = 1 ]; then exec {of_rank_1 or command}; else exec {command}; fi'
        script = (
            f"export {MARK}={self.mark} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1\n"
            f"srun --ntasks-per-node=1 --cpus-per-task={cpus} {srun} bash -c {shlex.quote(task)}"
        )
        options = [*sbatch, "-N2", "--ntasks-per-node=1", f"-c{cpus}", "--mem=3000", "-o", str(self._log)]
        if gpus:
            options.append(f"--gres=gpu:{gpus}")
        self.job_id = cluster.submit(*options, script=script, cwd=ROOT)

    def output(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def wait_for_output(self, text: str) -> None:
        self.wait_until(lambda: text in self.output())

    def processes(self, pattern: str) -> list[tuple[str, int]]:
        """Node and pid of this run's processes whose command line looks like this."""
        alive = self._processes.alive().items()
        return sorted((_node(process), pid) for pid, process in alive if re.search(pattern, process.command))

    def engines(self) -> list[tuple[str, int]]:
        """Likewise of its engines."""
        engines = engines_of(self.run_dir, self._processes.alive())
        return sorted((_node(process), pid) for pid, process in engines.items())

    def wait_for_engines_on(self, *nodes: str) -> None:
        """Until engines were seen on all of these nodes, and on no other; a short job may be over by then."""
        seen: set[str] = set()

        def are_seen() -> bool:
            seen.update(node for node, _ in self.engines())
            return seen == set(nodes)

        self.wait_until(are_seen)

    def kill_9(self, node: str, processes: Sequence[tuple[str, int]]) -> None:
        """Kill the first of these processes that is on a node."""
        os.kill(next(pid for where, pid in processes if where == node), 9)

    def assert_nothing_is_left(self) -> None:
        self._processes.assert_all_end(timeout_s=120)


def _node(process: Process) -> str:
    return process.variable("SLURMD_NODENAME")
