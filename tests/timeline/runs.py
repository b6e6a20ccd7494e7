"""Small modelled runs to look at: with migrations, with lost engines, and of one step."""

from dataclasses import replace
from pathlib import Path

from rollpacker import pipeline
from rollpacker.config.compose import compose
from tests.fuzz.faults import Fault, FaultKind
from tests.fuzz.test_worlds import CALM, outcome_of
from tests.sim.test_systems import SMALL


def modelled_run(run_dir: Path, *words: str) -> Path:
    pipeline.run(compose([*SMALL, f"run.dir={run_dir}", *words]))
    return run_dir


def run_with_lost_engines(folder: Path) -> Path:
    """Two engines, of which three die on the way and one attempt ends; what takes their place joins."""
    kills = [Fault(kind=FaultKind.ENGINE_CRASH, at_s=0.2 + 0.7 * number) for number in range(3)]
    killed = Fault(kind=FaultKind.DRIVER_KILL, at_event=150)
    outcome_of(folder, *kills, killed, world=replace(CALM, num_keys=(15, 14), max_restarts=10, restart_s=0.3))
    return folder / "run"
