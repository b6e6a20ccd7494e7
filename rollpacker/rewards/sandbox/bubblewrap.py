"""Starts a runner in a sandbox of namespaces and resource limits.

`bubblewrap` creates namespaces for users, processes, IPC, host name, network and mounts. The root is empty but for
Python with its libraries and time zones (read-only, see `interpreter`), four devices, and a /tmp of bounded size in
memory. There is no /proc. The environment is fixed. The kernel kills everything inside with the sandbox's first
process, that with bubblewrap, and that with the supervisor.

`rlimits` starts the same runner with the same resource limits, and without isolation.

A supervisor that is root becomes `nobody` first: the kernel exempts root from the limit of processes, and root's files
would be root's inside too. Paths that `nobody` cannot reach, such as Python in /root, are mounted where it can, in a
mount namespace of the supervisor alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import marshal
import os
import platform
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollpacker.processes.lifetimes import (
    become_reaper,
    children_of,
    kill_descendants,
    set_parent_death_signal,
    tree_of,
)
from rollpacker.rewards.sandbox import system_calls
from rollpacker.rewards.sandbox.interpreter import find_interpreter_files
from rollpacker.rewards.sandbox.meter import KernelMemory
from rollpacker.rewards.sandbox.namespaces import is_real_root, namespace_options, start_error

NOBODY = 65534

_SANDBOX_MODULES = ("values", "rpc", "rpc_server", "loop_ends", "suppression", "rpc_client", "mini_pytest", "runner")
"""In the order in which they import each other."""

_BOOT_CODE = (
    "import marshal,os,sys\n"
    "def take(n):\n"
    "    parts=[]\n"
    "    while n:\n"
    "        part=os.read(0,n)\n"
    "        if not part: os._exit(1)\n"
    "        parts.append(part); n-=len(part)\n"
    "    return b''.join(parts)\n"
    "for name,code in marshal.loads(take(int.from_bytes(take(4),'big'))):\n"
    "    module=sys.modules[name]=type(sys)(name)\n"
    "    exec(code,module.__dict__)\n"
    "    package,_,own=name.rpartition('.')\n"
    "    setattr(sys.modules.setdefault(package,type(sys)(package)),own,module)\n"
    "module.serve(int(sys.argv[1]))\n"
)
"""Reads the runner's code and starts it."""

_ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108 the sandbox's own
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin",
    "PYTHONHASHSEED": "0",  # deterministic
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
}

_DEVICES = ("null", "full", "random", "urandom")
"""If they exist: Apptainer's --contain omits some. Not /dev/zero, a shared mapping of which is memory that
is not counted."""

_STDIN, _STDOUT = "/tmp/.stdin", "/tmp/.stdout"  # noqa: S108 the sandbox's own

_STREAMS = {"stdin": _STDIN, "stdout": _STDOUT, "stderr": "/dev/null"}
"""Targets of /dev/stdin, /dev/stdout and /dev/stderr."""

_PENDING_SIGNALS = 128
"""Also of timers; each is memory that belongs to no process."""

_STAGES = ("/mnt", "/media", "/srv", "/opt", "/home")
"""Folders of every system, to mount paths on that `nobody` cannot reach; the first that holds none of them."""

_END_LIMIT_S = 20.0
"""For the kernel to kill a sandbox, on a busy node."""

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
"""From <linux/sched.h> and <linux/mount.h>."""

_SCOPED_PROCESS_LIMITS = (5, 14)
"""The kernel that began to count the limit of processes per user namespace, no longer per user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a sandbox, as configured."""

    isolation: str
    memory_mb: int
    processes: int
    files_mb: int
    open_files: int
    output_mb: int
    packages: str | None

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb << 20

    @property
    def output_bytes(self) -> int:
        return self.output_mb << 20

    def resource_limits(self) -> list[tuple[int, int]]:
        """Of each process; set by the runner before a program starts, and never raised again."""
        limits = [
            # Addresses, not memory: stacks of threads are reserved and hardly used. The supervisor counts memory.
            (resource.RLIMIT_AS, 2 * self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.files_mb << 20),
            (resource.RLIMIT_NOFILE, self.open_files),
            (resource.RLIMIT_CORE, 0),
        ]
        release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
        if self.isolation == "bubblewrap" and release >= _SCOPED_PROCESS_LIMITS:
            limits.append((resource.RLIMIT_NPROC, self.processes + 1))  # and the runner
            limits.append((resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS))
        return limits


