"""What a program takes is counted or refused, also where no process shows it."""

import os
import select
import signal
import threading
import time

import pytest

from rollpacker.rewards.sandbox.meter import Meter
from tests.rewards.sandbox.programs import Pool, reasons_of, request_of, write_prompts

BOUNDS = {"num_workers": 2, "memory_mb": 128, "processes": 32, "files_mb": 64}
LONG_S = 60.0
ONE = {"id": "one", "test_cases": [{"input": "", "output": "ok"}]}

HEAD = "import ctypes, mmap, os, socket, sys, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"
HOLD = "\nprint('ok', flush=True)\ntime.sleep(1000)"

TAKES_TOO_MUCH = {
    "links with long names": "for n in range(10**7): os.symlink('a', f'/tmp/{n:0250}')",
    "hard links": "open('/tmp/a', 'w').close()\nfor n in range(10**7): os.link('/tmp/a', f'/tmp/{n}')",
    "folders": "for n in range(10**7): os.mkdir(f'/tmp/{n}')",
    "FIFOs": "for n in range(10**7): os.mkfifo(f'/tmp/{n}')",
    "threads of a process whose first one ended": (
        "import threading\n"
        "def hold():\n    value = bytearray(150 << 20)\n    time.sleep(1000)\n"
        "threading.Thread(target=hold).start()\nlibc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)"
    ),
    "pages that are only read": (
        "libc.mmap.restype = ctypes.c_void_p\nlibc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_long] * 5]\n"
        "for process in range(4):\n  if os.fork() == 0: break\n"
        "for n in range(1, 30000):\n"
        "  place = libc.mmap((1 << 40) + (n << 30), 4096, 1, 0x32, -1, 0)\n  ctypes.string_at(place, 1)" + HOLD
    ),
    "sockets that wait to be accepted": (
        "servers = []\nfor n in range(40):\n"
        "  server = socket.socket(socket.AF_UNIX); server.bind(f'\\0{n}'); server.listen(4000)\n"
        "  servers.append(server)\n"
        "  try:\n    while True:\n      client = socket.socket(socket.AF_UNIX); client.setblocking(False)\n"
        "      client.connect(f'\\0{n}')\n"
        "      try:\n        while True: client.send(bytes(1 << 15))\n"
        "      except BlockingIOError: client.close()\n  except BlockingIOError: pass" + HOLD
    ),
    "sockets in pairs": (
        "pairs = []\nfor process in range(30):\n  if os.fork() == 0: break\n"
        "for n in range(24):\n  pairs.append(socket.socketpair()); pairs[-1][0].setblocking(False)\n"
        "  try:\n    while True: pairs[-1][0].send(bytes(1 << 15))\n  except BlockingIOError: pass" + HOLD
    ),
}

REFUSED = {
    "an extended attribute": "os.setxattr('/tmp', 'user.a', b'x' * 60000)",
    "shared memory without a file": "mmap.mmap(-1, 1 << 20)",
    "shared memory of a device": "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20)",
    "a huge page": "mmap.mmap(-1, 1 << 21, flags=0x40022)",
    "watches of files": "assert libc.inotify_init1(0) >= 0",
    "a larger pipe": "import fcntl; fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)",
    "datagrams": "socket.socketpair(type=socket.SOCK_DGRAM)",
    "packets": "socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    "a larger socket": "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)",
    "a lease": "import fcntl; fcntl.fcntl(os.open('/tmp', 0), fcntl.F_SETLEASE, 0)",
    "a notice of changes": "import fcntl; fcntl.fcntl(os.open('/tmp', 0), fcntl.F_NOTIFY, 1)",
    "a question for locks": "import fcntl; fcntl.fcntl(os.open(os.__file__, 0), fcntl.F_GETLK, bytes(32))",
    "what of a file is in memory": "assert libc.mincore(0, 0, 0) >= 0",
    "a ring of input and output": "assert libc.syscall(425, 8, bytes(512)) >= 0",
    "asynchronous input and output": "assert libc.syscall(206, 8, ctypes.byref(ctypes.c_long())) >= 0",
    "a lower priority": "os.nice(19)",
    "idle scheduling": "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
    "one core of its choice": "os.sched_setaffinity(0, {0})",
    "a rule of landlock": "assert libc.syscall(444, b'\\0' * 64, 8, 0) >= 0",
    "more signals": "import resource; resource.setrlimit(resource.RLIMIT_SIGPENDING, (9999, 9999))",
}

