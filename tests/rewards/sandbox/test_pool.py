"""The pool's processes: none is left, whatever happens, and a machine that cannot isolate programs says so."""

import asyncio
import errno
import json
import os
import signal
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.sandbox import SandboxSection
from rollpacker.core.errors import EngineFailed, UserError
from rollpacker.launch.doctor.node import check_code_sandbox
from rollpacker.processes.lifetimes import children_of, tree_of
from rollpacker.processes.server_process import ServerProcess
from rollpacker.rewards.sandbox import supervisor as supervision
from rollpacker.rewards.sandbox import worker
from rollpacker.rewards.sandbox.bubblewrap import Bounds
from rollpacker.rewards.sandbox.sandbox_check import check_sandbox
from tests.e2e.processes import is_alive
from tests.rewards.sandbox.programs import Pool, request_of, write_prompts

ONE = {"id": "one", "test_cases": [{"input": "", "output": "1"}]}
ENDLESS = "while True: pass"
LONG_S = 200.0
"""A limit that is never reached; what waits for it fails the test by pytest's own limit."""


async def until(is_so):
    while not is_so():  # noqa: ASYNC110 processes of the system, which tell nobody
        await asyncio.sleep(0.02)


def programs_under(pid):
    """Processes inside the sandbox beside its first one: the runner and the program."""
    return [each for each in tree_of(pid) if each != pid][2:]


async def test_what_is_forgotten_is_killed_and_never_comes_back(tmp_path):
    one = write_prompts(tmp_path, [ONE])["one"]
    async with Pool(num_workers=1) as pool:
        (supervisor,) = pool.worker.pids
        await pool.worker.score([request_of(index, one, ENDLESS, limits_s=(LONG_S,)) for index in range(3)])
        await until(lambda: len(programs_under(supervisor)) == 2)
        await pool.worker.forget()
        await until(lambda: not children_of(supervisor))
        (verdict,) = await pool.score(request_of(7, one, "print(1)"))
        assert (verdict.request.sample, verdict.reason) == (7, "correct")
        assert pool.worker.pids == [supervisor]


async def test_what_is_forgotten_before_its_supervisor_has_it_never_runs(tmp_path):
    """Neither while its cases are read, nor while the supervisor starts."""
    one = write_prompts(tmp_path, [ONE])["one"]
    async with Pool(num_workers=1) as pool:
        for num_turns in (1, 20):
            await pool.worker.score([request_of(0, one, ENDLESS, limits_s=(LONG_S,))])
            for _ in range(num_turns):
                await asyncio.sleep(0)
            await pool.worker.forget()
            (verdict,) = await pool.score(request_of(7, one, "print(1)"))
            assert (verdict.request.sample, verdict.reason) == (7, "correct")


def test_what_is_stopped_before_its_supervisor_has_read_it_is_stopped():
    """A busy supervisor finds the request and the order to stop it together."""
    case = {"kind": "stdin", "input": "", "output": "1", "time_limit_s": None, "memory_limit_mb": None}
    program = {"source": ENDLESS, "entry_point": None, "has_prelude": False, "cases": [case], "limits_s": [LONG_S]}
    lines = "\n".join(map(json.dumps, (program, {"stop": True})))
    with closing(ServerProcess(worker.SUPERVISOR, [SandboxSection().bounds_json()], "supervisor")) as supervisor:
        assert supervisor.start_failure() is None
        assert supervisor.ask(lines, LONG_S / 2)["reason"] == "stopped"
        assert supervisor.ask(json.dumps(program | {"source": "print(1)"}), LONG_S)["reason"] == "correct"


async def test_closing_ends_what_runs_and_wakes_who_waits(tmp_path):
    one = write_prompts(tmp_path, [ONE])["one"]
    pool = Pool(num_workers=2)
    supervisors = pool.worker.pids
    await pool.worker.score([request_of(index, one, ENDLESS, limits_s=(LONG_S,)) for index in range(3)])
    await until(lambda: all(len(programs_under(supervisor)) == 2 for supervisor in supervisors))
    inside = [pid for supervisor in supervisors for pid in tree_of(supervisor)]
    waiting = asyncio.create_task(pool.worker.collect())
    await asyncio.sleep(0)
    await pool.worker.close()
    assert list(await waiting) == []
    await until(lambda: not any(is_alive(pid) for pid in inside))


