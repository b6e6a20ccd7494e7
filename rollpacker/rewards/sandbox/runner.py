"""The runner inside a sandbox: forks a process for each test case.

The supervisor sends the code of this file and of its imports over standard input; neither the project nor its files are
in the sandbox. It imports little, because every program pays for it, and is trusted with nothing: a program that kills
it, or writes in its place, gets no right answer by that.

A frame on either pipe is a letter, the length in 4 bytes, and the body.

* from the supervisor: `J` the job, `K` a case (both marshal), `M` a message from the other sandbox;
* to the supervisor: `B` ready for cases, `V` the value that a function returned (see `values`) or that the tests
  passed, `R` the name of an exception, `M` a message for the other sandbox, `E` the exit code of the case's process.
"""

from __future__ import annotations

import gc
import marshal
import os
import resource
import sys

from rollpacker.rewards.sandbox import mini_pytest, rpc_server
from rollpacker.rewards.sandbox.rpc import TESTS_FILE
from rollpacker.rewards.sandbox.values import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PRELUDE = ("collections", "functools", "heapq", "itertools", "math", "operator", "string")
"""Modules that function problems may use without an import, as the public graders allow; so are the names of `typing`,
which the given signatures need."""

_FILE = "solution.py"
"""The program's name; in a sandbox also its file."""


def serve(report_fd: int) -> None:
    """Run cases until the supervisor closes the pipe."""
    control = os.dup(0)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    frame = _read(control)
    if frame is None:
        return
    job = marshal.loads(frame[1])  # noqa: S302 of the supervisor
    for kind, value in job["limits"]:
        resource.setrlimit(kind, (value, value))
    if job["packages"] is not None:
        sys.path.append(job["packages"])
    if job["stdin"] is not None:
        _make_streams(job["stdin"], job["stdout"])
        with open(_FILE, "w", errors="replace") as file:  # noqa: PTH123 `pathlib` would be imported for it
            file.write(job["source"])  # which `__file__` and processes that are spawned read
    _make_quitters()
    names = _prelude() if job["has_prelude"] else {}
    for name in [name for name in sys.modules if name.partition(".")[0] == "rollpacker"]:
        del sys.modules[name]
    _send(report_fd, "B", b"")
    gc.freeze()  # what is here is not collected when each program ends
    pid = 0
    while (frame := _read(control)) is not None:
        if pid:
            os.waitpid(pid, 0)  # only now: the supervisor has measured it
        case = marshal.loads(frame[1])  # noqa: S302 of the supervisor
        frame = None
        pid = os.fork()
        if pid == 0:
            try:
                _run(job, case, names, control, report_fd)
            finally:
                os._exit(1)
        del case
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        _send(report_fd, "E", b"%d" % (ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status))


def _run(job: dict[str, Any], case: dict[str, Any], names: dict[str, Any], control: int, report_fd: int) -> None:
    """Run one case in a process of its own, which ends here."""
    resource.setrlimit(resource.RLIMIT_CPU, (case["cpu_s"], case["cpu_s"]))
    code = 0
    try:
        try:
            _run_kind(job, case, names, control, report_fd)
        except SystemExit as end:
            code = _exit_code(end)
            if case["kind"] != "stdin":
                _send(report_fd, "R", b"SystemExit")
        _finish()
    except BaseException as error:  # noqa: BLE001 the process boundary; only its name is used
        code = 1
        _send(report_fd, "R", type(error).__name__[:80].encode(errors="replace"))
    os._exit(code)


def _run_kind(job: dict[str, Any], case: dict[str, Any], names: dict[str, Any], control: int, report_fd: int) -> None:
    match case["kind"]:
        case "stdin":
            os.close(control)
            _give_input(case.pop("input"), job["stdin"])  # which is no memory of the program's
            _execute(job["source"], "__main__", {})
        case "call":
            os.close(control)
            function = rpc_server.find_name(_execute(job["source"], "solution", names), job["entry_point"])
            _send(report_fd, "V", encode(function(*case["args"])).encode())
        case "serve":
            module = _execute(job["source"], "solution", names)
            _send(report_fd, "M", b'["ready"]')
            rpc_server.serve(module, lambda: _read_message(control), lambda body: _send(report_fd, "M", body))
        case "test":
            tests = _compile(case["source"], TESTS_FILE)
            mini_pytest.run_tests(
                case["source"], tests, lambda: _read_message(control), lambda body: _send(report_fd, "M", body)
            )
            _send(report_fd, "V", b"null")


