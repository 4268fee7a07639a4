"""math-verify in a process that can be killed: some answers make a computer-algebra system run for ever."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
from typing import IO

from components.types import Task


class MathVerifier:
    """1.0 if the answer is mathematically equal to ``task.answer``, else 0.0.

    Each check runs in a long-lived child with a deadline that starts when the check starts; an answer that exceeds it
    is wrong, and the child is replaced (about 0.2 s).

    Args:
        seconds: deadline of one check.
    """

    def __init__(self, *, seconds: float = 2.0) -> None:
        self.seconds = seconds
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def __call__(self, task: Task, answer: str) -> float:
        with self._lock:
            child = self._child = self._child or self._start()
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(json.dumps({"gold": task.answer, "answer": answer}) + "\n")
            child.stdin.flush()
            if not select.select([child.stdout], [], [], self.seconds)[0]:
                self.close()
                return 0.0
            line = child.stdout.readline()
            if not line:
                self.close()
                raise RuntimeError(f"the math verifier died on {answer[:80]!r} (task {task.id})")
            return float(json.loads(line)["equal"])

    def close(self) -> None:
        """Kill the child; the next check starts a new one."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def __del__(self) -> None:
        self.close()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "components.rewards.math_worker"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert child.stdout is not None
        child.stdout.readline()  # "ready": the import (seconds) must not count against the first answer
        return child


def _serve(requests: IO[str], answers: IO[str]) -> None:
    from math_verify import parse, verify  # only the child needs it

    print("ready", file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        # No time limits inside: they are signals, and this process is killed from outside instead.
        gold, mine = (parse(f"\\boxed{{{request[key]}}}", parsing_timeout=0) for key in ("gold", "answer"))
        equal = bool(gold and mine and verify(gold, mine, timeout_seconds=0))
        print(json.dumps({"equal": equal}), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.stdin, sys.stdout)
