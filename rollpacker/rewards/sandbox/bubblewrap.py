"""The walls: how a runner is started so that it sees nothing and takes no more than its share.

`bubblewrap` makes namespaces of its own for users, processes, IPC, host name, network and mounts. The root is empty but
for Python with its libraries (read-only, see `interpreter`), four devices, and /tmp of a bounded size in memory. There
is no /proc. The environment is a handful of fixed words. The kernel ends everything inside with the sandbox's first
process, and that with bubblewrap, and that with the keeper.

`rlimits` starts the same runner with the same limits of resources, and without walls.

Where the keeper is root, it becomes `nobody` first: the kernel exempts root from the limit of processes, and files of
root's would be root's inside too. What `nobody` could not reach, such as Python in /root, is mounted where it can, in
a mount namespace that only the keeper sees.
"""

from __future__ import annotations

import contextlib
import ctypes
import marshal
import os
import platform
import resource
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.rewards.processes import become_reaper, set_parent_death_signal
from rollpacker.rewards.sandbox import system_calls
from rollpacker.rewards.sandbox.interpreter import find_needed
from rollpacker.rewards.sandbox.meter import Holdings, children_of, tree_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOBODY = 65534

_MEBIBYTE = 1 << 20

_SANDBOX_MODULES = ("values", "remote", "answering", "asking", "testing", "inside")
"""In the order in which they import each other."""

_BOOT = (
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
    "PYTHONHASHSEED": "0",  # the same answer whenever it is asked
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
}

_DEVICES = ("null", "full", "random", "urandom")
"""Those that are here: Apptainer's --contain leaves some out. Not /dev/zero, a shared mapping of which is memory that
nobody counts."""

_STDIN, _STDOUT = "/tmp/.stdin", "/tmp/.stdout"  # noqa: S108 the sandbox's own

_STREAMS = {"stdin": _STDIN, "stdout": _STDOUT, "stderr": "/dev/null"}
"""Where /dev/stdin, /dev/stdout and /dev/stderr lead."""

_PENDING_SIGNALS = 128
"""Also of timers; each is memory that belongs to no process."""

_STAGES = ("/mnt", "/media", "/srv", "/opt", "/home")
"""Folders that every system has, to mount on what `nobody` cannot reach; one that nothing needed lies in."""

_END_LIMIT_S = 20.0
"""For the kernel to end a sandbox that was told to, on a node that is busy."""

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
"""From <linux/sched.h> and <linux/mount.h>."""

_SCOPED_PROCESS_LIMITS = (5, 14)
"""The kernel that began to count the limit of processes per user namespace; before, all processes of the user count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a sandbox may take, as the section says it."""

    isolation: str
    memory_mb: int
    processes: int
    files_mb: int
    open_files: int
    output_mb: int
    packages: str | None

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb * _MEBIBYTE

    @property
    def output_bytes(self) -> int:
        return self.output_mb * _MEBIBYTE

    def resource_limits(self) -> list[tuple[int, int]]:
        """Of each process, for the runner to set before there is a program; never to be raised again."""
        limits = [
            # Addresses, not memory: stacks of threads are reserved and hardly used. The keeper counts memory.
            (resource.RLIMIT_AS, 2 * self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.files_mb * _MEBIBYTE),
            (resource.RLIMIT_NOFILE, self.open_files),
            (resource.RLIMIT_CORE, 0),
        ]
        release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
        if self.isolation == "bubblewrap" and release >= _SCOPED_PROCESS_LIMITS:
            limits.append((resource.RLIMIT_NPROC, self.processes + 1))  # and the runner
            limits.append((resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS))
        return limits


