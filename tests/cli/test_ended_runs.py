"""Trainings that somebody ends, or that nobody reads, in processes of their own as a shell starts them."""

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.multirun import compose_sweep
from rollpacker.config.words import replaced
from rollpacker.core.errors import Interrupted
from rollpacker.metrics.tables import read_table
from rollpacker.runtime.run.status import read_status
from tests.cli.inputs import write_model
from tests.sim.composed import small
from tests.sim.test_determinism import SMALL

PATIENCE_S = 120
ROLLPACKER = [sys.executable, "-m", "rollpacker.cli"]
ENDLESS = replaced(SMALL, ["run.num_steps=1000000", "run.progress=plain"])


def as_a_shell_leaves_it() -> None:
    """Hear SIGHUP, also where the tests themselves were started by nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Training:
    """A modelled run without an end."""

    def __init__(self, run_dir: Path, *words: str, **options) -> None:
        self.run_dir = run_dir
        options = {"preexec_fn": as_a_shell_leaves_it} | options
        command = [*ROLLPACKER, "train", f"run.dir={run_dir}", *replaced(ENDLESS, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, text=True, **(pipes | options))

    @property
    def num_finished(self) -> int:
        status = read_status(self.run_dir)
        return status.finished_steps if status else 0

    def wait_for_steps(self, num_steps: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.num_finished < num_steps:
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        """Wait for it; gives its exit code and what it printed."""
        try:
            printed, _ = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, " ".join((printed or "").split())


def newest_checkpoint(run_dir: Path) -> int:
    (folder,) = (run_dir / "checkpoints").iterdir()
    return json.loads((folder / "meta.json").read_text())["step"]


def assert_it_was_saved(training: Training, number: signal.Signals, name: str) -> None:
    training.process.send_signal(number)
    ended, printed = training.end()
    assert ended == 128 + number
    status = read_status(training.run_dir)
    assert status.state == "interrupted"
    assert newest_checkpoint(training.run_dir) == status.finished_steps == len(read_table(training.run_dir, "steps"))
    assert f"{name}: saving a checkpoint of step" in printed
    assert "Once more leaves at once" in printed
    assert f"{name} ended the run after step {status.finished_steps} of 1000000. Its checkpoint is complete" in printed
    assert "Go on with the same command and run.resume=auto; if it names no run.dir," in printed
    assert f"also run.dir={training.run_dir}." in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")])
def test_a_signal_saves_what_was_trained_and_says_how_to_go_on(tmp_path, number, name):
    training = Training(tmp_path / "run")
    training.wait_for_steps(2)
    assert_it_was_saved(training, number, name)


def test_what_is_ignored_stays_ignored_as_nohup_wants_it_and_ctrl_c_saves_what_was_trained(tmp_path):
    training = Training(tmp_path / "run", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    training.wait_for_steps(1)
    training.process.send_signal(signal.SIGHUP)
    training.wait_for_steps(training.num_finished + 2)
    assert_it_was_saved(training, signal.SIGINT, "Ctrl-C")


@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=slurm", "hydra.launcher.executor=debug"]], ids=len)
def test_the_words_with_which_an_interrupted_multirun_goes_on_give_its_points_their_folders(
    launcher, tmp_path, monkeypatch, capsys
):
    began = []

    def interrupt(config, _):
        began.append(config.run.dir)
        raise Interrupted("Ctrl-C ended the run before any step.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rollpacker.launch.ranks.train", interrupt)
    words = [*SMALL, "system=verl,rollpacker", *launcher]
    with pytest.raises(SystemExit, match="130"):
        raise SystemExit(main(["train", "-m", *words]))
    (remedy,) = re.findall(r"also (run\.dir=.*)\.$", capsys.readouterr().err, re.MULTILINE)
    folders = [config.run.dir for config in compose_sweep([*words, *shlex.split(remedy)]).configs]
    assert folders[:1] == began  # the other one does not start
    assert folders[1:] == [began[0].with_name("1-rollpacker")]


CALLBACK = """
class Writes:
    def __init__(self, run_dir):
        self.out = run_dir / "told.txt"

    def on_checkpoint(self, path):
        self.out.open("a").write(f"{path.name}\\n")

    def on_end(self, error):
        self.out.open("a").write(f"{error}\\n")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_callbacks_are_told_of_the_checkpoint_that_a_signal_to_the_whole_group_saves(tmp_path, number):
    (tmp_path / "mine.py").write_text(CALLBACK)
    words = f"run.callbacks=[{tmp_path}/mine.py:Writes]"
    training = Training(tmp_path / "run", words, start_new_session=True)
    training.wait_for_steps(2)
    os.killpg(training.process.pid, number)
    ended, printed = training.end()
    assert ended == 128 + number
    checkpoint, end = (tmp_path / "run" / "told.txt").read_text().splitlines()
    assert checkpoint == f"step-{newest_checkpoint(tmp_path / 'run'):06d}"
    assert "ended the run after step" in end
    assert "The callback" not in printed


