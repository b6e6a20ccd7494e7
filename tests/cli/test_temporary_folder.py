"""The folder of a command that measures or evaluates: gone with it, unless its logs are needed."""

import tempfile

import pytest

from rollpacker.cli.temporary_folder import temporary_folder
from rollpacker.core.errors import ConfigError, EngineFailed, Interrupted, InvariantViolated


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def use_one(command, error=None):
    with temporary_folder(command) as folder:
        (folder / "engine-0.log").write_text("said")
        if error is not None:
            raise error


@pytest.mark.parametrize("kind", [EngineFailed, InvariantViolated])
def test_what_asks_for_its_logs_is_said_with_the_folder_that_has_them(scratch, kind):
    with pytest.raises(kind, match=r"(?s)Look there\.\nLogs are kept in .*rollpacker-profile-"):
        use_one("profile", kind("engine-0 has died.", "", "Look there."))
    assert [file.read_text() for file in scratch.glob("rollpacker-profile-*/engine-0.log")] == ["said"]


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("No.", "", ""),
        Interrupted("Ctrl-C.", "", ""),
        KeyboardInterrupt(),
        BrokenPipeError(),  # of `rollpacker evaluate RUN out=- | true`
        OSError("Disk full."),
        KeyError("a bug"),
    ],
)
def test_it_goes_where_nothing_needs_it(scratch, error):
    use_one("evaluate")
    with pytest.raises(type(error)):
        use_one("evaluate", error)
    assert list(scratch.iterdir()) == []


def test_one_that_cannot_be_removed_fails_no_command():
    with temporary_folder("evaluate") as folder:
        folder.rmdir()