async def test_a_killed_supervisor_takes_its_sandbox_with_it_and_is_replaced(tmp_path):
    one = write_prompts(tmp_path, [ONE])["one"]
    async with Pool(num_workers=1) as pool:
        (supervisor,) = pool.worker.pids
        await pool.worker.score([request_of(0, one, "import time; time.sleep(3600)", limits_s=(LONG_S,))])
        await until(lambda: len(programs_under(supervisor)) == 2)
        inside = list(tree_of(supervisor))[1:]
        os.kill(supervisor, signal.SIGKILL)
        await until(lambda: not any(is_alive(pid) for pid in inside))
        await until(lambda: pool.worker.pids != [supervisor] and len(programs_under(pool.worker.pids[0])) == 2)
        os.kill(pool.worker.pids[0], signal.SIGKILL)
        assert [verdict.reason for verdict in await pool.worker.collect()] == ["checker_crashed"]
        (verdict,) = await pool.score(request_of(1, one, "print(1)"))
        assert verdict.reason == "correct"


def no_room(*_):
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_sandbox_is_started_again_where_the_machine_had_no_room_for_a_process(monkeypatch):
    starts = iter((no_room, no_room, lambda *_: "started", *[no_room] * 3))

    def start(*job):
        return next(starts)(*job)

    monkeypatch.setattr(supervision, "RunnerChannel", start)
    monkeypatch.setattr(supervision, "_START_PAUSE_S", 0.0)
    scorer = supervision._Scorer(SimpleNamespace(bounds=None), channel=None)
    scorer._begin = lambda _: None
    assert scorer._open({}) == "started"
    with pytest.raises(supervision.Failed, match="checker_crashed"):
        scorer._open({})


def test_a_comparison_that_finds_no_room_for_a_process_decides_nothing(monkeypatch):
    monkeypatch.setattr(os, "fork", no_room)
    scorer = supervision._Scorer(SimpleNamespace(bounds=None), channel=None)
    case = {"kind": "stdin", "output": "1"}
    watch = supervision._Watch(Bounds(**json.loads(SandboxSection().bounds_json())), limit_s=1.0, memory_bytes=1)
    with pytest.raises(supervision.Failed, match="checker_crashed"):
        scorer._compare(case, b"1.0", watch)
    scorer._compare(case, b"1", watch)


async def test_a_supervisor_that_says_nothing_costs_its_response_and_nothing_else(tmp_path, monkeypatch):
    one = write_prompts(tmp_path, [ONE])["one"]
    async with Pool(num_workers=1) as pool:
        assert [verdict.reason for verdict in await pool.score(request_of(0, one, "print(1)"))] == ["correct"]
        monkeypatch.setattr(worker, "_WALL_FACTOR", 0.0)
        monkeypatch.setattr(worker, "_WALL_GRACE_S", 0.1)
        (silent,) = await pool.score(request_of(1, one, ENDLESS, limits_s=(LONG_S,)))
        monkeypatch.setattr(worker, "_WALL_GRACE_S", LONG_S)
        (after,) = await pool.score(request_of(2, one, "print(1)"))
    assert (silent.reason, after.reason) == ("checker_crashed", "correct")


async def test_without_walls_the_limits_hold_and_nothing_is_left(tmp_path):
    """No program of this test harms anybody."""
    one = write_prompts(tmp_path, [ONE])["one"]
    leaver = (
        "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    while True: pass\n"
        "  os._exit(0)\nprint(1)"
    )
    async with Pool(num_workers=1, isolation="rlimits", memory_mb=128) as pool:
        (supervisor,) = pool.worker.pids
        verdicts = await pool.score(
            request_of(0, one, "print(1)"),
            request_of(1, one, ENDLESS, limits_s=(0.2,)),
            request_of(2, one, "v = bytearray(500 << 20); print(1)"),
            request_of(3, one, leaver),
            request_of(4, one, "import time; time.sleep(3600)", limits_s=(0.2,)),
        )
        assert [verdict.reason for verdict in verdicts] == ["correct", "timeout", "memory", "correct", "timeout"]
        assert all(verdicts[index].case_runs[0].time_s > 0.2 for index in (1, 4)), "a limit of own time"
        assert children_of(supervisor) == []


