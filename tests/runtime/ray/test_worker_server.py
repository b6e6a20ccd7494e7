"""Workers as a raylet starts them, with the scripts that a run uses."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollpacker.config import schema
from rollpacker.runtime.ray import start

SCRIPTS = Path(start.__file__).parent
LOADED = ["torch", "transformers.modeling_utils", schema.__name__]
SCRIPT = f"""\
import json, os, sys
loaded = [name for name in {LOADED} if name in sys.modules]
import torch
said = dict(arguments=sys.argv[1:], word=os.environ.get("WORD"), name=__name__, loaded=loaded, pid=os.getpid(),
            num_threads=len(os.listdir("/proc/self/task")), has_touched_gpus=torch.cuda.is_initialized(),
            removed="ONLY_OF_THE_SERVER" in os.environ)
print(json.dumps(said), flush=True)
if "--wait" in sys.argv:
    sys.stdin.read()
"""


class Server:
    def __init__(self, folder, scripts=SCRIPTS):
        self.path = str(folder / "workers")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen()
            self.process = subprocess.Popen(
                [sys.executable, "-P", scripts / "worker_server.py", str(listener.fileno()), str(os.getpid())],
                pass_fds=[listener.fileno()],
                env=os.environ | {"ONLY_OF_THE_SERVER": "1"},
            )

    def worker(self, script, *arguments, flags=(), **variables):
        own = ["--language=PYTHON", "--serialized-runtime-env-context={}"]
        return subprocess.Popen(
            [sys.executable, SCRIPTS / "worker.py", *flags, str(script), *arguments, *own],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"ROLLPACKER_WORKER_SERVER": self.path, **variables},
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture
def script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return script


def said_by(worker):
    out, _ = worker.communicate("", timeout=120)
    return json.loads(out)


def test_a_worker_has_its_own_arguments_environment_and_output_and_what_the_server_has_loaded(server, script):
    said = said_by(server.worker(script, "--wait", "b c", WORD="given"))
    assert said.pop("pid") not in (os.getpid(), server.process.pid)
    assert said == {
        "arguments": ["--wait", "b c"],
        "word": "given",
        "name": "__main__",
        "loaded": LOADED,
        "num_threads": 1,
        "has_touched_gpus": False,
        "removed": False,
    }


@pytest.mark.parametrize("server_is_there", [True, False])
def test_a_worker_starts_where_ray_repeats_flags_of_python(server, script, server_is_there):
    path = server.path if server_is_there else ""
    said = said_by(server.worker(script, "-s", flags=["-s"], ROLLPACKER_WORKER_SERVER=path))
    assert (said["arguments"], said["loaded"]) == (["-s"], LOADED if server_is_there else [])


def test_what_the_raylet_started_ends_when_the_worker_ends_and_the_dead_leave_no_zombie(server, script):
    worker = server.worker(script, "--wait")
    pid = json.loads(worker.stdout.readline())["pid"]
    assert worker.poll() is None
    os.kill(pid, signal.SIGKILL)
    worker.wait(timeout=60)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_one_that_is_killed_while_it_asks_takes_no_other_with_it(server, script):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server.path)
        socket.send_fds(client, [b"{"], [0, 1, 2])
    assert said_by(server.worker(script))["loaded"]


def test_without_the_server_a_worker_loads_for_itself(tmp_path, script):
    server = Server(tmp_path)
    server.process.kill()
    server.process.wait()
    said = said_by(server.worker(script, "a"))
    assert said["arguments"] == ["a"]
    assert not said["loaded"]


PARENT = """\
import sys
from pathlib import Path
from tests.runtime.ray.test_worker_server import Server
print(Server(Path(sys.argv[1])).process.pid, flush=True)
sys.stdin.read()
"""


def test_the_server_ends_with_its_parent(tmp_path):
    command = [sys.executable, "-c", PARENT, tmp_path]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    server = int(parent.stdout.readline())
    wait_until(lambda: b"worker_server.py" in command_of(server))
    wait_until(lambda: has_asked_for_the_signal(server))
    parent.kill()
    parent.communicate()
    wait_until(lambda: not command_of(server))


def has_asked_for_the_signal(pid):
    """It ignores the ends of its children from then on."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn"))
    return int(ignored.split()[1], 16) & (1 << (signal.SIGCHLD - 1))


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_is_loaded_of_us_is_of_the_package_that_the_server_belongs_to(tmp_path):
    scripts, sections = tmp_path / "rollpacker" / "runtime" / "ray", tmp_path / "rollpacker" / "config"
    for folder in (scripts, sections):
        folder.mkdir(parents=True)
    for file in (sections / "schema.py", sections / "__init__.py", tmp_path / "rollpacker" / "__init__.py"):
        file.write_text("")
    shutil.copy(SCRIPTS / "worker_server.py", scripts)
    server = Server(tmp_path, scripts)
    script = tmp_path / "script.py"
    script.write_text(f"import json, sys; print(json.dumps(sys.modules[{schema.__name__!r}].__file__))")
    assert said_by(server.worker(script)) == str(sections / "schema.py")
    server.process.kill()
    server.process.wait()