class BubblewrapLauncher:
    """Starts runners, in the supervisor. Created once: it may change the supervisor's user."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._code = _runner_code()
        self._files = find_interpreter_files()
        library_path = self._files.library_path
        self._environment = _ENVIRONMENT | ({"LD_LIBRARY_PATH": library_path} if library_path else {})
        self._is_isolated = bounds.isolation == "bubblewrap"
        self._live: set[int] = set()
        """First processes of the sandboxes that were started and not killed."""
        self._sources: Mapping[str, str] = {}
        self._filter = system_calls.make_filter() if self._is_isolated else b""
        self._command: Sequence[str] = ()
        if self._is_isolated:
            self._command = self._bubblewrap_command()
        else:
            become_reaper()

    def start(self) -> Sandbox:
        """Start a runner; it waits for its job."""
        ours, theirs = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        control = os.pipe2(os.O_CLOEXEC)
        calls = os.memfd_create("calls")
        os.write(calls, self._filter)
        os.lseek(calls, 0, os.SEEK_SET)
        reports = theirs[1]
        arguments = [self._files.program, "-s", "-S", "-P", "-c", _BOOT_CODE, str(reports)]
        passed = [reports]
        if self._is_isolated:
            arguments = [*self._command, "--seccomp", str(calls), "--", *arguments]
            passed.append(calls)
        try:
            process = subprocess.Popen(  # noqa: S603 bubblewrap or our own interpreter
                arguments,
                stdin=control[0],
                stdout=ours[1],
                stderr=subprocess.DEVNULL,
                pass_fds=passed,
                env=self._environment,
                cwd="/",
                start_new_session=not self._is_isolated,
                preexec_fn=None if self._is_isolated else _set_death_signal,  # noqa: PLW1509 the supervisor has one thread
            )
        except OSError:
            for file in (control[1], ours[0], theirs[0]):
                os.close(file)
            raise
        finally:
            for file in (control[0], ours[1], theirs[1], calls):
                os.close(file)
        self._live.add(process.pid)
        return Sandbox(
            process,
            self._live,
            control=control[1],
            output=ours[0],
            reports=theirs[0],
            boot_data=len(self._code).to_bytes(4, "big") + self._code,
            is_isolated=self._is_isolated,
        )

    def start_error(self) -> str:
        """Give the error message of a sandbox that does nothing."""
        python = [self._files.program, "-s", "-S", "-P", "-c", "pass"]
        command = [*self._command, "--", *python] if self._command else python
        return start_error(command, self._environment) or "exit code 0"

    def _bubblewrap_command(self) -> Sequence[str]:
        """Compose bubblewrap's command line; becomes `nobody` where this is root."""
        needed, packages = self._files, self.bounds.packages
        paths = [*needed.paths, *([packages] if packages is not None else [])]
        if is_real_root():
            self._sources = _mount_for_nobody(paths)
            _become_nobody()
        command = [
            *namespace_options(),
            *("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
        ]
        return [*command, *self._mount_options(), "--chdir", "/tmp", "--remount-ro", "/"]  # noqa: S108 the sandbox's own

    def _mount_options(self) -> Sequence[str]:
        needed, packages = self._files, self.bounds.packages
        # these files may lie in the host's /tmp or /dev/shm
        options = ["--size", str(self.bounds.files_mb << 20), "--tmpfs", "/tmp"]  # noqa: S108 the sandbox's own
        options += ["--symlink", "../tmp", "/dev/shm"]  # noqa: S108 the sandbox's own
        for path in needed.paths:
            options += self._bind(path)
        for folder in needed.hidden:
            options += ["--tmpfs", folder]
        if packages is not None:
            options += self._bind(packages)
        for folder in needed.hidden:
            options += ["--remount-ro", folder]
        for link, target in needed.links:
            options += ["--symlink", target, link]
        for link in ("/lib", "/lib64"):
            if Path(link).is_symlink():
                options += ["--symlink", str(Path(link).readlink()), link]
        for device in _DEVICES:
            options += ["--dev-bind-try", f"/dev/{device}", f"/dev/{device}"]
        for number, (name, target) in enumerate(_STREAMS.items()):
            options += ["--symlink", f"..{target}", f"/dev/{name}", "--symlink", f"../..{target}", f"/dev/fd/{number}"]
        return options

    def _bind(self, path: str) -> Sequence[str]:
        return "--ro-bind", self._sources.get(path, path), path


class Sandbox:
    """A started sandbox: its processes and its pipes."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        live: set[int],
        *,
        control: int,
        output: int,
        reports: int,
        boot_data: bytes,
        is_isolated: bool,
    ) -> None:
        self._process = process
        self._live = live
        self._is_isolated = is_isolated
        self._kernel_memory: KernelMemory | None = None
        self.control, self.output, self.reports = control, output, reports
        self.boot_data = boot_data
        """The runner's code, to be written to `control` first."""
        for file in (control, output, reports):
            os.set_blocking(file, False)

    @property
    def top_pid(self) -> int:
        """Root of the process tree: bubblewrap; with `rlimits` the supervisor, which adopts orphans."""
        return self._process.pid if self._is_isolated else os.getpid()

    @property
    def streams(self) -> dict[str, str | None]:
        """Where the runner makes what can be opened as /dev/stdin and /dev/stdout; with `rlimits`, /proc does."""
        return {"stdin": _STDIN if self._is_isolated else None, "stdout": _STDOUT if self._is_isolated else None}

    def begin(self) -> None:
        """Open what is read from outside, when the runner has started and no program has.

        Raises:
            OSError: The runner has ended, or this machine does not allow it.
        """
        if self._is_isolated:
            pids = list(tree_of(self._process.pid))  # bubblewrap, the namespace's first process, the runner
            if len(pids) < 3:  # noqa: PLR2004 these
                raise ChildProcessError("the runner has ended")
            runner = pids[2]
            self._kernel_memory = KernelMemory(runner)
            output = os.open(f"/proc/{runner}/root{_STDOUT}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.close(self.output)
            self.output = output

    def kernel_bytes(self) -> int:
        """Kernel memory of the sandbox beside that of its processes; not known with `rlimits`."""
        return self._kernel_memory.read_bytes() if self._kernel_memory else 0

    def kill(self) -> None:
        """Kill every process inside, and return when none is left; with `rlimits` also orphans of other sandboxes."""
        if self._kernel_memory:
            self._kernel_memory.close()
        if self._is_isolated:
            self._kill_namespace()
        self._process.kill()
        self._process.wait()
        self._live.discard(self._process.pid)
        if not self._is_isolated:
            kill_descendants(but=self._live)
        for file in (self.control, self.output, self.reports):
            os.close(file)

    def _kill_namespace(self) -> None:
        """Kill its first process, with which the kernel kills all others; bubblewrap then exits."""
        for pid in children_of(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if children_of(self._process.pid):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_LIMIT_S)


def _set_death_signal() -> None:
    set_parent_death_signal(signal.SIGKILL)


def _runner_code() -> bytes:
    folder = Path(__file__).parent
    package = __package__
    return marshal.dumps(
        [
            (f"{package}.{name}", compile((folder / f"{name}.py").read_text(encoding="utf-8"), f"{name}.py", "exec"))
            for name in _SANDBOX_MODULES
        ]
    )


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _mount_for_nobody(paths: Sequence[str]) -> dict[str, str]:
    """Mount paths where every user can read them, visible to this process and its children alone."""
    stage = next(
        folder
        for folder in _STAGES
        if Path(folder).is_dir() and not any(path == folder or path.startswith(f"{folder}/") for path in paths)
    )
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def mount(source: str, target: str, kind: str, flags: int, options: str | None = None) -> None:
        arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags))
        check(libc.mount(*arguments, None if options is None else options.encode()))

    check(libc.unshare(_CLONE_NEWNS))
    mount("none", "/", "none", _MS_REC | _MS_PRIVATE)
    mount("none", stage, "tmpfs", 0, "mode=755,size=1m")
    staged: dict[str, str] = {}
    for index, path in enumerate(paths):
        target = Path(stage, str(index))
        if Path(path).is_dir():
            target.mkdir(mode=0o755)
        else:
            target.touch()
        mount(path, str(target), "none", _MS_BIND | _MS_REC)
        staged[path] = str(target)
    return staged
