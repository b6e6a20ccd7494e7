"""What real processes of environments see of this machine, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rollpacker
from rollpacker.core.errors import ConfigError, UserError
from rollpacker.environments.isolation import bubblewrap_command, variables_of_environment
from rollpacker.environments.starting import EnvironmentStarter, starter_of
from rollpacker.environments.trial import tool_schemas, try_environment
from rollpacker.processes.lifetimes import tree_of
from rollpacker.processes.server_process import ServerProcess
from rollpacker.rewards.sandbox import namespaces
from rollpacker.rewards.sandbox.namespaces import is_real_root
from tests.e2e.processes import watched
from tests.environments.test_trial import config_of, prompt

WALK = "rollpacker.environments.walk_turns:WalkTurns"
ISOLATED = "environment.isolation=bubblewrap"
SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY", "CLIENT_SECRET", "RAY_ADDRESS", "SLURM_JOB_ID")

CURIOUS = """
import beside  # a module that lies beside this file
import os, socket, subprocess
from pathlib import Path


class Curious:
    def reset(self, seed):
        return "", {}

    def step(self, action):
        what, _, of = action.partition(" ")
        return str(getattr(self, what)(of)), 0.0, False, False, {}

    def variables(self, _):
        return "\\n".join(sorted(os.environ))

    def write(self, path):
        return Path(path).expanduser().write_text("written")

    def read(self, path):
        return Path(path).expanduser().read_text()

    def call(self, port):
        socket.create_connection(("127.0.0.1", int(port)), 5.0)
        return "reached"

    def listen(self, _):
        with socket.create_server(("127.0.0.1", 0)) as server:
            return self.call(server.getsockname()[1])

    def processes(self, _):
        return len([each for each in os.listdir("/proc") if each.isdigit()])

    def start(self, _):
        subprocess.Popen(["setsid", "sleep", "1000"])