SECOND_START = """
import itertools, sys
from rollpacker.rewards.sandbox import supervisor

starts, begin = itertools.count(), supervisor._Scorer._begin

def begin_but_once(scorer, sandbox):
    begin(scorer, sandbox)
    if next(starts) == 2:  # after the trial's and the program's
        raise supervisor.Failed("checker_crashed")

supervisor._Scorer._begin = begin_but_once
sys.exit(supervisor.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("isolation", ["bubblewrap", "rlimits"])
async def test_a_second_start_of_the_tests_sandbox_leaves_the_program_alone(tmp_path, monkeypatch, isolation):
    (tmp_path / "second_start.py").write_text(SECOND_START)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(worker, "SUPERVISOR", "second_start")
    asserted = write_prompts(tmp_path, [{"id": "a", "test": "from solution import f\nassert f() == 1"}])["a"]
    async with Pool(num_workers=1, isolation=isolation) as pool:
        (supervisor,) = pool.worker.pids
        (verdict,) = await pool.score(request_of(0, asserted, "def f(): return 1"))
        assert verdict.reason == "correct"
        assert children_of(supervisor) == []


async def test_a_prompt_file_that_was_changed_is_said(tmp_path):
    one = write_prompts(tmp_path, [ONE])["one"]
    one.line.path.write_text("{}\n")
    async with Pool(num_workers=1) as pool:
        with pytest.raises(UserError, match="not what it was when the run began"):
            await pool.score(request_of(0, one, "print(1)"))


async def test_where_bubblewrap_is_missing_nothing_starts_and_the_remedy_is_said(tmp_path, monkeypatch):
    assert "isolates programs" in check_sandbox(SandboxSection())
    assert check_code_sandbox(RewardSection(name="sandbox")).level == "ok"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError) as caught:
        check_sandbox(SandboxSection())
    for words in ("reward.sandbox.isolation=bubblewrap", "no program `bwrap`", "rlimits", "read this user's files"):
        assert words in str(caught.value)
    assert check_code_sandbox(RewardSection(name="sandbox")).level == "problem"
    assert check_code_sandbox(RewardSection(name="math")).level == "warning"


async def test_where_namespaces_are_forbidden_nothing_starts_and_the_reason_is_said(tmp_path, for_anybody, monkeypatch):
    refusing = for_anybody / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{for_anybody}:{os.environ['PATH']}")
    with pytest.raises(UserError) as caught:
        check_sandbox(SandboxSection())
    for words in ("No permissions to create a new namespace", "user namespaces", "isolation=rlimits"):
        assert words in str(caught.value)
    one = write_prompts(tmp_path, [ONE])["one"]
    async with Pool(num_workers=1) as pool:
        with pytest.raises(EngineFailed, match="No permissions to create"):
            await pool.score(request_of(0, one, "print(1)"))


def test_the_clock_of_a_case_stands_still_while_others_have_the_core():
    """Own time is time on a core or asleep: a crowd on one core lengthens the wall time of each, not its own."""
    began_s = time.monotonic()
    from rollpacker.rewards.sandbox.meter import Meter

    children = []
    core = min(os.sched_getaffinity(0))
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, {core})
            while True:
                pass
        children.append(pid)
    meters = [Meter([pid]) for pid in children]
    try:
        while sum(meter.read().own_s for meter in meters) < 0.4 and time.monotonic() - began_s < LONG_S:
            os.sched_yield()
        usages = [meter.read() for meter in meters]
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert sum(usage.own_s for usage in usages) < sum(usage.wall_s for usage in usages) / 2
