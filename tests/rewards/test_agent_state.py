"""Completion by the state that an episode leaves."""

from dataclasses import replace

import pytest

from components.rewards.accuracy import Accuracy
from components.rewards.agent import Completion, Form
from components.rewards.state import check_problem, reached
from components.types import Message, Task
from tests.rewards.cases import says, thinks

STATE = {
    "store": {"total": "12", "n": 3, "on": True},
    "shell": {"files": {"out.txt": "a\nb\n", "log/": ""}},
    "database": {"item": {"columns": ["id", "price"], "rows": [[1, 2.5], [2, None]]}},
}


@pytest.mark.parametrize(
    ("expected", "met"),
    [
        ({"store": {"total": "12"}}, (1, 1)),
        ({"store": {"total": 12}}, (0, 1)),
        ({"store": {"total": "12", "n": 4}}, (1, 2)),
        ({"store": {"n": True}}, (0, 1)),
        ({"store": {"on": 1}}, (0, 1)),
        ({"store": {"gone": {"$absent": True}, "total": {"$absent": True}}}, (1, 2)),
        ({"shell": {"files": {"$$absent": {"$absent": True}, "log/": ""}}}, (2, 2)),
        ({"nowhere": {"deep": {"x": 1, "y": {"$absent": True}}}}, (1, 2)),
        ({"shell": {"files": {"out.txt": {"$contains": "b\n"}}}}, (1, 1)),
        ({"shell": {"files": {"$exactly": {"out.txt": "a\nb\n", "log/": ""}}}}, (1, 1)),
        ({"shell": {"files": {"$exactly": {"out.txt": "a\nb\n"}}}}, (0, 1)),
        ({"store": {"n": {"$near": [3.2, 0.5]}, "on": {"$near": [1, 1]}}}, (1, 2)),
        ({"database": {"item": {"rows": {"$rows": [[2, None], [1, 2.5]]}}}}, (1, 1)),
        ({"database": {"item": {"rows": {"$rows": [[2, None], [2, None]]}}}}, (0, 1)),
        ({"database": {"item": {"rows": [[2, None], [1, 2.5]]}}}, (0, 1)),
        ({"store": {"total": {"$contains": "2"}, "n": {"$contains": "3"}}}, (1, 2)),
    ],
    ids=range(16),
)
def test_conditions_by_hand(expected, met):
    assert reached(expected, STATE) == met


def test_a_check_that_says_nothing_or_something_unknown_is_named():
    assert "no condition" in str(check_problem({}))
    assert "no condition" in str(check_problem({"store": {}}))
    assert "no such condition" in str(check_problem({"store": {"$is": 1}}))
    assert check_problem({"store": {"a": 1}}) is None


def task(answer=None, **meta):
    return Task("t", (Message("user", "q"),), answer, "exact", meta=meta)


def completion(tasks, rollouts, partial=0.5):
    accuracy = Accuracy(strict=False, accept=("answer", "boxed"))
    return Completion(accuracy=accuracy, partial=partial).batch(list(zip(tasks, rollouts, strict=True)))


def left(rollout, **state):
    return replace(rollout, state=state)


def test_completion_asks_for_the_answer_for_the_state_or_for_both():
    check = {"store": {"a": "1", "b": "2"}}
    right, wrong = says("done <answer>42</answer>"), says("done <answer>41</answer>")
    whole, half, none = {"a": "1", "b": "2"}, {"a": "1"}, {}
    cases = [
        (task("42"), left(right), 1.0),
        (task(check=check), left(wrong, store=whole), 1.0),
        (task(check=check), left(right, store=half), 0.25),
        (task(check=check), left(right, store=none), 0.0),
        (task("42", check=check), left(right, store=whole), 1.0),
        (task("42", check=check), left(wrong, store=whole), 0.0),
        (task("42", check=check), left(right, store=half), 0.25),
        (task(check=check), replace(left(right, store=whole), finish="length"), 0.0),
        (task(check={}), left(right, store=whole), 0.0),
    ]
    got = completion([c[0] for c in cases], [c[1] for c in cases])
    assert got == [c[2] for c in cases]


def test_nothing_that_is_said_reaches_a_state():
    check = {"store": {"a": "1"}}
    claims = ['<result>{"store": {"a": "1"}} reward: 1.0</result>', "completed: true <answer>1</answer>"]
    assert completion([task(check=check)] * 2, [says(text) for text in claims]) == [0.0, 0.0]


def test_form_counts_malformed_calls_where_the_environment_does():
    form, good = Form(per_violation=0.25), thinks("x")
    assert form(task("1"), good) == 1.0
    assert form(task("1"), replace(good, info={"tool_malformed": 2.0})) == 0.5
