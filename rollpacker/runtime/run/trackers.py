"""Sends each step's row to TensorBoard, Weights & Biases, a file of JSON lines or a class of one's own, beside Parquet.

Invariants: a tracker only receives, a copy of its own. The tables are the record; a tracker's folder can be deleted and
nothing is lost.
One that does not start is an error before any engine starts; one that fails later gets nothing more, and the run goes
on. The packages are optional (`pip install 'rollpacker[trackers]'`) and are imported only when asked for. Keys come
from the environment, or from where `wandb login` keeps them. A run keeps its id when it is resumed, so that it stays
one curve.

Columns appear as `steps/<column>`: the table's name, then the column's, as in Parquet; those of the table `domains` as
`domains/<domain>/<column>`, parts of the reward as `domains/<domain>/reward_parts_mean/<part>`, and those of
`evaluations` as `evaluation/<set>/<column>`, at the number of finished steps. Weights & Biases also has the responses
that are kept as text, as the tables `samples/training` and `samples/evaluation`.
"""

from __future__ import annotations

import configparser
import inspect
import json
import math
import netrc
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from rollpacker.config.python_names import UnusableFunction, load_named, refusal
from rollpacker.core.errors import ConfigError
from rollpacker.metrics.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rollpacker.config.sections.run import TrackerSection

    Row = Mapping[str, object]

INSTALL_COMMAND = "pip install 'rollpacker[trackers]'"

API_KEY_VARIABLE = "WANDB_API_KEY"

_TOKEN_FILE_VARIABLE = "WANDB_IDENTITY_TOKEN_FILE"  # noqa: S105  (the name of a variable)
"""Names the file of a short-lived token, in place of a key."""
_SERVER_VARIABLE = "WANDB_BASE_URL"
_SERVER = "https://api.wandb.ai"
"""Unless the variable, or the settings file that `wandb login --host` writes, names another."""

JSONL_FILE = "tracker.jsonl"
"""In `run.dir`."""

_METHODS = {"log_step": ("row", "domains", "samples"), "log_evaluation": ("rows", "samples"), "close": ()}
"""Of a tracker, each with what it is called with, in this order."""

_STARTED_WITH = ("run_dir", "run_id", "config")
"""By name."""

_SAMPLE_COLUMNS = (
    *("prompt", "sample", "reward", "reward_reason", "accepted", "length_tokens", "finish_reason"),
    *("prompt_text", "response_text"),
)
"""Of tables of texts, behind the domain or the held-out set."""

_LONGEST_TAG = 64
"""Characters that Weights & Biases takes."""

ONLINE_START_TIMEOUT_S = 30
"""A server that does not answer by then is an error before any engine starts; wandb itself would try for 90 s."""

ONLINE_FINISH_TIMEOUT_S = 30
"""For what is not uploaded when a run ends, which is little: rows are sent as they are logged. wandb itself would wait
without a limit. By default a preempted run has 120 s to end (`cluster.signal_lead_s`), and a driver may stand still for
as long (`backend.deadlines.driver_stall_s`)."""


class Tracker(Protocol):
    """Receives metrics. Each call returns soon: the run waits for it."""

    def log_step(self, row: Row, domains: Sequence[Row] = (), samples: Sequence[Row] = ()) -> None:
        """Take a finished step's row of the table `steps`, those of `domains`, and those of `responses` with texts."""

    def log_evaluation(self, rows: Sequence[Row], samples: Sequence[Row] = ()) -> None:
        """Take an evaluation's rows of `evaluations`, and those of `evaluation_responses` with texts.

        It comes before the step of the same number is logged. An attempt that resumes a checkpoint begins with the
        evaluation that this one has: it may have been lost with the attempt before.
        """

    def close(self) -> None:
        """Write everything and end every process of the tracker."""


def check_trackers(section: TrackerSection) -> None:
    """Raise `ConfigError` unless every tracker that is asked for can start. Loads no package but the user's own."""
    for package, is_wanted in (("tensorboard", section.tensorboard), ("wandb", section.wandb)):
        if is_wanted and find_spec(package) is None:
            raise ConfigError(
                f"tracker.{package}=true, but the package {package} is not installed",
                "Trackers are optional packages",
                f"Install them with `{INSTALL_COMMAND}`, or set tracker.{package}=false",
            )
    if section.wandb and section.wandb_mode == "online" and not _has_key_of_wandb():
        raise ConfigError(
            f"tracker.wandb_mode=online, but {API_KEY_VARIABLE} is not set, nor is anybody logged in",
            "The key comes from the environment or from `wandb login`, never from the configuration",
            f"Set {API_KEY_VARIABLE} (https://wandb.ai/authorize) or run `wandb login` (for a server of your own, with "
            "--host=URL); or use tracker.wandb_mode=offline and `wandb sync`",
        )
    if section.plugin is not None:
        _load_plugin(section.plugin)


