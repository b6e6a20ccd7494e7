"""Sends each step's row to TensorBoard or Weights & Biases, beside Parquet.

Invariant: a tracker only receives. The tables are the record; a tracker's folder can be deleted and nothing is lost.
Both packages are optional (`pip install 'rollpacker[trackers]'`) and are imported only when asked for. Keys come from
the environment. A run keeps its id when it is resumed, so that it stays one curve.

Columns appear as `steps/<column>`: the table's name, then the column's, as in Parquet; those of the table `domains` as
`domains/<domain>/<column>`, parts of the reward as `domains/<domain>/reward_parts_mean/<part>`, and those of
`evaluations` as `evaluation/<set>/<column>`, at the number of finished steps.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from rollpacker.core.errors import ConfigError
from rollpacker.metrics.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rollpacker.config.sections.run import TrackerSection

    Row = Mapping[str, object]

INSTALL_COMMAND = "pip install 'rollpacker[trackers]'"

API_KEY_VARIABLE = "WANDB_API_KEY"

ONLINE_START_TIMEOUT_S = 30
"""A server that does not answer by then is an error before any engine starts; wandb itself would try for 90 s."""


class Tracker(Protocol):
    """Receives metrics."""

    def log_step(self, row: Row, domains: Sequence[Row] = ()) -> None:
        """Take a finished step's row of the `steps` table, and those of `domains`."""

    def log_evaluation(self, rows: Sequence[Row]) -> None:
        """Take an evaluation's rows of `evaluations`, before the step of the same number is logged."""

    def close(self) -> None:
        """Write everything and end every process of the tracker."""


def check_trackers(section: TrackerSection) -> None:
    """Raise `ConfigError` unless every tracker that is asked for can start. Loads no package."""
    for package, is_wanted in (("tensorboard", section.tensorboard), ("wandb", section.wandb)):
        if is_wanted and find_spec(package) is None:
            raise ConfigError(
                f"tracker.{package}=true, but the package {package} is not installed",
                "Trackers are optional packages",
                f"Install them with `{INSTALL_COMMAND}`, or set tracker.{package}=false",
            )
    if section.wandb and section.wandb_mode == "online" and not os.environ.get(API_KEY_VARIABLE):
        raise ConfigError(
            f"tracker.wandb_mode=online, but {API_KEY_VARIABLE} is not set",
            "The key comes from the environment, never from the configuration",
            f"Set {API_KEY_VARIABLE} (https://wandb.ai/authorize), or use tracker.wandb_mode=offline and `wandb sync`",
        )


def make_trackers(section: TrackerSection, run_dir: Path, run_id: str, config: Mapping[str, Any]) -> Tracker:
    """Start the trackers that are asked for, as one; with none it does nothing.

    Raises:
        ConfigError: A package or the key is missing, or Weights & Biases refuses to start.
    """
    check_trackers(section)
    with ExitStack() as started:
        trackers: list[Tracker] = []
        if section.tensorboard:
            trackers.append(TensorBoardTracker(run_dir / "tensorboard"))
            started.callback(trackers[-1].close)
        if section.wandb:
            trackers.append(WandbTracker(section, run_dir, run_id, config))
        started.pop_all()
    return TrackerGroup(trackers)


class TrackerGroup:
    """Several trackers as one."""

    def __init__(self, trackers: list[Tracker]) -> None:
        self._trackers = trackers

    def log_step(self, row: Row, domains: Sequence[Row] = ()) -> None:
        for tracker in self._trackers:
            tracker.log_step(row, domains)

    def log_evaluation(self, rows: Sequence[Row]) -> None:
        for tracker in self._trackers:
            tracker.log_evaluation(rows)

    def close(self) -> None:
        """Close all of them, also when one fails."""
        with ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(tracker.close)
            self._trackers = []


class TensorBoardTracker:
    """Writes an event file per attempt into one folder."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = folder
        self._event_pb2 = event_pb2
        self._summary_pb2 = summary_pb2
        with storage_errors(folder):
            self._writer = EventFileWriter(str(folder))
        self._has_begun = False

    def log_step(self, row: Row, domains: Sequence[Row] = ()) -> None:
        self._log(row["step"], _scalars(row, domains))

    def log_evaluation(self, rows: Sequence[Row]) -> None:
        self._log(rows[0]["step"], _evaluation_scalars(rows))

    def _log(self, step: object, scalars: Mapping[str, float]) -> None:
        values = [self._summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        with storage_errors(self._folder):
            if not self._has_begun:
                self._forget_from(step)
                self._has_begun = True
            summary = self._summary_pb2.Summary(value=values)
            self._writer.add_event(self._event_pb2.Event(wall_time=time.time(), step=step, summary=summary))
            self._writer.flush()

    def _forget_from(self, step: object) -> None:
        """Mark the steps of an earlier attempt from here on as replaced."""
        start = self._event_pb2.SessionLog(status=self._event_pb2.SessionLog.START)
        self._writer.add_event(self._event_pb2.Event(wall_time=time.time(), step=step, session_log=start))

    def close(self) -> None:
        with storage_errors(self._folder):
            self._writer.close()


class WandbTracker:
    """Sends steps to one Weights & Biases run; offline, it writes what `wandb sync` sends later."""

    def __init__(self, section: TrackerSection, run_dir: Path, run_id: str, config: Mapping[str, Any]) -> None:
        import wandb

        with storage_errors(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)  # wandb falls back to the system's temporary folder otherwise
        settings = wandb.Settings(
            silent=True,  # the run's own progress is on the screen
            init_timeout=ONLINE_START_TIMEOUT_S,
            console="off",  # do not upload what is printed
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,  # it would sample the driver's machine, not those of the engines
        )
        self._wandb = wandb
        try:
            self._run = wandb.init(
                project=section.wandb_project,
                id=run_id,
                name=run_dir.name,
                dir=str(run_dir),
                mode=section.wandb_mode,
                resume="allow",
                config=dict(config),
                settings=settings,
            )
        except wandb.Error as error:
            wandb.teardown()
            raise ConfigError(
                f"Weights & Biases did not start: {error}",
                f"tracker.wandb_mode is offline, or online with a valid {API_KEY_VARIABLE} and a network",
                "Use tracker.wandb_mode=offline and `wandb sync` later, or set tracker.wandb=false",
            ) from error

    def log_step(self, row: Row, domains: Sequence[Row] = ()) -> None:
        self._run.log(_scalars(row, domains), step=row["step"])

    def log_evaluation(self, rows: Sequence[Row]) -> None:
        self._run.log(_evaluation_scalars(rows), step=rows[0]["step"])

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()  # ends the process that wandb started, which would otherwise live as long as this one


def _scalars(row: Row, domains: Sequence[Row]) -> dict[str, float]:
    """Return the numbers of a step by the names of their curves."""
    scalars = _numbers("steps", row)
    for domain_row in domains:
        scalars |= _numbers(f"domains/{domain_row['domain']}", domain_row)
    return scalars


def _evaluation_scalars(rows: Sequence[Row]) -> dict[str, float]:
    scalars: dict[str, float] = {}
    for row in rows:
        scalars |= _numbers(f"evaluation/{row['set']}", row)
    return scalars


def _numbers(prefix: str, row: Row) -> dict[str, float]:
    """Return the finite numbers of a row, and those by name within it."""
    numbers: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            numbers |= _numbers(f"{prefix}/{name}", value)
        elif name != "step" and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            numbers[f"{prefix}/{name}"] = float(value)
    return numbers