@pytest.mark.parametrize("progress", ["live", "plain"])
def test_a_terminal_that_is_closed_ends_a_run_with_a_checkpoint(tmp_path, progress):
    terminal, end_of_run = pty.openpty()

    def take_the_terminal() -> None:
        as_a_shell_leaves_it()
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    streams = dict.fromkeys(("stdin", "stdout", "stderr"), end_of_run)
    training = Training(tmp_path / "run", f"run.progress={progress}", preexec_fn=take_the_terminal, **streams)
    os.close(end_of_run)
    os.set_blocking(terminal, False)
    while training.num_finished < 2:
        try:
            os.read(terminal, 1 << 16)
        except BlockingIOError:
            time.sleep(0.02)
        assert training.process.poll() is None
    os.close(terminal)
    assert training.end()[0] == 129
    status = read_status(training.run_dir)
    assert status.state == "interrupted"
    assert newest_checkpoint(training.run_dir) == status.finished_steps


READERS = {
    "a reader that leaves": "| head -1",
    "closed output": ">&-",
    "closed errors": "2>&-",
    "closed streams": "<&- >&- 2>&-",
    "a full disk": "> /dev/full 2> /dev/full",
    "a tee that dies": "2>&1 | true",
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_training_goes_on_whoever_reads_it(tmp_path, reader):
    words = ["train", f"run.dir={tmp_path / 'run'}", *replaced(SMALL, ["run.num_steps=2", "run.progress=plain"])]
    command = " ".join([*ROLLPACKER, *words, reader, "; exit ${PIPESTATUS[0]}"])
    assert subprocess.run(["bash", "-c", command], check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert read_status(tmp_path / "run").state == "finished"
    assert len(read_table(tmp_path / "run", "steps")) == 2


def test_a_training_that_fails_says_so_by_its_exit_code_though_nobody_reads_it(tmp_path):
    (tmp_path / "run").write_text("")
    command = " ".join([*ROLLPACKER, "train", f"run.dir={tmp_path / 'run'}", *SMALL, "2>&- >&-"])
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 2


COMMANDS = {"--help": 0, "--version": 0, "jobs .": 0, "nonsense": 2, "report nothing": 2}


@pytest.mark.parametrize(("command", "code"), COMMANDS.items())
def test_other_commands_end_quietly_when_nobody_reads_them(tmp_path, command, code):
    for reader in (">&- 2>&-", "2> /dev/full", "| true"):
        line = f"{' '.join(ROLLPACKER)} {command} {reader}; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, check=False, capture_output=True, text=True)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


VERDICTS = {
    "doctor": (["backend.object_store_mb=90000000"], "checks found a problem"),
    "gpu-check": (["rows=decode", "out=checked"], "No row could run"),
    "evaluate": (
        [*small("model.path=null"), "evaluation.path=unseen.jsonl", "out=scores.parquet", "'require=unseen>=2'"],
        "unseen is 1, below 2",
    ),
    "check": (
        ["model.path=model", "data.path=unseen.jsonl", "rollout.num_prompts=1", "data.max_prompt_tokens=1"],
        "None of the 1 prompts of domain 'math' has at most data.max_prompt_tokens=1",
    ),
}


def ended(folder: Path, command: str, reader: str) -> subprocess.CompletedProcess[str]:
    """Run a command, with the words of its verdict, to its end."""
    words, _ = VERDICTS.get(command, ([], ""))
    (folder / "unseen.jsonl").write_text('{"id": "u", "domain": "math", "prompt": "1 + 1", "ground_truth": "2"}\n')
    write_model(folder / "model")
    line = f"{' '.join([*ROLLPACKER, command, *words])} {reader}; exit ${{PIPESTATUS[0]}}"
    no_gpus = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(["bash", "-c", line], cwd=folder, check=False, capture_output=True, text=True, env=no_gpus)


@pytest.mark.parametrize("command", VERDICTS)
def test_what_a_command_finds_is_its_exit_code_though_its_reader_leaves(tmp_path, command):
    done = ended(tmp_path, command, "| true")
    assert done.returncode in {1, 2}
    assert VERDICTS[command][1] in done.stderr
    assert (tmp_path / "scores.parquet").exists() == (command == "evaluate")


@pytest.mark.parametrize("command", ["--version", *(each for each in VERDICTS if each != "check")])
def test_output_that_does_not_fit_on_the_disk_is_said_once(tmp_path, command):
    done = ended(tmp_path, command, "> /dev/full")
    assert done.returncode == 1
    assert done.stderr.count("No space left on device") == 1
    assert (tmp_path / "scores.parquet").exists() == (command == "evaluate")
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_opened_so_that_no_file_takes_their_numbers(tmp_path, closed):
    program = (
        "import os\nfrom rollpacker.runtime.run.streams import open_closed_streams\nopen_closed_streams()\n"
        f"file = open({str(tmp_path / 'file')!r}, 'w')\nprint('lost')\nos.write(2, b'lost')\n"
        "file.write(str(file.fileno()))\n"
    )
    subprocess.run(["bash", "-c", f'"$1" -c "$2" {closed}', "bash", sys.executable, program], check=True)
    assert int((tmp_path / "file").read_text()) > 2
