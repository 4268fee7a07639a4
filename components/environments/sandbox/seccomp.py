"""The system-call filter as a classic BPF program, installed through prctl by ctypes."""

from __future__ import annotations

import ctypes
import errno
import signal
import struct

from components.environments.sandbox import syscalls

_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF_LD|W|ABS, JMP|J*|K, RET|K
_NR, _ARCH = 0, 4  # offsets in struct seccomp_data
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # SECCOMP_RET_*
_DENY = _ERRNO | errno.EPERM
_PRETEND = _ERRNO | 0  # answered by success without being done

_THREAD = 0x00010000  # CLONE_THREAD
_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_FCNTLS = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_{G,S}ETFD, F_{G,S}ETFL, F_DUPFD_CLOEXEC: none that sends signals or locks
_PRCTLS = (15, 16)  # PR_{SET,GET}_NAME
_OWN_PID = 0x5EC0_0B0D  # stands for the process id until it is known

Instruction = tuple[int, int, int, int]
Block = list[Instruction]


def _low(argument: int) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * argument)


def _high(argument: int) -> Instruction:
    return (_LOAD, 0, 0, 20 + 8 * argument)


def _give(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _one_of(argument: int, values: tuple[int, ...], otherwise: int) -> Block:
    tests = [step for value in values for step in ((_EQUAL, 0, 1, value), _give(_ALLOW))]
    return [_low(argument), *tests, _give(otherwise)]


def _signals(number: int) -> Block:
    """To the process itself, and none that it could not have by computing: a kill must be ours or the kernel's."""
    blocked = (signal.SIGKILL, signal.SIGSTOP, signal.SIGXCPU)
    tests = [step for value in blocked for step in ((_EQUAL, 0, 1, int(value)), _give(_DENY))]
    return [_low(0), (_EQUAL, 1, 0, _OWN_PID), _give(_DENY), _low(number), *tests, _give(_ALLOW)]


def _rules() -> dict[str, Block]:
    """Name -> instructions that decide by the arguments; each block ends in a return."""
    thread = [
        _low(0),
        (_ANY_BIT, 0, 2, _THREAD),
        (_ANY_BIT, 1, 0, _NAMESPACES),
        _give(_ALLOW),
        _give(_DENY),
    ]
    read_limits = [
        _low(2),
        (_EQUAL, 0, 2, 0),
        _high(2),
        (_EQUAL, 1, 0, 0),
        _give(_PRETEND),
        _give(_ALLOW),
    ]
    return {
        "clone": thread,
        "kill": _signals(1),
        "tgkill": _signals(2),
        "ioctl": _one_of(1, _IOCTLS, _ERRNO | errno.ENOTTY),
        "fcntl": _one_of(1, _FCNTLS, _DENY),
        "prctl": _one_of(0, _PRCTLS, _DENY),
        "prlimit64": read_limits,
        "setrlimit": [_give(_PRETEND)],  # programs raise their stack limit; the limits stay as they are
    }


def template(machine: str, *, scratch: bool = False) -> bytes:
    """The filter as an array of ``struct sock_filter``, complete but for the process's own id (see `install`).

    Raises:
        OSError: an architecture whose system-call numbers are not known.
    """
    if machine not in syscalls.ARCHITECTURES:
        known = ", ".join(syscalls.ARCHITECTURES)
        raise OSError(errno.ENOSYS, f"no system-call table for {machine} (known: {known})")
    arch, _ = syscalls.ARCHITECTURES[machine]
    program: Block = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), _give(_KILL), (_LOAD, 0, 0, _NR)]
    for number in syscalls.plain(machine, scratch=scratch).values():
        program += [(_EQUAL, 0, 1, number), _give(_ALLOW)]
    rules = _rules()
    for name, number in syscalls.checked(machine).items():
        program += [(_EQUAL, 0, len(rules[name]), number), *rules[name]]
    program.append(_give(_ERRNO | errno.ENOSYS))  # x32 calls too: their numbers have bit 30 set
    return b"".join(struct.pack("=HBBI", *step) for step in program)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)


def no_new_privileges() -> None:
    """PR_SET_NO_NEW_PRIVS; also what lets an ordinary user install filters. Raises OSError."""
    if _prctl(38, 1, None, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS was refused")


def install(filter_template: bytes, pid: int) -> None:
    """Filter this process and its threads from now on; irrevocable. Raises OSError."""
    code = filter_template.replace(struct.pack("=I", _OWN_PID), struct.pack("=I", pid))
    program = _Program(len(code) // 8, code)
    if _prctl(22, 2, ctypes.cast(ctypes.pointer(program), ctypes.c_void_p), 0, 0):  # PR_SET_SECCOMP, MODE_FILTER
        raise OSError(ctypes.get_errno(), "the system-call filter was refused")
