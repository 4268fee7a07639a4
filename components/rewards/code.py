"""Code: does the program in the answer pass the task's tests? It runs in a sandbox; the verdict is made out here."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from components.rewards.code_tests import CallTest, CodeTest, IoTest, Test, read_tests
from components.rewards.response import take_apart
from components.types import Rollout, Score, Task


class InfrastructureFailure(RuntimeError):
    """The sandbox failed, not the program: nothing is known of the answer, and it must not be scored."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Attributes:
    outcome: "pass", "fail", "cpu_limit", "memory", "protocol" or "infra".
    passed, total: tests.
    detail: what was wrong first, in words.
    forgeable: the program could have reached what judged it.
    """

    outcome: str
    passed: int
    total: int
    detail: str = ""
    forgeable: bool = False


class Code:
    """1.0 if the program passes all tests of ``task.meta`` (see `code_tests.read_tests`), else 0.0.

    The program is the last fenced block of the answer, or the whole answer, after ``meta.prelude`` (imports, helper
    functions, or a prompt that ends in a function's docstring) if there is one. Expected values and tests never enter
    the program's sandbox: calls and inputs go in, data comes out and is compared here, with types (``True`` is not 1,
    a tuple is not a list; 2 and 2.0 are equal).

    Usable as a verifier of `components.rewards.accuracy.Accuracy` and, by `batch`, as a term of a mix.

    Args:
        sandbox: ``components.environments.sandbox.pool.Sandbox``.
        partial: credit is the share of tests passed, instead of all or nothing.
        max_answer: characters; longer answers are wrong.
        accept_forgeable: take verdicts from a sandbox that confines nothing. A program can then reach its judge: for
            looking at results, never for training.

    Raises:
        ValueError: the sandbox confines nothing and that was not accepted.
    """

    def __init__(
        self, *, sandbox: Any, partial: bool = False, max_answer: int = 20_000, accept_forgeable: bool = False
    ) -> None:
        if sandbox.forgeable and not accept_forgeable:
            raise ValueError(
                "sandbox.backend=unsafe: programs could forge their verdicts, so that no reward may come from it. "
                "Fix: use sandbox.backend=auto; outside training accept_forgeable=true takes such verdicts all the same"
            )
        self.sandbox, self.partial, self.max_answer = sandbox, partial, max_answer
        self.forgeable = bool(sandbox.forgeable)

    def __call__(self, task: Task, answer: str) -> float:
        """Credit of one answer. Raises InfrastructureFailure; ValueError if the task has no usable tests."""
        verdict = self.judge(task, answer)
        if verdict.outcome == "infra":
            raise InfrastructureFailure(f"task {task.id}: {verdict.detail}")
        return self._credit(verdict)

    def batch(self, pairs: Sequence[tuple[Task, Rollout | str]]) -> list[float | Score]:
        """Credit of each rollout or answer, as many at a time as the sandbox has workers; the order doesn't matter.

        A failed score where `__call__` would raise.
        """
        with ThreadPoolExecutor(self.sandbox.workers) as threads:
            return list(threads.map(self._scored, *zip(*pairs, strict=True))) if pairs else []

    def facts(self) -> dict[str, str]:
        """The sandbox that programs run in."""
        return {"sandbox": self.sandbox.backend}

    def judge(self, task: Task, answer: str) -> Verdict:
        """The verdict on an answer, with the number of tests passed. Raises ValueError: no usable tests."""
        tests = read_tests(task)
        if len(answer) > self.max_answer:
            return Verdict("fail", 0, len(tests), f"longer than {self.max_answer} characters")
        prelude = task.meta.get("prelude", "")
        program = with_prelude(prelude, extract(answer))
        verdicts = []
        for judge in self._judges(program, prelude, tests):
            verdicts.append(verdict := judge())
            if verdict.outcome in ("infra", "protocol") or (verdict.outcome != "pass" and not self.partial):
                break
        worst = next((v for v in verdicts if v.outcome != "pass"), verdicts[-1])
        ignored = worst.outcome in ("infra", "protocol")  # nothing that it said counts
        passed = 0 if ignored else sum(v.passed for v in verdicts)
        return Verdict(worst.outcome, passed, len(tests), worst.detail, self.forgeable)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _credit(self, verdict: Verdict) -> float:
        return verdict.passed / verdict.total if self.partial else float(verdict.outcome == "pass")

    def _scored(self, task: Task, said: Rollout | str) -> float | Score:
        try:
            if not isinstance(said, str):
                said = (take_apart(said.response).answer or "") if said.finish == "stop" else ""
                if not said:
                    read_tests(task)
                    return 0.0
            return self(task, said)
        except Exception as error:  # of this one alone; the others of the batch keep their scores
            return Score(0.0, outcome="failed", reason=f"{type(error).__name__}: {error}")

    def _judges(self, program: str, prelude: str, tests: Sequence[Test]) -> list[Any]:
        """One function per run of the program; all calls share one run."""
        calls = [test for test in tests if isinstance(test, CallTest)]
        judges: list[Any] = [lambda: self._judge_calls(program, calls)] if calls else []
        for test in tests:
            if isinstance(test, IoTest):
                judges.append(lambda test=test: self._judge_io(program, test))
            elif isinstance(test, CodeTest):
                judges.append(lambda test=test: self._judge_code(program, prelude, test))
        return judges

    def _judge_calls(self, program: str, tests: Sequence[CallTest]) -> Verdict:
        result = self.sandbox.calls(program, [(t.name, t.args, t.kwargs) for t in tests])
        wrong = [
            f"{test.name}{test.args!r:.200} gave {answer.error or shown(answer.value)}"
            for test, answer in zip(tests, result.answers, strict=False)
            if answer.error is not None or not meets(test, answer.value)
        ]
        passed = len(result.answers) - len(wrong)
        if result.outcome != "pass":
            return Verdict(result.outcome, passed, len(tests), result.detail)
        return Verdict("fail", passed, len(tests), wrong[0]) if wrong else Verdict("pass", passed, len(tests))

    def _judge_io(self, program: str, test: IoTest) -> Verdict:
        result = self.sandbox.script(program, test.stdin)
        if result.outcome != "pass":
            return Verdict(result.outcome, 0, 1, result.detail)
        if result.exit_code:
            return Verdict("fail", 0, 1, f"exit code {result.exit_code}: {result.stderr.strip()[-200:]}")
        if lines(result.stdout) != lines(test.stdout):
            return Verdict("fail", 0, 1, f"printed {result.stdout[:200]!r}")
        return Verdict("pass", 1, 1)

    def _judge_code(self, program: str, prelude: str, test: CodeTest) -> Verdict:
        result = self.sandbox.check(program, with_prelude(prelude, test.source), test.entry_point)
        return Verdict(result.outcome, int(result.outcome == "pass"), 1, result.detail)


def code_check(settings: Mapping[str, Any]) -> list[str]:
    """Preflight: the sandbox must confine, unless it was accepted that it does not."""
    backend = (settings.get("sandbox") or {}).get("backend")
    if backend == "unsafe" and not settings.get("accept_forgeable"):
        return [
            "sandbox.backend: unsafe lets programs forge their verdicts. Fix: auto; not to train: accept_forgeable=true"
        ]
    return []


def forgeable_parts(node: Any, path: str = "reward") -> list[str]:
    """Paths of the parts of a reward's settings whose verdicts programs may forge; nothing may be trained on them."""
    if isinstance(node, Mapping):
        found = [path] if node.get("accept_forgeable") else []
        return found + [hit for key, value in node.items() for hit in forgeable_parts(value, f"{path}.{key}")]
    if isinstance(node, list | tuple):
        return [hit for i, value in enumerate(node) for hit in forgeable_parts(value, f"{path}[{i}]")]
    return []