"""

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap")


@pytest.fixture
def curious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment in the home of a user, beside whose key it lies."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text("the user's")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "beside.py").write_text("")
    (tmp_path / "source" / "curious.py").write_text(CURIOUS)
    return f"{tmp_path}/source/curious.py:Curious"


@contextmanager
def started(source: str, **others: Any) -> Iterator[ServerProcess]:
    readable = [Path(source.partition(":")[0]).parent]
    process = EnvironmentStarter(source, {}, readable=readable, **others).start()
    try:
        assert process.start_failure() is None
        yield process
    finally:
        process.close()


def said(process: ServerProcess, action: str) -> str:
    answer = process.ask(json.dumps({"step": {"text": action}}), 30.0)
    return str(answer.get("failure") or answer["observation"])


@pytest.mark.parametrize("is_isolated", [False, pytest.param(True, marks=needs_bubblewrap)])
def test_no_environment_sees_a_key_or_the_cluster_and_one_that_is_named_passes(
    curious: str, is_isolated: bool, monkeypatch: pytest.MonkeyPatch
):
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LC_TIME", "C.UTF-8")
    with started(curious, is_isolated=is_isolated) as process:
        seen = set(said(process, "variables").split())
    assert not seen.intersection(SECRETS)
    assert seen.issuperset({"PATH", "HOME", "LC_TIME", "PYTHONPATH", "OMP_NUM_THREADS"})
    with started(curious, is_isolated=is_isolated, pass_variables=["OPENAI_API_KEY"]) as process:
        assert seen.symmetric_difference(said(process, "variables").split()) == {"OPENAI_API_KEY"}


@pytest.mark.parametrize(("name", "unless_named"), [("CUDA_VISIBLE_DEVICES", ""), ("OMP_NUM_THREADS", "1")])
def test_gpus_and_threads_are_those_of_the_run_where_they_are_named(
    name: str, unless_named: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(name, "7")
    assert variables_of_environment([], None)[name] == unless_named
    assert variables_of_environment([name], None)[name] == "7"


def test_another_interpreter_does_not_look_where_the_packages_of_this_one_are(monkeypatch: pytest.MonkeyPatch):
    own, mine = str(Path(rollpacker.__file__).parents[1]), "/somewhere/mine"
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}{mine}")  # as `rollpacker.train` sets it for the run's process
    assert variables_of_environment([], None)["PYTHONPATH"].split(os.pathsep)[0] == own
    assert variables_of_environment([], "other/bin/python")["PYTHONPATH"] == mine


@needs_bubblewrap
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no such encoding' >&2; exit 3", "no such encoding"),
        ("echo 'Unknown option: -P\nTry -h for more information.' >&2; exit 2", "Unknown option: -P\nTry -h .*n\\.\n"),
        ("exit 3", "exit code 3"),
        ("echo 'no JSON'", "Expecting value"),
    ],
)
def test_an_interpreter_that_does_not_start_is_refused_with_its_own_words(script: str, reason: str, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(ConfigError, match=rf"environment\.python={python} does not start: {reason}"):
        bubblewrap_command({}, str(python), [], has_network=False)


def test_a_variable_that_is_named_and_not_set_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY, which is not set"):
        starter_of(
            config_of("environment=gym", f"environment.env={WALK}", "environment.pass_variables=[OPENAI_API_KEY]")
        )


@needs_bubblewrap
def test_an_isolated_environment_writes_to_a_home_of_its_own_and_nothing_else(curious: str, tmp_path: Path):
    source = tmp_path / "source" / "curious.py"
    with started(curious, is_isolated=True) as process:
        assert "No such file" in said(process, "read ~/key")
        assert "Read-only file system" in said(process, f"write {source}")
        assert "Read-only file system" in said(process, f"write {Path(__file__).parent / 'written'}")
        assert said(process, f"read {source}") == CURIOUS
        for path in ("~/key", "/tmp/isolated", "/dev/shm/isolated"):  # noqa: S108 as environments may
            assert said(process, f"write {path}") == "7"
            assert said(process, f"read {path}") == "written"
        assert int(said(process, "processes")) < 10
    assert (tmp_path / "key").read_text() == "the user's"
    assert not Path("/tmp/isolated").exists()  # noqa: S108 as above


@needs_bubblewrap
@pytest.mark.parametrize("place", ["home", "beside", "above"])
def test_a_run_that_would_show_an_environment_all_of_a_home_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    (home / "runs").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for folder in (tmp_path, home, home / "runs"):
        (folder / "beside.py").write_text("")
        (folder / "curious.py").write_text(CURIOUS)
    monkeypatch.chdir(home if place == "home" else home / "runs")
    source = {"home": WALK, "beside": f"{home}/curious.py:Curious", "above": f"{tmp_path}/curious.py:Curious"}[place]
    words = ("environment=gym", ISOLATED, "environment.max_restarts=0")
    with pytest.raises(ConfigError, match=rf"they would see all of {home}\.") as caught:
        try_environment(config_of(*words, f"environment.env={source}"), prompt())
    assert "Start the run in a folder of its own" in caught.value.remedy
    monkeypatch.chdir(home / "runs")
    try_environment(config_of(*words, "environment.env=curious.py:Curious"), prompt())


@needs_bubblewrap
def test_an_interpreter_behind_links_is_found_in_a_home_that_is_hidden(curious: str, tmp_path: Path):
    venv.create(tmp_path / "python-3.11.7", with_pip=False)
    (tmp_path / "python").symlink_to("python-3.11.7")
    with started(curious, is_isolated=True, python=f"{tmp_path}/python/bin/python") as process:
        assert "HOME" in said(process, "variables")


@needs_bubblewrap
@pytest.mark.parametrize("has_network", [False, True])
def test_an_isolated_environment_reaches_the_network_where_it_may_and_itself_always(curious: str, has_network: bool):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        started(curious, is_isolated=True, has_network=has_network) as process,
    ):
        found = said(process, f"call {server.getsockname()[1]}")
        assert found == "reached" if has_network else "Connection refused" in found
        assert said(process, "listen") == "reached"


@needs_bubblewrap
@pytest.mark.parametrize("way", ["close", "restart", "kill"])
def test_nothing_of_an_isolated_environment_outlives_its_process(curious: str, way: str):
    with started(curious, is_isolated=True) as process:
        said(process, "start")
        tree = list(tree_of(process.pid))
        assert len(tree) >= 5, "the keeper, bubblewrap, the environment and what it started"
        with watched(*tree) as wait_for_the_end:
            if way == "kill":
                os.kill(process.pid, signal.SIGKILL)
            else:
                getattr(process, way)()
            wait_for_the_end()


@needs_bubblewrap
def test_a_class_and_tools_are_tried_isolated_where_the_run_is(curious: str, tmp_path: Path):
    try_environment(config_of("environment=gym", f"environment.env={curious}", ISOLATED), prompt())
    calculate = "rollpacker.environments.calculator:calculate"
    words = ("environment=tools", ISOLATED)
    assert tool_schemas(config_of(f"environment.tools=[{calculate}]", *words))
    python = config_of("environment.tools=[rollpacker.environments.python_tool:python]", *words)
    if is_real_root():
        with pytest.raises(ConfigError, match="the tool `python` needs the sandbox, and none starts here"):
            tool_schemas(python)
    else:
        assert tool_schemas(python)


@needs_bubblewrap
def test_where_bubblewrap_is_missing_or_makes_no_namespaces_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = config_of("environment=gym", f"environment.env={WALK}", ISOLATED)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"(?s)environment\.isolation=bubblewrap.*no program `bwrap`.*rlimits"):
        try_environment(config, prompt())
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(
        UserError, match=r"(?s)No permissions to create.*user namespaces.*environment\.isolation=rlimits"
    ):
        try_environment(config, prompt())
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setattr(namespaces, "_TRIAL_LIMIT_S", 0.1)
    with pytest.raises(UserError, match=r"it did not start within 0\.1 s"):
        try_environment(config, prompt())