IGNORES_ITS_CHILDREN = {
    "by a handler": "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "by a flag": "libc.sigaction(17, b'\\0' * 136 + b'\\x02' + b'\\0' * 15, None)",
}
FORKS = """
while True:
    try:
        if os.fork() == 0:
            sum(range(10**5))
            os._exit(0)
    except OSError: pass
"""


@pytest.mark.parametrize("name", TAKES_TOO_MUCH)
async def test_memory_that_no_process_shows_is_counted(name, tmp_path):
    assert await reasons_of(tmp_path, [(ONE, HEAD + TAKES_TOO_MUCH[name])], limits_s=(LONG_S,), **BOUNDS) == ["memory"]


@pytest.mark.parametrize("isolation", ["bubblewrap", "rlimits"])
async def test_what_a_program_leaves_running_is_held_to_its_limits_while_its_output_is_compared(isolation, tmp_path):
    num_lines = 500_000
    long = {"test_cases": [{"input": "", "output": "1.5 2\n" * num_lines}]}
    program = (
        "import os, time\nfor _ in range(4):\n  if os.fork() == 0:\n    parent = os.getppid()\n"
        "    while os.getppid() == parent: time.sleep(0.001)\n    held = bytearray(<MB> << 20)\n    time.sleep(1000)\n"
        f"print('1.50 2\\n' * {num_lines})"
    )
    cases = [(long, program.replace("<MB>", each)) for each in ("100", "1")]
    assert await reasons_of(tmp_path, cases, **BOUNDS, isolation=isolation) == ["memory", "correct"]


async def test_an_input_is_no_memory_of_the_program_that_reads_it(tmp_path):
    case = {"input": "12345678\n" * (2 << 20), "output": f"{2 << 20}", "memory_limit_mb": 64}
    program = "import sys\nprint(sum(1 for _ in sys.stdin))"
    assert await reasons_of(tmp_path, [({"test_cases": [case]}, program)]) == ["correct"]


async def test_what_nobody_could_count_is_refused(tmp_path):
    tried = "\ntry:\n    {}\nexcept (OSError, ValueError, AssertionError): print('ok')\nelse: print('allowed')"
    reasons = await reasons_of(tmp_path, [(ONE, HEAD + tried.format(each)) for each in REFUSED.values()], **BOUNDS)
    assert dict(zip(REFUSED, reasons, strict=True)) == dict.fromkeys(REFUSED, "correct")


@pytest.mark.parametrize("way", IGNORES_ITS_CHILDREN)
async def test_time_of_children_that_nobody_waits_for_is_counted(way, tmp_path):
    one = write_prompts(tmp_path, [ONE])["one"]
    async with Pool(**BOUNDS) as pool:
        (verdict,) = await pool.score(
            request_of(0, one, f"{HEAD}{IGNORES_ITS_CHILDREN[way]}\n{FORKS}", limits_s=(0.5,))
        )
    assert verdict.reason in {"timeout", "processes"}
    assert verdict.reason == "processes" or verdict.case_runs[0].time_s > 0.5


async def test_time_is_counted_also_in_a_run_that_was_started_with_the_end_of_children_ignored(tmp_path):
    one = write_prompts(tmp_path, [ONE])["one"]
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        async with Pool(**BOUNDS) as pool:
            right, looping = await pool.score(
                request_of(0, one, "print('ok')"), request_of(1, one, f"{HEAD}{FORKS}", limits_s=(0.5,))
            )
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert right.reason == "correct"
    assert looping.reason == "processes" or looping.case_runs[0].time_s > 0.5


