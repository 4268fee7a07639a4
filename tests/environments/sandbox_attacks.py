"""Programs that attack a sandbox, and what shows that one got through. Standard library only: run as any user.

``python sandbox_attacks.py BACKEND [quick]`` runs them all and prints ``{name: [outcome, what got through]}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from components.environments.sandbox.outcome import Result
from components.environments.sandbox.pool import Sandbox

PREAMBLE = """
import ctypes, os, sys, time, socket, mmap, threading, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
def through(what=""):
    print("THROUGH", what, flush=True)
def tries(*attempts):
    for attempt in attempts:
        try:
            if attempt():
                through(getattr(attempt, "__name__", ""))
        except Exception:
            pass
def writes(path):
    with open(path, "wb") as file:
        return file.write(b"x")
def reads(path):
    with open(path, "rb") as file:
        return file.read(1)
"""


@dataclass(frozen=True)
class Attack:
    """Attributes: outcomes: allowed ones; heavy: burns a second of CPU time."""

    source: str
    outcomes: tuple[str, ...] = ("pass", "fail")
    heavy: bool = False


STOPPED = ("cpu_limit",)
ATTACKS = {
    "fork": Attack("tries(lambda: os.fork() or os._exit(0))"),
    "fork bomb": Attack("for _ in range(300):\n    tries(os.fork)"),
    "fork by bare system calls": Attack(
        "tries(lambda: X86 and libc.syscall(57) >= 0, lambda: X86 and libc.syscall(58) >= 0,\n"
        "      lambda: libc.syscall(56 if X86 else 220, 17, 0, 0, 0, 0) >= 0,\n"
        "      lambda: libc.syscall(435, (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17), 88) >= 0)"
    ),
    "fork through the 32-bit system calls": Attack(
        "code = mmap.mmap(-1, 4096, prot=7)\n"
        "code.write(b'\\xb8\\x02\\0\\0\\0\\xcd\\x80\\xc3' if X86 else b'\\0\\0\\0\\0')\n"  # mov eax, 2; int 0x80; ret
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))\n"
        "f() < 0 or through()",
    ),
    "fork through the x32 system calls": Attack("tries(lambda: X86 and libc.syscall(0x40000000 + 57) >= 0)"),
    "run programs": Attack(
        "import subprocess\n"
        "tries(lambda: os.system('true') == 0, lambda: subprocess.run(['/bin/true']).returncode == 0,\n"
        "      lambda: os.posix_spawn('/bin/true', ['true'], {}), lambda: os.popen('echo x').read(),\n"
        "      lambda: os.execv(sys.executable, ['python', '-c', 'print(\"THROUGH\")']))"
    ),
    "a pool of processes": Attack(
        "import multiprocessing\n"
        "tries(lambda: multiprocessing.get_context('fork').Process(target=print).start() is None)"
    ),
    "a daemon": Attack(
        "tries(lambda: os.fork() or (os.setsid(), os.fork(), time.sleep(30), os._exit(0)))"
    ),
    "zombies": Attack("for _ in range(100):\n    tries(lambda: os.fork() or os._exit(0))"),
    "a holder of the pipes": Attack("tries(lambda: os.fork() or (time.sleep(60), os._exit(0)))\nos._exit(0)"),
    "anonymous files of 976 MB": Attack(
        "def fill():\n    handle = os.memfd_create('m')\n    for _ in range(976):\n        os.write(handle, bytes(1 << 20))\n"
        "    return True\ntries(fill, lambda: libc.syscall(447, 0) >= 0)"
    ),
    "shared memory": Attack(
        "from multiprocessing import shared_memory\n"
        "tries(lambda: shared_memory.SharedMemory(create=True, size=4096), lambda: writes('/dev/shm/r1flow-attack'),\n"
        "      lambda: libc.shmget(0x5EC, 4096, 0o1600) >= 0, lambda: libc.msgget(0x5EC, 0o1600) >= 0,\n"
        "      lambda: libc.syscall(240 if X86 else 180, b'r1flow', 0o102, 0o600, None) >= 0)"
    ),
    "connect to a server on this machine": Attack(
        "tries(lambda: socket.create_connection(('127.0.0.1', PORT), 1), lambda: socket.create_connection(('::1', PORT), 1))"
    ),
    "be a server": Attack("tries(lambda: socket.create_server(('127.0.0.1', 0)))"),
    "datagrams": Attack(
        "tries(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT)),\n"
        "      lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '/dev/log'),\n"
        "      lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0), socket.socketpair)"
    ),
    "an abstract socket": Attack("tries(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + ABSTRACT) is None)"),
    "memory of other processes": Attack(
        "tries(*[lambda p=p: open(f'/proc/{p}/mem', 'rb') for p in (1, os.getppid(), 'self')],\n"
        "      *[lambda p=p: reads(f'/proc/{p}/environ') for p in (1, os.getppid(), 'self')], lambda: os.listdir('/proc'),\n"
        "      lambda: libc.syscall(310 if X86 else 270, os.getppid(), ctypes.byref((ctypes.c_uint64 * 2)(0, 0)), 1, None, 0, 0) >= 0)"
    ),
    "trace a process": Attack(
        "tries(lambda: libc.ptrace(0, 0, 0, 0) == 0, lambda: libc.ptrace(16, os.getppid(), 0, 0) == 0,\n"
        "      lambda: libc.ptrace(0x4206, OWNER, 0, 0) == 0)"
    ),
    "read secrets": Attack(
        "tries(lambda: reads(SECRET), lambda: os.listdir(os.path.dirname(SECRET)), lambda: reads('/etc/passwd'),\n"
        "      lambda: reads('/etc/shadow'), lambda: os.listdir('/home'), lambda: len(os.listdir('/etc')) > 1)"
    ),
    "read the project and the tests": Attack(
        "import glob\n"
        "tries(lambda: reads(PROJECT), lambda: os.listdir(os.path.dirname(PROJECT)), lambda: glob.glob(os.path.dirname(PROJECT) + '/*'),\n"
        "      lambda: reads(TESTS), lambda: __import__('components'), lambda: __import__('pytest'), lambda: __import__('torch'))"
    ),
    "symbolic links": Attack(
        "def link(where):\n    os.symlink(SECRET, where)\n    return reads(where)\n"
        "tries(lambda: link('link'), lambda: link('/tmp/link'), lambda: link('/dev/shm/link'),\n"
        "      lambda: os.link(SECRET, '/tmp/hard') is None)"
    ),
    "write outside": Attack(
        "tries(lambda: writes(TARGET), lambda: writes(os.path.dirname(TARGET) + '/new'), lambda: writes('/tmp/r1flow-attack'),\n"
        "      lambda: writes('r1flow-attack'), lambda: writes('/var/tmp/r1flow-attack'), lambda: writes(os.path.expanduser('~/x')),\n"
        "      lambda: writes(os.__file__), lambda: os.mkdir('/tmp/r1flow-attack-d') is None)"
    ),
    "change files without writing": Attack(
        "tries(lambda: os.truncate(TARGET, 0) is None, lambda: os.chmod(TARGET, 0o600) is None, lambda: os.utime(TARGET, (0, 0)) is None,\n"
        "      lambda: os.rename(TARGET, TARGET + '2') is None, lambda: os.unlink(TARGET) is None,\n"
        "      lambda: os.setxattr(TARGET, 'user.x', b'1') is None, lambda: os.mkfifo(TARGET + 'f') is None)"
    ),
    "fill the disk": Attack(
        "for place in ('/tmp/fill', '/var/tmp/fill', '/dev/shm/fill', 'fill', TARGET):\n"
        "    try:\n        with open(place, 'wb') as file:\n            for _ in range(64):\n                file.write(bytes(1 << 20))\n"
        "        through(place)\n    except OSError:\n        pass"
    ),
    "flood stdout": Attack("while True:\n    os.write(1, b'x' * 65536)", ("fail",)),
    "flood stderr": Attack("while True:\n    print('x' * 65536, file=sys.stderr)", ("fail",)),
    "flood the answers": Attack("while True:\n    os.write(4, b'x' * 65536)", ("protocol",)),
    "burn CPU time": Attack("while True: pass", STOPPED, heavy=True),
    "burn CPU time in threads": Attack(
        "for _ in range(8):\n    threading.Thread(target=lambda: [pow(3, 10**6) for _ in range(10**6)]).start()", STOPPED, heavy=True
    ),
    "burn CPU time and ignore signals": Attack(
        "import signal\nfor s in range(1, 65):\n    try:\n        signal.signal(s, lambda *_: None)\n    except Exception: pass\n"
        "try:\n    import resource\n    resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\nexcept Exception: pass\nwhile True: pass",
        STOPPED,
        heavy=True,
    ),
    "sleep": Attack("time.sleep(3600)", STOPPED),
    "sleep in small pieces": Attack("while True: time.sleep(0.01)", STOPPED),
    "deadlock": Attack("lock = threading.Lock()\nlock.acquire()\nlock.acquire()", STOPPED),
    "wait for input": Attack("r, w = os.pipe()\nos.read(r, 1)", STOPPED),
    "wait for a signal": Attack("import signal\nsignal.pause()", STOPPED),
    "memory": Attack("x = []\nwhile True: x.append(bytearray(1 << 24))", ("memory",)),
    "memory by mapping": Attack("tries(lambda: mmap.mmap(-1, 1 << 30))"),
    "memory in pipes": Attack(
        "import fcntl\ntotal = 0\ntry:\n    while True:\n        r, w = os.pipe()\n"
        "        try: fcntl.fcntl(w, 1031, 1 << 20)\n        except OSError: pass\n"
        "        os.set_blocking(w, False)\n        total += os.write(w, bytes(1 << 20))\nexcept OSError: pass\n"
        "if total > 4 << 20: through(total)"
    ),
    "a bomb of threads": Attack(
        "threading.stack_size(32768)\nstarted = 0\ntry:\n    while started < 3000:\n"
        "        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n        started += 1\nexcept Exception: pass\n"
        "if started > 500: through(started)"
    ),
    "kill others": Attack(
        "tries(*[lambda p=p, s=s: os.kill(p, s) is None for p in (1, os.getppid(), OWNER, -1, 0) for s in (0, 9)],\n"
        "      lambda: os.killpg(0, 0) is None, lambda: os.pidfd_open(os.getppid()))"
    ),
    "have a pipe send signals": Attack(
        "import fcntl\nr, w = os.pipe()\n"
        "tries(lambda: fcntl.fcntl(r, 8, os.getppid()) == 0, lambda: fcntl.fcntl(r, 10, 9) == 0, lambda: fcntl.fcntl(r, 1024, 0) == 0)"
    ),
    "look like a failure of the machine": Attack(
        "import signal\ntries(lambda: os.kill(os.getpid(), 9) is None, lambda: signal.raise_signal(signal.SIGKILL) is None,\n"
        "      lambda: os.kill(os.getpid(), signal.SIGSTOP) is None, lambda: signal.pthread_kill(threading.get_ident(), 9) is None)\n"
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (0, 0))\n"
        "for _ in range(10**6): pass\nif resource.getrlimit(resource.RLIMIT_CPU)[0] == 0: through('limit')"
    ),
    "crash": Attack("ctypes.string_at(0)", ("fail",)),
    "abort": Attack("os.abort()", ("fail",)),
    "overflow the stack": Attack("sys.setrecursionlimit(10**9)\ndef f(x): return [f] < [f(x)] or sorted([1], key=f)\nf(1)", ("fail", "memory", "cpu_limit")),
    "namespaces and mounts": Attack(
        "tries(*[lambda f=f: libc.unshare(f) == 0 for f in (0x10000000, 0x20000, 0x40000000)],\n"
        "      lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0, lambda: os.chroot('/') is None,\n"
        "      lambda: libc.setns(0, 0) == 0, lambda: libc.pivot_root(b'/', b'/') == 0)"
    ),
    "other doors of the kernel": Attack(
        "numbers = [425, 321, 248, 250, 323, 298, 272, 101, 304, 434] if X86 else [425, 280, 217, 219, 282, 241, 97, 117, 265, 434]\n"
        "params = ctypes.create_string_buffer(256)\n"
        "tries(*[lambda n=n: libc.syscall(n, 1, params, 1, 1, 0) >= 0 or ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM) for n in numbers])"
    ),
    "become root": Attack(
        "tries(lambda: os.setuid(0) is None, lambda: os.setresuid(0, 0, 0) is None, lambda: os.setgroups([0]) is None, lambda: os.geteuid() == 0,\n"
        "      lambda: libc.prctl(24, 21, 0, 0, 0) == 0, lambda: os.setpriority(0, 0, -20) is None)"
    ),
    "inherited descriptors": Attack(
        "import stat\nfor handle in range(5, 4096):\n    try: os.fstat(handle)\n    except OSError: continue\n"
        "    if stat.S_ISSOCK(os.fstat(handle).st_mode) or handle > 8: through(handle)\n"
        "for handle in (0, 1, 2, 3, 4):\n    if not stat.S_ISFIFO(os.fstat(handle).st_mode): through(handle)"
    ),
    "the environment": Attack("if any('SECRET' in k for k in os.environ) or len(os.environ) > 6: through()"),
    "type on the terminal": Attack("import fcntl\ntries(lambda: fcntl.ioctl(0, 0x5412, b'x') == 0, lambda: open('/dev/tty', 'w'))"),
    "modules of the sandbox itself": Attack(
        "tries(lambda: [m for m in sys.modules if m.startswith('components')], lambda: [f for f in sys._current_frames().values() if 'job' in f.f_globals])"
    ),
}


@contextlib.contextmanager
def bait() -> Iterator[tuple[dict[str, object], Callable[[], list[str]]]]:
    """What attacks aim at, and a function that says what of it was touched."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o777)
        (secret := directory / "secret").write_text("expected values")
        secret.chmod(0o644)
        (target := directory / "target").write_text("untouched")
        target.chmod(0o666)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = f"r1flow-{os.getpid()}"
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind("\0" + abstract)
        unix.listen()
        os.environ["R1FLOW_SECRET"] = "x"
        before = _traces(target)

        def touched() -> list[str]:
            found = [] if target.read_text() == "untouched" and _traces(target) == before else ["target"]
            found += [name for name in os.listdir(directory) if name not in ("secret", "target")]
            for listener in (tcp, unix):
                listener.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    listener.accept()
                    found.append("connection")
            for place in ("/tmp", "/dev/shm", "/var/tmp"):
                found += [f"{place}/{n}" for n in os.listdir(place) if n.startswith(("r1flow-attack", "fill", "link", "hard"))]
            return found

        names = {"SECRET": str(secret), "TARGET": str(target), "PORT": tcp.getsockname()[1], "ABSTRACT": abstract}
        yield {**names, "OWNER": os.getpid(), "PROJECT": _module_file(), "TESTS": __file__}, touched


