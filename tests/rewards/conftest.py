"""Rewards as a user would write them: in a module of a directory that has nothing to do with this repository."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from components.types import Message, Rollout, Task
from tests.rewards.judging import server  # noqa: F401 – a fixture

MY_REWARDS = """
import ctypes, os, random, signal, subprocess, sys, time
from pathlib import Path

from components.types import Score

def short(task, rollout): return 1.0 if len(rollout.tokens) < 3 else 0.25
def scaled(task, rollout, *, by): return by * len(rollout.tokens)
def raises(task, rollout): raise LookupError("no such key")
def nan(task, rollout): return float("nan")
def inf(task, rollout): return float("inf")
def text(task, rollout): return "1.0"
def listed(task, rollout): return [1.0, 2.0]
def nothing(task, rollout): return None
def numbers(task, rollout):
    import numpy
    return numpy.float32(0.5)
def huge(task, rollout): return 10**400
def leaves(task, rollout): sys.exit(3)
def dies(task, rollout): os._exit(7)
def segfaults(task, rollout): os.kill(os.getpid(), signal.SIGSEGV)
def named(task, rollout): return Score(0.75, {"tone": 0.5, "wit": 1.0})
def unsure(task, rollout): return Score(0.0, {}, "abstained", "cannot tell")
def broken_score(task, rollout): return Score(float("nan"), {"tone": float("inf")})
def draws(task, rollout): return random.random()
def prints(task, rollout): print("noise on standard output"); sys.stdin.read(); return 1.0
def sleeps(task, rollout): time.sleep(60)
def spins(task, rollout):
    while True: pass
def holds_the_interpreter(task, rollout):
    ctypes.PyDLL(None).sleep(60)  # a PyDLL call keeps the lock that every Python thread needs

def works(task, rollout, *, cpu_s):
    end = time.process_time() + cpu_s
    while time.process_time() < end: pass
    return 1.0

def leaves_a_child(task, rollout, *, note):
    child = subprocess.Popen(["sleep", "60"])
    Path(note).write_text(str(child.pid))
    time.sleep(60)

def where(task, rollout): return float(os.getpid())

def second_time(task, rollout, *, note):
    with open(note, "a") as file: file.write(task.id + "\\n")
    if Path(note).read_text().split().count(task.id) == 1: raise OSError("not yet")
    return 1.0

def odd_hangs(task, rollout):
    if rollout.tokens[0] % 2: time.sleep(60)
    return float(rollout.tokens[0])

class Whole:
    def batch(self, pairs): return [float(i) for i in range(len(pairs))]
class Short:
    def batch(self, pairs): return [1.0]
class Wordy:
    def batch(self, pairs): return "ab"
class Slow:
    def batch(self, pairs): time.sleep(60)
class Counts:
    def __init__(self, start): self.n = start
    def __call__(self, task, rollout): self.n += 1; return self.n
"""


@pytest.fixture
def my_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "my_rewards.py").write_text(MY_REWARDS)
    monkeypatch.syspath_prepend(str(folder))
    import my_rewards  # type: ignore[import-not-found]

    yield my_rewards
    del sys.modules["my_rewards"]


def pairs(n: int = 1) -> list[tuple[Task, Rollout]]:
    """n rollouts of tasks of their own, the i-th with the tokens (i, i)."""
    return [
        (
            Task(f"t{i}", (Message("user", "6 * 7 = ?"),), "42", "exact"),
            Rollout(f"t{i}", (1,), (i, i), (True, True), (0.0, 0.0), f"<think>x</think><answer>{i}</answer>", "stop"),
        )
        for i in range(n)
    ]
