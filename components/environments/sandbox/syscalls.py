"""System calls that a program in the sandbox may make, with their numbers on each architecture.

Everything else is answered by ENOSYS: no fork, exec, socket, memfd, shared memory, namespace, mount, ptrace, io_uring,
bpf, key ring, or whatever later kernels add. Numbers: Linux ``asm/unistd_64.h`` (x86-64), ``asm-generic/unistd.h``
(aarch64); "-" where the architecture has no such call.
"""

from __future__ import annotations

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # machine -> AUDIT_ARCH_*, column below

# Harmless whatever the arguments: they reach only the process itself and what it was given.
_PLAIN = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
pwritev 296 70, lseek 8 62, close 3 57, close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -,
pipe2 293 59, open 2 -, openat 257 56, stat 4 -, lstat 6 -, fstat 5 80, newfstatat 262 79, statx 332 291,
access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents64 217 61,
getcwd 79 17, chdir 80 49, fchdir 81 50, statfs 137 43, fstatfs 138 44, umask 95 166, 
fadvise64 221 223, mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214,
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72,
epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441,
eventfd2 290 19, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, futex 202 98,
futex_waitv 449 449, set_robust_list 273 99, set_tid_address 218 96, rseq 334 293, sched_yield 24 124,
sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120, getcpu 309 168,
arch_prctl 158 -, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95, restart_syscall 219 128,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, pause 34 -, alarm 37 -,
getitimer 36 102, setitimer 38 103, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113,
clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153, getrusage 98 165, getrlimit 97 163,
getpid 39 172, getppid 110 173, gettid 186 178, getpgrp 111 -, getpgid 121 155, getsid 124 156,
getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150,
getgroups 115 158, uname 63 160, sysinfo 99 179, getrandom 318 278, getpriority 140 141
"""

# Allowed for some arguments, see seccomp.py.
_CHECKED = """
clone 56 220, tgkill 234 131, kill 62 129, ioctl 16 29, fcntl 72 25, prctl 157 167, prlimit64 302 261,
setrlimit 160 164
"""

# Changing files: only where there is a scratch directory to change them in.
_SCRATCH = """
mkdir 83 -, mkdirat 258 34, unlink 87 -, unlinkat 263 35, rmdir 84 -, rename 82 -, renameat 264 38,
renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, truncate 76 45, ftruncate 77 46,
fsync 74 82, fdatasync 75 83, utimensat 280 88, chmod 90 -, fchmod 91 52, fchmodat 268 53
"""


def _column(text: str, machine: str) -> dict[str, int]:
    _, column = ARCHITECTURES[machine]
    rows = (entry.split() for entry in text.replace("\n", " ").split(",") if entry.strip())
    return {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}


def plain(machine: str, *, scratch: bool) -> dict[str, int]:
    """Name -> number of the calls that are always allowed."""
    return _column(_PLAIN, machine) | (_column(_SCRATCH, machine) if scratch else {})


def checked(machine: str) -> dict[str, int]:
    """Name -> number of the calls whose arguments decide."""
    return _column(_CHECKED, machine)