def extract(answer: str) -> str:
    """The last fenced block (closed or not) of an answer, or all of it where there is none. Linear time."""
    block: list[str] | None = None
    found: list[str] | None = None
    for line in answer.splitlines():
        fence = line.strip().startswith("```")
        if block is None and fence:
            block = []
        elif block is not None and fence:
            found, block = block, None
        elif block is not None:
            block.append(line)
    last = block if block else found
    return answer if last is None else "\n".join(last) + "\n"


def with_prelude(prelude: str, code: str) -> str:
    """Code after its prelude; imports from ``__future__`` first, as Python wants them."""
    if not prelude:
        return code
    rows = code.split("\n")
    future = [row for row in rows if row.startswith("from __future__ import")]
    rest = [row for row in rows if not row.startswith("from __future__ import")]
    return "\n".join([*future, prelude.removesuffix("\n"), *rest])


def lines(text: str) -> list[str]:
    """Output as it is compared: white space at line ends and empty lines at the end don't count."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def shown(value: Any) -> str:
    """The beginning of a value, for people; integers that Python refuses to write out by their size."""
    try:
        return repr(value)[:200]
    except ValueError:
        return f"a {type(value).__name__} with integers of over {sys.get_int_max_str_digits()} digits"


def meets(test: CallTest, value: Any) -> bool:
    """Whether a value is what the test asks for."""
    if test.how in ("true", "false"):
        return bool(value) == (test.how == "true")
    if test.how == "within":
        numbers = not isinstance(value, bool) and isinstance(value, int | float)
        # Exactly: an integer may be too large for a float.
        return numbers and abs(Fraction(value) - Fraction(test.expected)) <= Fraction(test.tolerance)
    return same(test.expected, value, json=test.how == "json")


def same(expected: Any, value: Any, *, json: bool = False) -> bool:
    """Equality of data with types: bool is no number, list no tuple (unless ``json``), text no bytes; 2 equals 2.0."""
    if json and isinstance(value, tuple):
        value = list(value)
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, int | float) and isinstance(value, int | float):
        return expected == value
    if type(expected) is not type(value):
        return False
    if isinstance(expected, list | tuple):
        return len(expected) == len(value) and all(same(e, v, json=json) for e, v in zip(expected, value, strict=True))
    if isinstance(expected, set | frozenset):
        return expected == value and _kinds(expected) == _kinds(value)
    if isinstance(expected, Mapping):
        if expected.keys() != value.keys() or _kinds(expected) != _kinds(value):
            return False
        return all(same(item, value[key], json=json) for key, item in expected.items())
    return bool(expected == value)


def _kinds(members: Any) -> frozenset[tuple[bool, Any]]:
    """Members with whether they are truth values, which Python holds equal to 0 and 1."""
    return frozenset((isinstance(member, bool), member) for member in members)