NORMAL = {
    "processes": "import multiprocessing as m\nwith m.Pool(3) as p: assert sum(p.map(abs, range(100))) == 4950",
    "an executor": (
        "from concurrent.futures import ProcessPoolExecutor as P\nwith P(2) as p: assert list(p.map(abs, [-1])) == [1]"
    ),
    "a manager": "import multiprocessing as m\nwith m.Manager() as a: assert a.list([1])[0] == 1",
    "shared values": "import multiprocessing as m\nv = m.Array('i', 1000)\nwith v.get_lock(): v[0] = 1",
    "named shared memory": (
        "from multiprocessing import shared_memory as s\nm = s.SharedMemory(create=True, size=1000)\n"
        "m.buf[0] = 1; m.close(); m.unlink()"
    ),
    "a queue": (
        "import multiprocessing as m\nq = m.Queue()\n"
        "p = m.Process(target=q.put, args=(1,)); p.start(); q.get(); p.join()"
    ),
    "coroutines": "import asyncio\nasyncio.run(asyncio.sleep(0))",
    "a child": (
        "import subprocess as s, sys\n"
        "assert s.run([sys.executable, '-S', '-c', 'print(1)'], capture_output=True).stdout"
    ),
    "a data base": "import sqlite3\nc = sqlite3.connect('/tmp/a.db'); c.execute('create table t(a)'); c.commit()",
    "a lock of a file": "import fcntl\nf = open('/tmp/a', 'w'); fcntl.flock(f, 2); fcntl.lockf(f, fcntl.LOCK_EX)",
    "a lock that another one holds, which tells nobody that there is another": (
        "import fcntl\na, b = open(os.__file__), open(os.__file__)\n"
        "fcntl.flock(a, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    ),
    "copies of files": "import shutil\nopen('/tmp/a', 'w').close(); shutil.copy2('/tmp/a', '/tmp/b')",
    "temporary files": "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')",
    "no zombies, please": "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "a timer": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(0, 0.01); signal.pause()"
    ),
    "spawned processes": (
        "import multiprocessing as m\ndef one(x): return 1\n"
        "if __name__ == '__main__':\n  with m.get_context('spawn').Pool(2) as p: assert sum(p.map(one, 'ab')) == 2\n"
        "else: print = len"  # they run the program, too
    ),
    "libraries in C": "import ssl, sqlite3, lzma, bz2, zlib, ctypes, decimal, hashlib, readline, curses, uuid",
}


async def test_what_programs_do_in_good_faith_works(tmp_path):
    reasons = await reasons_of(tmp_path, [(ONE, f"import os\n{each}\nprint('ok')") for each in NORMAL.values()])
    assert dict(zip(NORMAL, reasons, strict=True)) == dict.fromkeys(NORMAL, "correct")


def test_the_waits_of_several_threads_excuse_no_sleep_of_later():
    """Twelve processes on one core wait eleven times as long as it is; what they sleep then is own time."""
    pids, core = [], min(os.sched_getaffinity(0))
    ours, theirs = os.pipe()
    for _ in range(12):
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, {core})
            until_s = time.process_time() + 0.01
            while time.process_time() < until_s:
                pass
            os.write(theirs, b"x")
            signal.pause()
        pids.append(pid)
    meter = Meter(pids)
    try:
        num_asleep = 0
        while num_asleep < len(pids):
            meter.read()
            if select.select([ours], [], [], 0.01)[0]:
                num_asleep += len(os.read(ours, 12))
        while meter._is_ready:
            meter.read()
        before = meter.read()
        threading.Event().wait(2 * before.own_s)
        after = meter.read()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)
    assert after.own_s > 1.5 * before.own_s
