"""The system-call filter for shells: programs may be started, but none reaches beyond its namespaces."""

from __future__ import annotations

import errno
import struct

from components.environments.sandbox import syscalls

_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_X32 = 0x40000000

# Sockets, memory that no limit counts, other processes' memory, namespaces, mounts, kernel interfaces. Numbers on
# x86-64 and aarch64, "-" where there is no such call.
_DENIED = """
socket 41 198, socketpair 53 199, memfd_create 319 279, memfd_secret 447 447, shmget 29 194, ptrace 101 117,
process_vm_readv 310 270, process_vm_writev 311 271, unshare 272 97, setns 308 268, mount 165 40, umount2 166 39,
pivot_root 155 41, chroot 161 51, move_mount 429 429, open_tree 428 428, fsopen 430 430, mount_setattr 442 442,
bpf 321 280, keyctl 250 219, add_key 248 217, request_key 249 218, io_uring_setup 425 425, userfaultfd 323 282,
perf_event_open 298 241, kexec_load 246 104, init_module 175 105, finit_module 313 273, open_by_handle_at 304 265,
personality 135 92, swapon 167 224, reboot 169 142, mq_open 240 180, msgget 68 186, semget 64 190, acct 163 89
"""


def shell_filter(machine: str) -> bytes:
    """An array of ``struct sock_filter`` that allows what is not denied.

    ``clone3`` hides its flags from a filter and is answered by ENOSYS, after which C libraries use ``clone``.

    Raises:
        OSError: an architecture whose system-call numbers are not known.
    """
    if machine not in syscalls.ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system-call table for {machine}")
    arch, column = syscalls.ARCHITECTURES[machine]
    rows = [entry.split() for entry in _DENIED.replace("\n", " ").split(",")]
    denied = [int(row[1 + column]) for row in rows]
    clone = {"x86_64": 56, "aarch64": 220}[machine]
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    program += [(_GREATER_EQUAL, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for number in denied:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    program += [(_EQUAL, 0, 1, 435), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    program += [(_EQUAL, 0, 4, clone), (_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, _NAMESPACES)]
    program += [(_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in program)
