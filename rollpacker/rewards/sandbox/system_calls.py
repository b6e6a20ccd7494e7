"""The system calls that programs are refused, as a filter for the kernel (seccomp).

Namespaces bound what a program sees, resource limits what each process takes. This filter closes what neither does:
memory that belongs to no process (memfd, System V, message queues), sockets that network namespaces do not cover
(vsock, netlink), new namespaces, and interfaces of the kernel that no program of a contest needs and many escapes did.

Source: <linux/seccomp.h>, <linux/audit.h>, <asm/unistd.h> of x86-64 and of arm64.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_ABOVE, _JUMP_IF_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in `struct seccomp_data`; the low half of a number comes first."""
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000

_NAMESPACES = 0x7E020000
"""CLONE_NEW...: of mounts, cgroups, names, IPC, users, processes, network."""
_AF_UNIX = 1
_X32 = 0x40000000
"""Numbers from here are of x86-64's other interface."""

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_REFUSED = {
    # by name: x86-64, arm64
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "ptrace": (101, 117), "process_vm_readv": (310, 270),
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
    "splice": (275, 76), "vmsplice": (278, 75), "tee": (276, 77),
}  # fmt: skip
_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR, _PRLIMIT = (41, 198), (53, 199), (302, 261)

MACHINES = tuple(_AUDIT)
"""Whose numbers are known here."""


def make_filter() -> bytes:
    """Give the filter of this machine as the kernel takes it: an array of `struct sock_filter`.

    Raises:
        KeyError: The machine is none of `MACHINES`.
    """
    machine = platform.machine()
    column = MACHINES.index(machine) if machine in _AUDIT else 0
    refuse = _step(_RETURN, _FAIL | errno.EPERM)
    allow = _step(_RETURN, _ALLOW)
    steps = [_step(_LOAD, _ARCHITECTURE), _step(_JUMP_IF_EQUAL, _AUDIT[machine], 1, 0), _step(_RETURN, _KILL)]
    steps += [_step(_LOAD, _NUMBER), _step(_JUMP_IF_ABOVE, _X32, 0, 1), refuse]
    for numbers in _REFUSED.values():
        steps += [_step(_JUMP_IF_EQUAL, numbers[column], 0, 1), refuse]
    # glibc falls back to clone, whose flags can be looked at
    steps += [_step(_JUMP_IF_EQUAL, _CLONE3[column], 0, 1), _step(_RETURN, _FAIL | errno.ENOSYS)]
    steps += [_step(_JUMP_IF_EQUAL, _CLONE[column], 0, 4), _step(_LOAD, _FIRST_ARGUMENT)]
    steps += [_step(_JUMP_IF_BITS, _NAMESPACES, 0, 1), refuse, allow]
    for numbers in (_SOCKET, _SOCKETPAIR):
        steps += [_step(_JUMP_IF_EQUAL, numbers[column], 0, 4), _step(_LOAD, _FIRST_ARGUMENT)]
        steps += [_step(_JUMP_IF_EQUAL, _AF_UNIX, 1, 0), refuse, allow]
    # the limits of another process, such as the runner
    steps += [_step(_JUMP_IF_EQUAL, _PRLIMIT[column], 0, 4), _step(_LOAD, _FIRST_ARGUMENT)]
    steps += [_step(_JUMP_IF_EQUAL, 0, 1, 0), refuse, allow]
    return b"".join([*steps, allow])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
