"""Killed, or refused by the disk, at any system call: nothing half made is used, and the same command ends the same."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults.injection import STRACE, Hit, errors_anywhere, fail_in_python, strike
from tests.faults.plant import SAMPLING, STAGES, TRAINING, Plant, in_child, start

pytestmark = pytest.mark.timeout(600)
traced = pytest.mark.skipif(STRACE is None, reason="needs strace")


def cases(few: dict[str, int], every: tuple[str, ...], number: int) -> list[Any]:
    """(stage, number of faults): a few by default, all of them in the whole suite."""
    return [*few.items(), *(pytest.param(name, number, marks=pytest.mark.faults) for name in every)]


def count(tally: Counter[str], hits: list[Hit], moment: str) -> None:
    for hit in hits:
        tally[f"error at a system call of {moment}" if hit.fault.error else f"kill at a system call of {moment}"] += 1


@traced
@pytest.mark.parametrize(("name", "kills"), cases({"curate": 4, "base": 4}, STAGES, 16))
def test_publishing_an_artifact(plant: Plant, tmp_path: Path, tally: Counter[str], name: str, kills: int) -> None:
    stage = plant[name]
    hits = strike(stage, "artifact", tmp_path, kills=kills, errors=kills > 10)
    after = Counter()
    for hit in hits:
        assert_named(hit)
        found = stage.recovers(hit.root)
        after[found.said[0].split()[0].strip(",:")] += 1
    count(tally, hits, "publishing an artifact")
    assert after["reused"]  # late ones: what was durable is taken over, not built again
    assert after["building"] + after["resuming"]


@traced
@pytest.mark.parametrize(("name", "kills"), cases({"base": 4}, TRAINING, 16))
def test_writing_a_checkpoint(plant: Plant, tmp_path: Path, tally: Counter[str], name: str, kills: int) -> None:
    stage = plant[name]
    nth = 1 if name == "reward_model" else 2
    hits = strike(stage, "checkpoint", tmp_path, kills=kills, errors=kills > 10, nth=nth)
    for hit in hits:
        assert_named(hit)
        stage.recovers(hit.root)
    count(tally, hits, "writing a checkpoint")


@traced
@pytest.mark.parametrize(("name", "kills"), cases({"eval_base": 4}, SAMPLING, 12))
def test_keeping_samples(plant: Plant, tmp_path: Path, tally: Counter[str], name: str, kills: int) -> None:
    stage = plant[name]
    hits = strike(stage, "samples", tmp_path, kills=kills, errors=kills > 10, nth=2)
    for hit in hits:
        assert_named(hit)
        found = stage.recovers(hit.root)
        assert any("prompts had been sampled before" in text for text in found.said)
    count(tally, hits, "keeping samples")


def assert_named(hit: Hit) -> None:
    """An error says what the system said, and which file it was about."""
    if hit.error:
        text = {"ENOSPC": "No space left on device", "EIO": "Input/output error"}[hit.fault.error]
        assert text in hit.error
        assert "/" in hit.error
        if hit.fault.error == "ENOSPC" and str(hit.root) in hit.error:
            assert "bytes are free there. Free some, or put the artifacts on another disk (artifacts=PATH)" in hit.error


@traced
@pytest.mark.parametrize(("name", "times"), cases({}, STAGES, 3))
def test_an_error_anywhere_in_a_stage(plant: Plant, tmp_path: Path, tally: Counter[str], name: str, times: int) -> None:
    stage = plant[name]
    hits = list(errors_anywhere(stage, tmp_path, times))
    for hit in hits:
        stage.recovers(hit.root)
    count(tally, hits, "a whole stage")


@pytest.mark.parametrize(("name", "kills"), cases({"base": 3, "eval_base": 2}, STAGES, 6))
def test_kills_at_random_moments(plant: Plant, tmp_path: Path, tally: Counter[str], name: str, kills: int) -> None:
    """Each time the same command goes on and is killed again, three times before it may end."""
    stage, draw = plant[name], random.Random(f"random {name}")
    done = turn = 0
    while done < kills and turn < 4 * kills:
        turn += 1
        root = tmp_path / str(turn)
        for _ in range(min(3, kills - done)):
            pid = start(lambda root=root: stage.build(root), root / "note.json")
            time.sleep(draw.uniform(0, 0.7 * stage.reference.wall_s))
            os.kill(pid, signal.SIGKILL)
            done += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
            if stage.visible(root):
                break
        stage.recovers(root)
    assert done >= kills
    tally["kill at a random moment"] += done


@pytest.mark.parametrize("code", [None, errno.ENOSPC])
def test_without_strace_a_few_disk_operations_of_a_stage(
    plant: Plant, tmp_path: Path, tally: Counter[str], code: int | None
) -> None:
    stage = plant["base"]
    struck = 0
    for number in (12, 64):
        root = tmp_path / str(number)
        ended = in_child(
            lambda root=root, number=number: stage.build(root, lambda out: fail_in_python(number, code)),
            root / "note.json",
        )
        stage.recovers(root)
        struck += ended.killed if code is None else ended.error.startswith("OSError: [Errno 28]")
    assert struck  # an error in what is tidied up beside the point is passed over
    tally["kill at a disk operation" if code is None else "error at a disk operation"] += struck
