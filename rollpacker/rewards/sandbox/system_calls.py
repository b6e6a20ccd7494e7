"""The filter of system calls (seccomp) that programs run under.

Namespaces bound what a program sees, resource limits what each process takes, the meter what all take together. The
filter covers the rest:

* memory that belongs to no process, and so is not counted: memfd, System V, message queues, shared memory without a
  file, huge pages, extended attributes, watches of files, datagrams;
* time on cores that is not counted: that of children whose parent ignores their end;
* lowering the own share of the cores, so that the program waits without end and its own time does not grow;
* communication between two sandboxes through files that both read: locks, leases, watches;
* sockets that network namespaces do not cover (vsock, netlink), new namespaces, and interfaces of the kernel that
  contest programs do not need and that escapes have used;
* every call newer than this list: it fails as not implemented, and libraries do without it.

Three calls succeed without effect, because programs that use them in good faith must go on: file locks, the handling
of SIGCHLD, and syncing file systems to disk.

Source: <linux/seccomp.h>, <linux/audit.h>, <asm/unistd.h> of x86-64 and of arm64.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _JUMP_IF_BITS = 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE = 0, 4
"""Offsets in `struct seccomp_data`."""
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000

_NAMESPACES = 0x7E020000
"""CLONE_NEW...: of mounts, cgroups, names, IPC, users, processes, network."""
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPES = 1, 1, 0xF
_SOL_SOCKET, _SO_SNDBUF = 1, 7
_SIGCHLD = 17
_MAP_HUGETLB = 0x40000
_MAP_SHARED_ANONYMOUS = 0x21
"""Both bits; a private mapping has not the first."""
_FCNTL_ALLOWED = (0, 1, 2, 3, 4, 8, 9, 1030, 1032)
"""F_DUPFD to F_SETFL, F_SETOWN, F_GETOWN, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: not F_GETLK, F_SETLEASE, F_NOTIFY,
F_SETPIPE_SZ and seals."""
_FCNTL_LOCKS = (6, 7, 37, 38)
"""F_SETLK, F_SETLKW, and the same of an open file."""

_FIRST_UNKNOWN = 442
"""The number after epoll_pwait2, on both machines. Those of x86-64's other interface (x32) are above it, too."""

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_REFUSED = {
    # by name: x86-64, arm64 (0: none; call 0 of arm64, io_setup, is refused anyway)
    "io_setup": (206, 0), "memfd_create": (319, 279), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "kcmp": (312, 272), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "personality": (135, 92),
    "syslog": (103, 116), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58),
    "fanotify_init": (300, 262), "mlock": (149, 228), "mlock2": (325, 284), "mlockall": (151, 230),
    "splice": (275, 76), "vmsplice": (278, 75), "tee": (276, 77), "remap_file_pages": (216, 234),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "inotify_init": (253, 0),
    "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "setpriority": (141, 140),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122), "ioprio_set": (251, 30), "mbind": (237, 235), "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "seccomp": (317, 277), "lookup_dcookie": (212, 18),
    "mincore": (27, 232),
    "modify_ldt": (154, 0), "iopl": (172, 0), "ioperm": (173, 0), "uselib": (134, 0), "ustat": (136, 0),
    "sysfs": (139, 0),
}  # fmt: skip
_IGNORED = {"flock": (73, 32), "sync": (162, 81), "syncfs": (306, 267), "sync_file_range": (277, 84)}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR, _SETSOCKOPT = (41, 198), (53, 199), (54, 208)
_PRLIMIT, _MMAP, _FCNTL, _SIGACTION = (302, 261), (9, 222), (72, 25), (13, 134)

MACHINES = tuple(_AUDIT)
"""Machines whose call numbers are listed here."""


def make_filter() -> bytes:
    """Give the filter of this machine as the kernel takes it: an array of `struct sock_filter`.

    Raises:
        KeyError: The machine is none of `MACHINES`.
    """
    machine = platform.machine()
    column = MACHINES.index(machine) if machine in _AUDIT else 0
    refuse, ignore, allow = _fail(errno.EPERM), _fail(0), _step(_RETURN, _ALLOW)
    steps = [_step(_LOAD, _ARCHITECTURE), _step(_JUMP_IF_EQUAL, _AUDIT[machine], 1, 0), _step(_RETURN, _KILL)]
    steps += [_step(_LOAD, _NUMBER), _step(_JUMP_IF_AT_LEAST, _FIRST_UNKNOWN, 0, 1), _fail(errno.ENOSYS)]
    for numbers in _REFUSED.values():
        steps += _when(numbers[column], refuse)
    for numbers in _IGNORED.values():
        steps += _when(numbers[column], ignore)
    # glibc falls back to clone, whose flags can be looked at
    steps += _when(_CLONE3[column], _fail(errno.ENOSYS))
    steps += _when(_CLONE[column], _argument(0), _step(_JUMP_IF_BITS, _NAMESPACES, 0, 1), refuse, allow)
    # other types keep datagrams after their sender has ended
    for numbers in (_SOCKET, _SOCKETPAIR):
        family = [_argument(0), _step(_JUMP_IF_EQUAL, _AF_UNIX, 1, 0), refuse]
        kind = [_argument(1), _step(_AND, _SOCK_TYPES), _step(_JUMP_IF_EQUAL, _SOCK_STREAM, 1, 0), refuse]
        steps += _when(numbers[column], *family, *kind, allow)
    level = [_argument(1), _step(_JUMP_IF_EQUAL, _SOL_SOCKET, 1, 0), allow]
    steps += _when(_SETSOCKOPT[column], *level, _argument(2), _step(_JUMP_IF_EQUAL, _SO_SNDBUF, 0, 1), refuse, allow)
    # the limits of another process, such as the runner
    steps += _when(_PRLIMIT[column], _argument(0), _step(_JUMP_IF_EQUAL, 0, 1, 0), refuse, allow)
    huge = [_argument(3), _step(_JUMP_IF_BITS, _MAP_HUGETLB, 0, 1), refuse]
    shared = [_step(_AND, _MAP_SHARED_ANONYMOUS), _step(_JUMP_IF_EQUAL, _MAP_SHARED_ANONYMOUS, 0, 1), refuse]
    steps += _when(_MMAP[column], *huge, *shared, allow)
    commands = [step for command in _FCNTL_ALLOWED for step in (_step(_JUMP_IF_EQUAL, command, 0, 1), allow)]
    locks = [step for command in _FCNTL_LOCKS for step in (_step(_JUMP_IF_EQUAL, command, 0, 1), ignore)]
    steps += _when(_FCNTL[column], _argument(1), *commands, *locks, _fail(errno.EINVAL))
    # querying, without a new action, is allowed
    asked = [_argument(0), _step(_JUMP_IF_EQUAL, _SIGCHLD, 1, 0), allow]
    asked += [_argument(1), _step(_JUMP_IF_EQUAL, 0, 0, 3), _argument(1, half=1), _step(_JUMP_IF_EQUAL, 0, 0, 1), allow]
    steps += _when(_SIGACTION[column], *asked, ignore)
    return b"".join([*steps, allow])


def _when(number: int, *steps: bytes) -> list[bytes]:
    """Steps for one system call; the last one ends the filter."""
    return [_step(_JUMP_IF_EQUAL, number, 0, len(steps)), *steps]


def _fail(number: int) -> bytes:
    """End the call with an error; with 0 it succeeds without effect."""
    return _step(_RETURN, _FAIL | number)


def _argument(index: int, *, half: int = 0) -> bytes:
    """Load half of an argument; the low one comes first."""
    return _step(_LOAD, 16 + 8 * index + 4 * half)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