def _execute(source: str, name: str, names: dict[str, Any]) -> Any:
    module = type(sys)(name)
    module.__dict__.update(names, __file__=_FILE)
    sys.modules[name] = module
    sys.argv = [_FILE]
    exec(_compile(source, _FILE), module.__dict__)  # noqa: S102 what the sandbox is for
    return module


def _compile(source: str, file: str) -> Any:
    """Without the `__future__` of this file, under which annotations would be texts, and unknown names legal there."""
    return compile(source, file, "exec", dont_inherit=True)


def _make_streams(stdin: str, stdout: str) -> None:
    """Create the targets of /dev/stdin and /dev/stdout, so that they can be opened without /proc."""
    _give_input(b"", stdin)
    os.mkfifo(stdout, 0o600)
    file = os.open(stdout, os.O_RDWR)  # would wait for a reader otherwise
    os.dup2(file, 1)
    os.close(file)


def _make_quitters() -> None:
    """`exit` and `quit`, which -S leaves out."""
    import site

    site.setquit()


def _give_input(text: bytes, path: str | None) -> None:
    """Make standard input a file, so that a program that does not read it blocks nothing."""
    if path is None:
        file = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)  # noqa: S108 private
    else:
        if os.path.lexists(path):
            os.unlink(path)  # noqa: PTH108 the previous case's, or a program's file
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    left = memoryview(text)
    while left:
        left = left[os.write(file, left) :]
    os.lseek(file, 0, os.SEEK_SET)
    os.dup2(file, 0)
    os.close(file)


def _finish() -> None:
    """Do what the interpreter does at exit: wait for threads, call exit functions, flush, and drop what is left.

    A file that the program left open writes what it holds when it is dropped.
    """
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # noqa: SLF001 as the interpreter calls it
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()  # noqa: SLF001 as the interpreter calls it
    _flush(sys.stdout)
    gc.collect()  # as the interpreter does before: files in a cycle then come behind what writes into them
    names = getattr(sys.modules.get("__main__"), "__dict__", {})
    for name in list(names):
        if name != "__builtins__":
            names[name] = None
    gc.collect()
    try:  # noqa: SIM105 `contextlib` would be imported for it
        _flush(sys.__stdout__)
    except ValueError:
        pass  # it was detached, and is another file's


def _flush(file: Any) -> None:
    if file is not None and not getattr(file, "closed", False):
        file.flush()


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    return end.code & 0xFF if isinstance(end.code, int) else 1


def _prelude() -> dict[str, Any]:
    import importlib
    import typing

    names = {name: getattr(typing, name) for name in typing.__all__}
    for module_name in _PRELUDE:
        module = importlib.import_module(module_name)
        names[module_name] = module
        if module_name != "operator":  # whose names are too common
            public = getattr(module, "__all__", ()) or [name for name in dir(module) if not name.startswith("_")]
            names |= {name: getattr(module, name) for name in public}
    return names


def _read_message(control: int) -> bytes:
    frame = _read(control)
    if frame is None:
        os._exit(1)
    return bytes(frame[1])


def _read(control: int) -> tuple[str, bytearray] | None:
    head = _read_exactly(control, 5)
    if len(head) < 5:  # noqa: PLR2004 a letter and a length
        return None
    return chr(head[0]), _read_exactly(control, int.from_bytes(head[1:], "big"))


def _read_exactly(control: int, num_bytes: int) -> bytearray:
    """Without a second copy: an input counts as memory while it is read."""
    body = bytearray(num_bytes)
    left = memoryview(body)
    while left and (num_read := os.readv(control, [left])):
        left = left[num_read:]
    return body[: num_bytes - len(left)] if left else body


def _send(report_fd: int, letter: str, body: bytes) -> None:
    left = memoryview(letter.encode() + len(body).to_bytes(4, "big") + body)
    while left:
        left = left[os.write(report_fd, left) :]
