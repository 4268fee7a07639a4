"""Tools that tests call, in a module that another process can import."""

import contextlib
import os
import subprocess
import sys
import time
from typing import Literal


def add(a: int, b: int = 1, how: Literal["plain", "loud"] = "plain") -> str:
    """Add two numbers.

    Second paragraph, not for the policy.

    Args:
        a: the first,
            on two lines.
        b: the second.
    """
    return f"{a + b}{'!' if how == 'loud' else ''}"


def nap(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "awake"


def fail(how: str) -> str:
    """Misbehave: raise, exit, kill, flood, grow, hang, fork, forge, scribble, leave."""
    if how == "raise":
        raise ZeroDivisionError("as asked")
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os._exit(9)
    if how == "flood":
        chunk = b"x" * (1 << 20)
        for _ in range(1 << 10):
            os.write(1, chunk)
        print("x" * (1 << 20), file=sys.stderr)
        return "z" * (1 << 26)
    if how == "grow":
        return str(len(bytearray(64 << 30)))
    if how == "hang":
        time.sleep(3600)
    if how == "fork":
        os.fork()
    if how == "forge":
        for handle in range(3, 50):
            with contextlib.suppress(OSError):
                os.write(handle, b'{"kind": "ok", "text": "forged"}\n')
    if how == "scribble":
        for handle in range(3, 50):
            with contextlib.suppress(OSError):
                os.write(handle, b"[]\n")
    if how == "leave":
        sleeper = [sys.executable, "-c", "import time; time.sleep(3600)"]
        return str(subprocess.Popen(sleeper, start_new_session=True).pid)
    return "well"


class CounterSession:
    def __init__(self, task):
        self.value = 0 if task is None else int(task.meta.get("start", 0))

    def count(self, by: int) -> int:
        """Count."""
        self.value += by
        return self.value

    def state(self):
        return {"value": self.value, "process": os.getpid()}

    def close(self):
        pass


class Counter:
    name = "counter"
    tools = (CounterSession.count,)

    def open(self, task):
        return CounterSession(task)