def _traces(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mode, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _module_file() -> str:
    return str(sys.modules[Sandbox.__module__].__file__)


def descendants() -> set[int]:
    """Processes that this one started, or that their parents left."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    found, last = {os.getpid()}, set()
    while found != last:
        last = set(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


def run(backend: str, *, quick: bool = False, **settings: object) -> dict[str, tuple[str, str]]:
    """Outcome of every attack and what got through, which must be nothing."""
    chosen = {name: attack for name, attack in ATTACKS.items() if not (quick and attack.heavy)}
    with bait() as (names, touched):
        head = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        options = {"workers": 4, "cpu_seconds": 1, "idle_seconds": 1.0, "memory_mib": 256, **settings}
        with Sandbox(backend=backend, **options) as sandbox:  # type: ignore[arg-type]
            assert sandbox.backend == backend

            def one(item: tuple[str, Attack]) -> tuple[str, Result, float]:
                began = time.monotonic()
                return item[0], sandbox.script(head + PREAMBLE + item[1].source), time.monotonic() - began

            with ThreadPoolExecutor(4) as threads:
                results = list(threads.map(one, chosen.items()))
            still = sandbox.script("print('alive')").stdout
        report = {}
        for name, result, _ in results:
            loot = " ".join(line for line in result.stdout.splitlines() if line.startswith("THROUGH"))
            if result.outcome not in chosen[name].outcomes:
                loot += f" unexpected outcome: {result.detail}{result.stderr[-300:]}"
            report[name] = (result.outcome, loot)
        report["afterwards"] = (still.strip(), " ".join([*touched(), *(str(pid) for pid in descendants())]))
        return report


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], quick="quick" in sys.argv[2:])))
