"""The commands of rows that are whole runs."""

import asyncio

import pytest

from rollpacker.config.compose import compose
from rollpacker.gpu_check import runs
from rollpacker.gpu_check.inputs import Bench
from rollpacker.gpu_check.outcomes import Refuted


@pytest.mark.parametrize("row", [runs.learns, runs.lost_engine])
def test_a_folder_may_have_any_name(row, tmp_path, monkeypatch):
    commands = []

    class Process:
        returncode = 1

        def __init__(self, command):
            commands.append(command)

        def wait(self):
            return self.returncode

        poll = wait

    monkeypatch.setattr("subprocess.Popen", Process)
    monkeypatch.setattr("rollpacker.demo.inputs.are_made", lambda _: True)
    folder = tmp_path / "it's project (2), ${x}"
    with pytest.raises(Refuted, match="the run ended with exit code 1"):
        asyncio.run(row(Bench(folder=folder, model=None, num_gpus=1, has_gpus=False)))
    [command] = commands
    config = compose(command[command.index("train") + 1 :])
    files = (*config.data.files, *config.evaluation.files)
    assert len(files) == (2 if row is runs.learns else 1)
    for path in (config.model.path, config.run.dir, *(file.location for file in files)):
        assert path.is_relative_to(folder)
