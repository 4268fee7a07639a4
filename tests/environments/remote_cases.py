"""Environments for the tests of the environment server, in a module that another process can import."""

import os
import sys
import threading
import time
from dataclasses import dataclass, field

from components.environments.protocol import Step


@dataclass
class Echo:
    """Repeats and counts; a task's ``meta["how"]`` says how it misbehaves, and at which step."""

    asynchronous: bool = False
    seconds: float = 60.0
    inspects: bool = True
    stop: tuple[str, ...] = ("</tool>",)
    wrapper: tuple[str, str] = ("<result>", "</result>")
    overflow: str = "shorten"
    reserve: int = 3
    opened: list = field(default_factory=list)
    closed: list = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)

    def reset(self, task):
        self.opened.append(None if task is None else task.id)
        if task is not None and task.meta.get("how") == "reset":
            raise ValueError("no such world")
        return _Episode(self, task)

    def schemas(self, task=None):
        return [{"type": "function", "function": {"name": "echo", "parameters": {"of": task and task.id}}}]

    def manual(self, task=None):
        return "call echo"


@dataclass
class _Episode:
    environment: Echo
    task: object
    said: list = field(default_factory=list)

    def step(self, text):
        how = None if self.task is None else self.task.meta.get("how")
        if how == "raise":
            raise ZeroDivisionError("as asked")
        if how == "exit":
            sys.exit(3)
        if how == "kill":
            os._exit(9)
        if how == "late":
            raise TimeoutError("its own clock")
        if how == "hang":
            time.sleep(3600)
        if how == "wait":
            self.environment.free.wait(60)
        if how == "flood":
            for _ in range(1 << 10):
                os.write(1, b"x" * (1 << 20))
        self.said.append(text)
        count = len(self.said)
        observation = None if text == "nothing" else (text, f"½ \ud83d {count}") if text == "two" else f"{count}:{text}"
        return Step(observation, count == 9, count == 9, {"calls": 1, "share": 0.1}, 0.1 * count)

    def state(self):
        return {"said": self.said, "process": os.getpid()}

    def close(self):
        self.environment.closed.append(None if self.task is None else self.task.id)
