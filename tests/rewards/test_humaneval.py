"""All of HumanEval: every canonical solution passes, none with a body that does nothing or returns a constant does."""

from __future__ import annotations

import gzip
import json

import pytest

from components.environments.sandbox.backends import Backend
from components.environments.sandbox.pool import Sandbox
from components.rewards.code import Code
from components.rewards.code_tests import CodeTest, read_tests
from components.types import Message, Task

HERE = [name for name in ("bwrap", "landlock") if Backend(name).missing() is None]
BODIES = ("    pass\n", "    return 0\n", "    return True\n", "    return []\n")


@pytest.fixture(scope="module")
def problems(public_data):
    with gzip.open(public_data("HumanEval.jsonl.gz")) as file:
        return [json.loads(line) for line in file]


def task(problem):
    meta = {"check": problem["test"], "entry_point": problem["entry_point"], "prelude": problem["prompt"]}
    return Task(problem["task_id"].replace("/", "-"), (Message("user", problem["prompt"]),), None, "code", meta=meta)


@pytest.mark.parametrize("backend", HERE)
def test_all_solutions_pass_and_no_other_body_does(backend, problems):
    assert len(problems) == 164
    with Sandbox(backend=backend) as sandbox:
        code = Code(sandbox=sandbox)
        right = code.batch([(task(p), f"```python\n{p['canonical_solution']}```") for p in problems])
        assert {p["task_id"]: score for p, score in zip(problems, right, strict=True) if score != 1.0} == {}
        wrong = code.batch([(task(p), BODIES[0]) for p in problems])
        assert {p["task_id"]: score for p, score in zip(problems, wrong, strict=True) if score != 0.0} == {}


@pytest.mark.slow
@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("body", BODIES[1:])
def test_no_constant_passes(backend, body, problems):
    with Sandbox(backend=backend) as sandbox:
        scores = Code(sandbox=sandbox).batch([(task(p), body) for p in problems])
    assert {p["task_id"]: score for p, score in zip(problems, scores, strict=True) if score != 0.0} == {}


def test_nearly_all_tests_become_calls(problems):
    as_code = [p["task_id"] for p in problems if any(isinstance(test, CodeTest) for test in read_tests(task(p)))]
    assert len(as_code) == 9  # loops over random inputs, or tests that compute what they expect