class BubblewrapLauncher:
    """Starts runners, in the keeper. Made once: it may change the keeper's user."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._code = _runner_code()
        self._needed = find_needed()
        library_path = self._needed.library_path
        self._environment = _ENVIRONMENT | ({"LD_LIBRARY_PATH": library_path} if library_path else {})
        self._is_isolated = bounds.isolation == "bubblewrap"
        self._sources: Mapping[str, str] = {}
        self._filter = system_calls.make_filter() if self._is_isolated else b""
        self._words: Sequence[str] = ()
        if self._is_isolated:
            self._words = self._bubblewrap_words()
        else:
            become_reaper()

    def start(self) -> Sandboxed:
        """Start a runner, which waits for its job."""
        ours, theirs = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        control = os.pipe2(os.O_CLOEXEC)
        calls = os.memfd_create("calls")
        os.write(calls, self._filter)
        os.lseek(calls, 0, os.SEEK_SET)
        reports = theirs[1]
        words = [self._needed.program, "-s", "-S", "-P", "-c", _BOOT, str(reports)]
        passed = [reports]
        if self._is_isolated:
            words = [*self._words, "--seccomp", str(calls), "--", *words]
            passed.append(calls)
        try:
            process = subprocess.Popen(  # noqa: S603 bubblewrap or our own interpreter
                words,
                stdin=control[0],
                stdout=ours[1],
                stderr=subprocess.DEVNULL,
                pass_fds=passed,
                env=self._environment,
                cwd="/",
                start_new_session=not self._is_isolated,
                preexec_fn=None if self._is_isolated else _die_with_keeper,  # noqa: PLW1509 the keeper has one thread
            )
        finally:
            for file in (control[0], ours[1], theirs[1], calls):
                os.close(file)
        return Sandboxed(
            process,
            control=control[1],
            output=ours[0],
            reports=theirs[0],
            first_words=len(self._code).to_bytes(4, "big") + self._code,
            is_isolated=self._is_isolated,
        )

    def complaint(self) -> str:
        """What is said when a sandbox is started that does nothing."""
        words = [*self._words, *(["--"] if self._words else []), self._needed.program, "-s", "-S", "-P", "-c", "pass"]
        ended = subprocess.run(  # noqa: S603 as `start`
            words,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_END_LIMIT_S,
        )
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"it ends with code {ended.returncode}"

    def _bubblewrap_words(self) -> Sequence[str]:
        """Compose the command line, once; becomes `nobody` where this is root."""
        needed, packages = self._needed, self.bounds.packages
        paths = [*needed.paths, *([packages] if packages is not None else [])]
        if os.geteuid() == 0 and _is_real_root():
            self._sources = _stage(paths)
            _become_nobody()
        words = [
            shutil.which("bwrap") or "bwrap",
            "--unshare-user",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-net",
            "--unshare-uts",
        ]
        words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        words += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"]
        return [*words, *self._mount_words(), "--chdir", "/tmp", "--remount-ro", "/"]  # noqa: S108 the sandbox's own

    def _mount_words(self) -> Sequence[str]:
        needed, packages = self._needed, self.bounds.packages
        # what is needed may lie in the /tmp or the /dev/shm of outside
        words = ["--size", str(self.bounds.files_mb * _MEBIBYTE), "--tmpfs", "/tmp"]  # noqa: S108 the sandbox's own
        words += ["--symlink", "../tmp", "/dev/shm"]  # noqa: S108 likewise
        for path in needed.paths:
            words += self._bind(path)
        for folder in needed.hidden:
            words += ["--tmpfs", folder]
        if packages is not None:
            words += self._bind(packages)
        for folder in needed.hidden:
            words += ["--remount-ro", folder]
        for link, target in needed.links:
            words += ["--symlink", target, link]
        for link in ("/lib", "/lib64"):
            if Path(link).is_symlink():
                words += ["--symlink", str(Path(link).readlink()), link]
        for device in _DEVICES:
            words += ["--dev-bind-try", f"/dev/{device}", f"/dev/{device}"]
        for number, (name, target) in enumerate(_STREAMS.items()):
            words += ["--symlink", f"..{target}", f"/dev/{name}", "--symlink", f"../..{target}", f"/dev/fd/{number}"]
        return words

    def _bind(self, path: str) -> Sequence[str]:
        return "--ro-bind", self._sources.get(path, path), path


class Sandboxed:
    """A started sandbox: its processes and its pipes."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        control: int,
        output: int,
        reports: int,
        first_words: bytes,
        is_isolated: bool,
    ) -> None:
        self._process = process
        self._is_isolated = is_isolated
        self._holdings: Holdings | None = None
        self.control, self.output, self.reports = control, output, reports
        self.first_words = first_words
        """The runner's code, to be written to `control` first."""
        for file in (control, output, reports):
            os.set_blocking(file, False)

    @property
    def top_pid(self) -> int:
        """Of the tree of processes: bubblewrap; without it the keeper, to which orphans come."""
        return self._process.pid if self._is_isolated else os.getpid()

    @property
    def streams(self) -> dict[str, str | None]:
        """Where the runner makes what can be opened as /dev/stdin and /dev/stdout; without walls /proc does it."""
        return {"stdin": _STDIN if self._is_isolated else None, "stdout": _STDOUT if self._is_isolated else None}

    def begin(self) -> None:
        """Look at what there is inside, when the runner has started and no program has.

        Raises:
            OSError: The runner has ended, or this machine lets nobody look.
        """
        if self._is_isolated:
            pids = list(tree_of(self._process.pid))  # bubblewrap, the namespace's first process, the runner
            if len(pids) < 3:  # noqa: PLR2004 these
                raise ChildProcessError("the runner has ended")
            runner = pids[2]
            self._holdings = Holdings(runner)
            os.close(self.output)
            self.output = os.open(f"/proc/{runner}/root{_STDOUT}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def held_bytes(self) -> int:
        """What the kernel keeps for it, beside the memory of its processes; without walls nobody knows."""
        return self._holdings.read_bytes() if self._holdings else 0

    def kill(self) -> None:
        """End every process inside, and return when none is left."""
        if self._holdings:
            self._holdings.close()
        if self._is_isolated:
            self._kill_namespace()
        self._process.kill()
        self._process.wait()
        if not self._is_isolated:
            _kill_descendants()
        for file in (self.control, self.output, self.reports):
            os.close(file)

    def _kill_namespace(self) -> None:
        """Kill its first process, with which the kernel kills all others; bubblewrap ends when they have."""
        for pid in children_of(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if children_of(self._process.pid):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_LIMIT_S)


def _kill_descendants() -> None:
    """Kill all that this process started, and what came to it as an orphan, until nothing is left."""
    while others := [pid for pid in tree_of(os.getpid()) if pid != os.getpid()]:
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _die_with_keeper() -> None:
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


def _is_real_root() -> bool:
    """Whether user 0 is the machine's, and not that of a namespace such as Apptainer's --fakeroot."""
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split() == ["0", "0", "4294967295"]


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _stage(paths: Sequence[str]) -> dict[str, str]:
    """Mount paths where anybody reaches them; nobody but this process and its children sees the mounts."""
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
        words = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags))
        check(libc.mount(*words, None if options is None else options.encode()))

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
