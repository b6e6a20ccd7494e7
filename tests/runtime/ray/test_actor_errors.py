"""Whatever an actor raises leaves its process as one of our errors, in words for a person."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from rollpacker.core.errors import ConfigError, EngineRaised, RollpackerError
from rollpacker.core.foreign_errors import failure_of, one_line
from rollpacker.runtime.ray.actors import Actor

LOG = Path("logs/trainer.log")


class Unpicklable(Exception):
    """As those of transformers' strict dataclasses."""

    def __init__(self, field: str, cause: Exception) -> None:
        super().__init__(f"{field}: {cause}")

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle this")


class OutOfMemoryError(RuntimeError):
    """torch's own is no MemoryError either."""


FOREIGN: dict[str, tuple[Exception, str]] = {
    "overflow": (ValueError("Overflow when unpacking long long"), "ValueError: Overflow when unpacking long long"),
    "unpicklable": (Unpicklable("layer_types", ValueError("odd")), "Unpicklable: layer_types: odd"),
    "nothing to say": (AssertionError(), "AssertionError"),
    "many lines": (RuntimeError("\n\n  first\nsecond\nthird"), "RuntimeError: first"),
    "a colon": (
        RuntimeError("Validation error:\n    ValueError: odd\n"),
        "RuntimeError: Validation error: ValueError: odd",
    ),
    "escape codes": (RuntimeError("\x1b[36mray::Trainer\x1b[39m at\x07 work"), "RuntimeError: ray::Trainer at  work"),
    "endless": (RuntimeError("x" * 10_000), f"RuntimeError: {'x' * 400} ..."),
    "operating system": (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
}


class _Failing(Actor):
    def __init__(self, error: Exception) -> None:
        """Redirect nothing: this is the tests' own process."""
        self._name, self._log, self._error = "trainer", LOG, error

    async def start(self) -> None:
        raise self._error


def error_of(raised: Exception) -> RollpackerError:
    with pytest.raises(RollpackerError) as caught:
        asyncio.run(_Failing(raised).call("start"))
    copy: RollpackerError = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  our own
    assert str(copy) == str(caught.value)
    return copy


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_exception_leaves_an_actor_as_one_line_with_its_log(
    case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    raised, said = FOREIGN[case]
    error = error_of(raised)
    assert type(error) is EngineRaised
    assert error.problem == f"trainer failed in start(): {said}"
    assert error.allowed == f"The traceback is in {LOG}."
    assert "Traceback" not in str(error)
    assert "Traceback (most recent call last)" in capfd.readouterr().err  # which is the actor's log


def test_an_error_that_a_user_can_mend_leaves_an_actor_as_it_is() -> None:
    raised = ConfigError("run.seed=-1 is out of bounds.", "It is at least 0.", "Raise it.")
    error = error_of(raised)
    assert type(error) is ConfigError
    assert str(error) == str(raised)


@pytest.mark.parametrize("raised", [MemoryError(), OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")])
def test_memory_that_runs_out_says_what_to_lower(raised: Exception) -> None:
    assert "trainer.max_tokens_per_microbatch" in error_of(raised).remedy


def test_one_line_of_nothing_is_nothing() -> None:
    assert one_line(" \n\t\n") == ""
    assert failure_of(KeyError(), "engine-0 failed", str(LOG)).problem == "engine-0 failed: KeyError"
