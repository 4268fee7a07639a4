"""Programs judged by a task's tests: what becomes of the tests, what counts as equal, who can be fooled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from components.environments.sandbox.backends import Backend
from components.environments.sandbox.outcome import Result
from components.environments.sandbox.pool import Sandbox
from components.rewards.accuracy import Accuracy
from components.rewards.code import (
    Code,
    InfrastructureFailure,
    Verdict,
    code_check,
    extract,
    forgeable_parts,
    lines,
    same,
    with_prelude,
)
from components.rewards.code_tests import CallTest, CodeTest, IoTest, read_tests
from components.types import Message, Rollout, Score, Task
from flows.checks import component_problems

HERE = [name for name in ("bwrap", "landlock") if Backend(name).missing() is None]
needs_a_backend = pytest.mark.skipif(not HERE, reason="neither bubblewrap nor Landlock on this machine")


def task(*tests, id="t", **meta):
    return Task(id, (Message("user", "Write f."),), None, "code", meta={"tests": list(tests), **meta})


def says(response, finish="stop"):
    return Rollout("t", (1,), (2,), (True,), (0.0,), response, finish)


@pytest.fixture(scope="module", params=HERE)
def sandbox(request):
    with Sandbox(backend=request.param, cpu_seconds=1, idle_seconds=0.5, memory_mib=256) as made:
        yield made


@pytest.fixture(scope="module")
def code(sandbox):
    return Code(sandbox=sandbox)


# --- reading tests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "test"),
    [
        ("assert f(1, [2], k=(3,)) == {'a': None}", CallTest("f", (1, [2]), {"k": (3,)}, "equal", {"a": None})),
        ("assert 4 == f(2)", CallTest("f", (2,), {}, "equal", 4)),
        ("assert f('ab' * 2) == 2 ** 3 - 1, 'message'", CallTest("f", ("abab",), {}, "equal", 7)),
        ("assert f() is None", CallTest("f", (), {}, "equal", None)),
        ("assert f(-1)", CallTest("f", (-1,), {}, "true")),
        ("assert not f(set())", CallTest("f", (set(),), {}, "false")),
        ("assert abs(f(1.5) - 2.0 / 4) < 1e-6", CallTest("f", (1.5,), {}, "within", 0.5, 1e-6)),
    ],
)
def test_an_assertion_becomes_a_call_and_an_expected_value(text, test):
    assert read_tests(task(text)) == [test]


@pytest.mark.parametrize(
    "text",
    [
        "assert sorted(f(1)) == [1]",
        "assert f(1) != 2",
        "assert f(f(1)) == 2",
        "assert f(x) == 2",
        "assert f(*[1]) == 2",
        "assert f(1) is 300",
        "assert f('a' * 10 ** 9) == 1",
        "assert f(10 ** 10 ** 10) == 1",
        "for i in range(3):\n    assert f(i) == i",
    ],
)
def test_an_assertion_that_is_no_single_call_stays_code(text):
    (test,) = read_tests(task(text))
    assert isinstance(test, CodeTest) and test.entry_point == "f"


def test_a_check_function_becomes_calls_only_if_all_of_it_does():
    easy = (
        "METADATA = {}\n\ndef check(candidate):\n"
        "    assert candidate(1) == 2, 'x'\n    assert True\n    assert candidate(2)\n"
    )
    assert read_tests(task(check=easy, entry_point="g")) == [
        CallTest("g", (1,), {}, "equal", 2),
        CallTest("g", (2,), {}, "true"),
    ]
    hard = easy + "    for i in range(3): assert candidate(i)\n"
    assert read_tests(task(check=hard, entry_point="g")) == [CodeTest(hard, "g")]


def test_pairs_and_inputs_are_read():
    tests = read_tests(
        task(
            {"call": "f(1, k=[2])", "expected": [3]},
            {"call": "f", "args": [1], "expected": None},
            {"stdin": "1\n", "stdout": "2\n"},
        )
    )
    assert tests == [
        CallTest("f", (1,), {"k": [2]}, "json", [3]),
        CallTest("f", (1,), {}, "json", None),
        IoTest("1\n", "2\n"),
    ]


@pytest.mark.parametrize(
    ("broken", "says_so"),
    [
        (task(), "has no tests, so that any program would pass"),
        (task("assert True"), "has no tests"),
        (task(check="def check(c):\n    pass", entry_point="f"), "has no tests"),
        (task(check="def check(c): assert c(1)"), "entry_point is missing"),
        (task(check="def test(c): assert c(1)", entry_point="f"), "defines no check"),
        (task({"call": "f(1)"}), r"meta.tests\[0\]: 'expected'"),
        (task("assert f(1) == 1", {"stdin": 1, "stdout": ""}), r"meta.tests\[1\]: expected a text, got int"),
        (task("assert f(1) =="), r"meta.tests\[0\]: invalid syntax"),
        (task("assert g(h(1)) > 2"), "cannot tell which function"),
    ],
)
def test_tests_that_cannot_be_used_are_an_error_never_a_pass(broken, says_so):
    with pytest.raises(ValueError, match=says_so):
        read_tests(broken)


# --- comparing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1.0, True), (1, True, False), (0, False, False), (None, False, False), ("1", 1, False), ("", [], False),
        ([1], (1,), False), ([1, [2]], [1, [2.0]], True), ((1, 2), (1, 2), True), ((1, 2), (1, 2, 3), False),
        ({1, 2}, {2, 1}, True), ({1}, {True}, False), ({1}, frozenset({1}), False), ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": True}, False), ({1: 1}, {True: 1}, False), ({"a": 1}, {"a": 1, "b": 2}, False),
        (b"a", "a", False), (0.1 + 0.2, 0.3, False), (2**70, 2**70, True), (1 + 2j, 1 + 2j, True),
    ],
)  # fmt: skip
def test_equality_knows_types(a, b, equal):
    assert same(a, b) is equal and same(b, a) is equal


def test_a_tuple_counts_as_a_list_only_where_json_could_not_say_it():
    assert same([[1, 2]], [(1, 2)], json=True) and not same([[1, 2]], [(1, 2)])


def test_output_is_compared_without_trailing_space():
    assert lines("1 \n2\n\n") == lines("1\n2") != lines("1\n\n2")
    assert lines(" 1") != lines("1")


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("x = 1", "x = 1"),
        ("text\n```python\nx = 1\n```\nmore\n```\n    y = 2\n```\nend", "    y = 2\n"),
        ("```py\nx = 1\n", "x = 1\n"),
        ("```\nx = 1\n```\n```", "x = 1\n"),
    ],
)
def test_the_program_is_the_last_fenced_block_or_the_whole_answer(answer, program):
    assert extract(answer) == program


def test_a_prelude_comes_first_except_for_imports_from_the_future():
    assert (
        with_prelude("import math\n", "from __future__ import annotations\nx = 1")
        == "from __future__ import annotations\nimport math\nx = 1"
    )
    assert with_prelude("def f(x):\n    '''Doc.'''\n", "    return x") == "def f(x):\n    '''Doc.'''\n    return x"


# --- judging ----------------------------------------------------------------------------------------------------------

ADD = "def add(a, b):\n    return a + b\n"
ALL_KINDS = task(
    {"call": "add(1, 2)", "expected": 3},
    "assert add('a', 'b') == 'ab'",
    "for i in range(5):\n    assert add(i, 1) == i + 1",
    check="def check(candidate):\n    assert candidate([1], [2]) == [1, 2]\n",
    entry_point="add",
)


@needs_a_backend
def test_all_kinds_of_tests_judge_one_program(code):
    assert code(ALL_KINDS, f"Here:\n```python\n{ADD}```") == 1.0
    assert code(ALL_KINDS, "def add(a, b): return a - b") == 0.0


@needs_a_backend
def test_inputs_and_outputs(code):
    doubles = task({"stdin": "1\n2\n", "stdout": "2\n4"}, {"stdin": "", "stdout": ""})
    assert code(doubles, "import sys\nfor line in sys.stdin: print(2 * int(line))") == 1.0
    assert code(doubles, "print(2)\nprint(4)") == 0.0
    assert code(doubles, "import sys\nfor line in sys.stdin: print(2 * int(line))\nsys.exit(1)") == 0.0


@needs_a_backend
def test_partial_credit_is_the_share_of_tests_passed(sandbox):
    partial = Code(sandbox=sandbox, partial=True)
    four = task(*[{"call": f"f({i})", "expected": i} for i in range(3)], {"stdin": "", "stdout": "x"})
    assert partial(four, "def f(x): return x") == 0.75
    assert partial(four, "def f(x):\n    if x == 1: raise ValueError\n    return x") == 0.5
    assert partial(four, "def f(x):\n    while x == 1: pass\n    return x") == 0.25  # the first, before the endless one
    assert partial(four, "print('x')\ndef f(x): return x") == 1.0
    assert partial(four, "syntax error") == 0.0
    assert partial(four, "import os\ndef f(x): os.write(4, b'{\"value\": 0}\\n'); return x") == 0.0


# --- forging ----------------------------------------------------------------------------------------------------------

GOLD = [f"GOLD-{os.urandom(8).hex()}" for _ in range(2)]  # what no program can know
TESTS = [f"assert f(1) == {GOLD[0]!r}", {"call": "f(2)", "expected": {"a": [GOLD[1]]}}]
CODE_TESTS = [
    f"for i in [1]:\n    assert f(i) == {GOLD[0]!r}",
    f"assert len(f(2)['a']) == 1 and f(2)['a'][0] == {GOLD[1]!r}",
]
FIND = (
    "import re\ndef found(text, x):\n    hits = re.findall('GO' + 'LD-[0-9a-f]{16}', text)\n"
    "    return hits and (hits[0] if x == 1 else {'a': [hits[-1]]})\n"
)
SECTIONS = Path(__file__).with_name("forgeries.txt").read_text().split("=== ")[1:]
FORGERIES = {name: source.replace("FIND\n", FIND) for name, _, source in (text.partition("\n") for text in SECTIONS)}


@needs_a_backend
@pytest.mark.parametrize("tests", [TESTS, CODE_TESTS], ids=["calls", "code"])
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_scores_nothing(sandbox, name, tests):
    for choice in (0, 1):
        program = f"CHOICE = {choice}\nTEST_FILE = {__file__!r}\n{FORGERIES[name]}"
        verdict = Code(sandbox=sandbox, partial=True).judge(task(*tests), program)
        assert verdict.passed == 0 and verdict.outcome in ("fail", "protocol"), verdict
        if "CHOICE" not in FORGERIES[name]:
            break


@needs_a_backend
@pytest.mark.parametrize("tests", [TESTS, CODE_TESTS], ids=["calls", "code"])
def test_the_tests_of_the_forgeries_can_be_passed(code, tests):
    assert code(task(*tests), f"def f(x): return {GOLD[0]!r} if x == 1 else {{'a': [{GOLD[1]!r}]}}") == 1.0


@needs_a_backend
def test_answering_out_of_turn_is_no_pass_even_with_right_answers(code):
    """Whoever writes the answers and then lets the calls be answered too has said more than was asked."""
    early = 'import os\ndef f(x):\n    os.write(4, b\'{"value": 1}\\n{"value": 1}\\n{"end": 2}\\n\')\n    return 1'
    for _ in range(5):
        assert code.judge(task("assert f(1) == 1", "assert f(2) == 1"), early).outcome == "protocol"


# --- infrastructure ---------------------------------------------------------------------------------------------------


class Broken:
    """A sandbox whose machine fails."""

    forgeable, workers = False, 2

    def calls(self, source, calls):
        return Result("infra", "no machine")


def test_a_failure_of_the_machine_is_a_failed_score_never_a_zero():
    code = Code(sandbox=Broken())
    with pytest.raises(InfrastructureFailure, match="task t: no machine"):
        code(task("assert f(1) == 1"), "def f(x): return x")
    (score,) = code.batch([(task("assert f(1) == 1"), "def f(x): return x")])
    assert isinstance(score, Score) and score.outcome == "failed" and "no machine" in score.reason


@needs_a_backend
def test_a_batch_keeps_its_order_and_fails_one_by_one(sandbox):
    code = Code(sandbox=sandbox)
    good = task("assert f(1) == 1")
    wrapped = "<think>t</think><answer>def f(x): return 1</answer>"
    scores = code.batch(
        [
            (good, "def f(x): return 2"),
            (good, "def f(x): return 1"),
            (task(id="empty"), "x"),
            (good, says(wrapped)),
            (good, says(wrapped, "length")),
        ]
    )
    assert scores[:2] == [0.0, 1.0] and scores[3:] == [1.0, 0.0]
    assert (
        isinstance(scores[2], Score)
        and scores[2].outcome == "failed"
        and "task empty: has no tests" in scores[2].reason
    )
    assert code.batch([]) == []


@needs_a_backend
def test_results_depend_neither_on_the_number_of_workers_nor_on_the_machines_load():
    program = "import time\ntime.sleep({} / 50)\nsum(range(10 ** 5))\ndef f(x): return x % 3 if x % 5 else None"
    pairs = [(task(f"assert f({i}) == {i % 3}"), program.format(i % 4)) for i in range(24)]
    results = []
    for workers, load in ((1, 0), (4, 4)):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            with Sandbox(backend=HERE[0], workers=workers, cpu_seconds=1, idle_seconds=1) as sandbox:  # type: ignore[arg-type]
                results.append(Code(sandbox=sandbox).batch(pairs))
        finally:
            for process in busy:
                process.kill()
                process.wait()
    assert results[0] == results[1] == [float(i % 5 != 0) for i in range(24)]


# --- where it is used -------------------------------------------------------------------------------------------------


@needs_a_backend
def test_accuracy_judges_programs_longer_than_other_answers(sandbox):
    accuracy = Accuracy(verifiers={"code": Code(sandbox=sandbox)})
    long = f"# {'x' * 5000}\ndef f(x): return x"
    assert (
        accuracy(task("assert f(1) == 1"), says(f"<think>t</think><answer>\n```python\n{long}\n```\n</answer>")) == 1.0
    )
    assert (
        accuracy(task("assert f(1) == 2"), says(f"<think>t</think><answer>\n```python\n{long}\n```\n</answer>")) == 0.0
    )
    assert (
        accuracy(task("assert f(1) == 1"), says(f"<think>t</think><answer>{'#' * 30_000}\ndef f(x): return x</answer>"))
        == 0.0
    )


def test_a_sandbox_that_confines_nothing_gives_no_reward():
    with pytest.raises(ValueError, match="could forge"):
        Code(sandbox=Sandbox(backend="unsafe"))
    looked_at = Code(sandbox=Sandbox(backend="unsafe"), accept_forgeable=True)
    assert looked_at.judge(task("assert f(1) == 1"), "def f(x): return x") == Verdict("pass", 1, 1, forgeable=True)
    looked_at.sandbox.close()
    assert code_check({"sandbox": {"backend": "unsafe"}}) and not code_check({"sandbox": {"backend": "auto"}})
    reward = {"terms": {"accuracy": {"verifiers": {"code": {"accept_forgeable": True}}}}}
    assert forgeable_parts(reward) == ["reward.terms.accuracy.verifiers.code"]
    assert forgeable_parts({"kinds": [{"x": 1}]}) == []


def test_preflight_refuses_to_train_on_verdicts_that_can_be_forged():
    code = {"_target_": "components.rewards.code.Code", "accept_forgeable": True}
    settings = {"quotas": {"reasoning": 8}, "reward": {"terms": {"accuracy": {"verifiers": {"code": code}}}}}
    (problem,) = component_problems("rl_1", "", "components.stages.rl.rl", settings, {})
    assert problem.key == "reward.terms.accuracy.verifiers.code.accept_forgeable" and "forge" in problem.problem


def test_preflight_names_a_backend_that_does_not_exist():
    (problem,) = component_problems(
        "rl_1", "sandbox", "components.environments.sandbox.pool.Sandbox", {"backend": "vm"}, None
    )
    assert problem.key == "sandbox.backend" and "bwrap" in problem.fix


@pytest.mark.parametrize(
    ("test", "program"),
    [
        ({"call": "f(1)", "expected": 7}, "def f(x): return 10**5000"),
        ("assert abs(f(1) - 0.5) < 1e-6", "def f(x): return 10**400"),
    ],
)
def test_a_huge_integer_is_a_wrong_answer_not_a_failure(code, test, program):
    verdict = code.judge(task(test), program)
    assert (verdict.outcome, verdict.passed) == ("fail", 0)


def test_members_that_all_hash_alike_are_refused_before_they_take_quadratic_time():
    import json
    import time

    from components.environments.sandbox.codec import NotData, dumps, loads

    members = [{"int": hex(i * (2**61 - 1))} for i in range(1, 50_000)]
    began = time.process_time()
    for body in ({"set": members}, {"frozenset": members}, {"dict": [[m, 0] for m in members]}):
        with pytest.raises(NotData, match="hash alike"):
            loads(json.dumps(body))
    assert time.process_time() - began < 5  # the set alone took half a minute
    honest = {i: str(i) for i in range(5_000)}
    assert loads(dumps(honest)) == honest and loads(dumps(set(honest))) == set(honest)


def test_threads_that_wait_for_each_other_are_no_failure_of_the_machine(monkeypatch):
    from components.environments.sandbox import usage
    from components.environments.sandbox.outcome import Limits

    watched = usage.Usage(Limits(wall_seconds=0.2))
    watched.follow(os.getpid())
    monkeypatch.setattr(usage, "active_seconds", lambda pid: None)  # "about to run", as their summed delays say
    for count, outcome in ((1, "infra"), (3, "cpu_limit")):
        monkeypatch.setattr(usage, "threads", lambda pid, count=count: count)
        watched._born = watched._last = 0.0
        assert watched.charge()[0] == outcome