def _has_key_of_wandb() -> bool:
    """Look where wandb does: into the environment, and for the server's entry in the netrc file of `wandb login`."""
    if os.environ.get(API_KEY_VARIABLE) or os.environ.get(_TOKEN_FILE_VARIABLE):
        return True
    try:
        keys = netrc.netrc(_expanded(os.environ.get("NETRC") or "~/.netrc"))
        entry = keys.authenticators(urlsplit(_server_of_wandb()).netloc)
    except (OSError, ValueError, netrc.NetrcParseError):
        return False
    return entry is not None and bool(entry[2])


def _server_of_wandb() -> str:
    """The address of the server that wandb logs to."""
    settings = configparser.RawConfigParser()
    with suppress(ValueError, configparser.Error):
        settings.read(_expanded(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb") / "settings")
    return os.environ.get(_SERVER_VARIABLE) or settings.get("default", "base_url", fallback="") or _SERVER


def _expanded(path: str) -> Path:
    """With the home folder in the place of `~`, which stays where there is none."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  pathlib's raises without a home folder


def _load_plugin(source: str) -> Callable[..., Tracker]:
    problem = ""
    try:
        found = load_named(source)
    except UnusableFunction as error:
        problem = str(error)
    else:
        if not inspect.isclass(found):
            problem = "it is no class"
        elif missing := [name for name in _METHODS if not callable(getattr(found, name, None))]:
            problem = f"it has no method {' and no '.join(missing)}"
        elif unfit := [*_calls_not_taken(found)]:
            problem = "; ".join(unfit)
        else:
            return cast("Callable[..., Tracker]", found)
    raise ConfigError(
        f"tracker.plugin={source}: {problem}",
        f"A class with the methods {', '.join(map(_call, _METHODS))}, which is called with {', '.join(_STARTED_WITH)} "
        "by name",
        "See Tracker in rollpacker/runtime/run/trackers.py",
    )


def _calls_not_taken(tracker: type) -> Iterator[str]:
    """The calls that a class and its methods do not take, each with the reason, as far as their signatures tell."""
    if why := refusal(tracker, **dict.fromkeys(_STARTED_WITH)):
        yield f"it takes no {tracker.__name__}({', '.join(f'{name}=...' for name in _STARTED_WITH)}): {why}"
    for name, arguments in _METHODS.items():
        has_self = not isinstance(inspect.getattr_static(tracker, name), staticmethod | classmethod)
        if why := refusal(getattr(tracker, name), *(["self"] if has_self else []), *arguments):
            yield f"it takes no {_call(name)}: {why}"


def _call(method: str) -> str:
    return f"{method}({', '.join(_METHODS[method])})"


def make_trackers(
    section: TrackerSection,
    run_dir: Path,
    run_id: str,
    config: Mapping[str, Any],
    note: Callable[[str], None] = lambda _: None,
) -> Tracker:
    """Start the trackers that are asked for, as one; with none it does nothing.

    Args:
        section: Which ones.
        run_dir: Of the run.
        run_id: The same over its attempts.
        config: Of the run, as its record.
        note: Told of a tracker that failed.

    Raises:
        ConfigError: A package or the key is missing, or a tracker refuses to start.
    """
    check_trackers(section)
    with ExitStack() as started:
        trackers: list[Tracker] = []

        def start(tracker: Tracker) -> None:
            trackers.append(tracker)
            started.callback(tracker.close)

        if section.tensorboard:
            start(TensorBoardTracker(run_dir / "tensorboard"))
        if section.jsonl:
            start(JsonLinesTracker(run_dir / JSONL_FILE))
        if section.plugin is not None:
            start(_start_plugin(section.plugin, run_dir, run_id, config))
        if section.wandb:
            start(WandbTracker(section, run_dir, run_id, config))
        started.pop_all()
    return TrackerGroup(trackers, note)


def _start_plugin(source: str, run_dir: Path, run_id: str, config: Mapping[str, Any]) -> Tracker:
    plugin = _load_plugin(source)
    try:
        return plugin(run_dir=run_dir, run_id=run_id, config=deepcopy(dict(config)))
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"tracker.plugin={source} did not start: {type(error).__name__}: {error}",
            "The class is called with run_dir, run_id and config by name",
            "Correct it, or leave out tracker.plugin",
        ) from error


class TrackerGroup:
    """Several trackers as one; those that fail leave it."""

    def __init__(self, trackers: list[Tracker], note: Callable[[str], None] = lambda _: None) -> None:
        self._trackers = trackers
        self._note = note

    def log_step(self, row: Row, domains: Sequence[Row] = (), samples: Sequence[Row] = ()) -> None:
        self._tell(lambda tracker: tracker.log_step(*deepcopy((row, domains, samples))))

    def log_evaluation(self, rows: Sequence[Row], samples: Sequence[Row] = ()) -> None:
        self._tell(lambda tracker: tracker.log_evaluation(*deepcopy((rows, samples))))

    def close(self) -> None:
        """Close all of them, also when one fails."""
        self._tell(lambda tracker: tracker.close())
        self._trackers = []

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for tracker in [*self._trackers]:
            try:
                call(tracker)
            except (Exception, SystemExit) as error:  # noqa: BLE001  (other people's code: it never ends a training)
                self._trackers.remove(tracker)
                name = type(tracker).__name__
                self._note(f"{name} failed and gets nothing more: {type(error).__name__}: {error}")
                with suppress(Exception, SystemExit):
                    tracker.close()


class JsonLinesTracker:
    """Appends a line per step and per evaluation: `step`, and the numbers by the names of their curves."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with storage_errors(file):
            self._stream = file.open("a", encoding="utf-8", buffering=1)
            content = file.read_bytes()
            if not content.endswith(b"\n"):  # a kill or a full disk cut the last line
                self._stream.truncate(content.rfind(b"\n") + 1)

    def log_step(self, row: Row, domains: Sequence[Row] = (), samples: Sequence[Row] = ()) -> None:  # noqa: ARG002
        self._append(row["step"], _scalars(row, domains))

    def log_evaluation(self, rows: Sequence[Row], samples: Sequence[Row] = ()) -> None:  # noqa: ARG002  no texts here
        self._append(rows[0]["step"], _evaluation_scalars(rows))

    def _append(self, step: object, scalars: Mapping[str, float]) -> None:
        with storage_errors(self._file):
            self._stream.write(json.dumps({"step": step, **scalars}) + "\n")

    def close(self) -> None:
        with storage_errors(self._file):
            self._stream.close()


class TensorBoardTracker:
    """Writes an event file per attempt into one folder; what an earlier one has from the first step on is replaced."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = folder
        self._event_pb2 = event_pb2
        self._summary_pb2 = summary_pb2
        with storage_errors(folder):
            self._writer = EventFileWriter(str(folder))
        self._has_begun = False

    def log_step(self, row: Row, domains: Sequence[Row] = (), samples: Sequence[Row] = ()) -> None:  # noqa: ARG002
        self._log(row["step"], _scalars(row, domains))

    def log_evaluation(self, rows: Sequence[Row], samples: Sequence[Row] = ()) -> None:  # noqa: ARG002  no texts here
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
    """Sends steps to one Weights & Biases run; offline, it writes what `wandb sync` sends later.

    Curves are over `step`, a column of each row: by its own step Weights & Biases takes rows in ascending order only,
    and would drop the steps that a resumed run makes again. It deletes no rows. So the curves of a resumed run show
    what the attempt before logged of these steps, then return to the checkpoint's step and show what was made again,
    the evaluation there first. Of two rows of one step the later one is the run's.
    """

    def __init__(self, section: TrackerSection, run_dir: Path, run_id: str, config: Mapping[str, Any]) -> None:
        import wandb

        with storage_errors(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)  # wandb falls back to the system's temporary folder otherwise
        settings = wandb.Settings(
            silent=True,  # the run's own progress is on the screen
            init_timeout=ONLINE_START_TIMEOUT_S,
            finish_timeout=ONLINE_FINISH_TIMEOUT_S,
            finish_timeout_raises=True,
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
                name=section.wandb_name or "/".join(run_dir.resolve().parts[-2:]),
                group=section.wandb_group or _value(config, "run", "study") or run_dir.resolve().parent.name,
                entity=section.wandb_entity,
                tags=_tags(config) if section.wandb_tags is None else section.wandb_tags,
                notes=section.wandb_notes,
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
                "tracker.wandb_mode is offline, or online with a valid key and a network",
                "Use tracker.wandb_mode=offline and `wandb sync` later, or set tracker.wandb=false",
            ) from error
        self._run.define_metric("*", step_metric="step")

    def log_step(self, row: Row, domains: Sequence[Row] = (), samples: Sequence[Row] = ()) -> None:
        self._log(row["step"], _scalars(row, domains) | self._table("samples/training", samples))

    def log_evaluation(self, rows: Sequence[Row], samples: Sequence[Row] = ()) -> None:
        self._log(rows[0]["step"], _evaluation_scalars(rows) | self._table("samples/evaluation", samples))

    def _log(self, step: object, values: Mapping[str, Any]) -> None:
        self._run.log({"step": step, **values})

    def _table(self, name: str, samples: Sequence[Row]) -> dict[str, Any]:
        """Texts as a table of Weights & Biases; nothing where none were kept."""
        if not samples:
            return {}
        data = [[row.get("set", row["domain"]), *(row.get(column) for column in _SAMPLE_COLUMNS)] for row in samples]
        return {name: self._wandb.Table(columns=["group", *_SAMPLE_COLUMNS], data=data)}

    def close(self) -> None:
        try:
            self._run.finish()
        except TimeoutError as error:
            rest = f"`wandb sync {self._run.sync_dir}` sends the rest"
            raise TimeoutError(f"not all was uploaded within {ONLINE_FINISH_TIMEOUT_S} s; {rest}") from error
        finally:
            self._wandb.teardown()  # ends the process that wandb started, which would live as long as this one


def _tags(config: Mapping[str, Any]) -> list[str]:
    """The names of system and model."""
    model = _value(config, "model", "name") or Path(_value(config, "model", "path") or "").name
    return [name[:_LONGEST_TAG] for name in (_value(config, "system", "name"), model) if name]


def _value(config: Mapping[str, Any], section: str, key: str) -> str | None:
    value: str | None = (config.get(section) or {}).get(key)
    return value


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
