"""What a task's tests are: calls with expected values, inputs with expected outputs, or test code.

Tests written as code are turned into calls wherever every one of their statements allows it; then only the calls go
into the sandbox, and the expected values never do.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from components.rewards.constants import NotConstant, constant
from components.types import Task

How = Literal["equal", "json", "true", "false", "within"]


@dataclass(frozen=True)
class CallTest:
    """``name(*args, **kwargs)`` compared with ``expected``.

    Attributes:
        how: "equal" to a Python value; "json": equal to a JSON value, where a tuple counts as a list; "true"/"false" in
            Python's sense; "within" ``tolerance`` of it.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    how: How
    expected: Any = None
    tolerance: float = 0.0


@dataclass(frozen=True)
class IoTest:
    """What a program reads, and what it has to print."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class CodeTest:
    """Test code that defines ``check(candidate)``, where ``candidate`` is the program's function of this name."""

    source: str
    entry_point: str


Test = CallTest | IoTest | CodeTest


def read_tests(task: Task) -> list[Test]:
    """The tests in ``task.meta``.

    ``tests`` is a list of any of: ``{"call": "f", "args": […], "expected": JSON}``, ``{"call": "f(1, [2])",
    "expected": JSON}``, ``{"stdin": text, "stdout": text}``, and ``"assert f(1) == 2"``. ``check`` is code that defines
    ``check(candidate)``, with ``entry_point`` the name of the function under test.

    Raises:
        ValueError: no test that could fail, or one that cannot be read; names task and entry.
    """
    meta, tests = task.meta, []
    try:
        for i, entry in enumerate(meta.get("tests") or ()):
            try:
                tests += _read(entry, meta.get("entry_point"))
            except (KeyError, TypeError, SyntaxError, NotConstant, ValueError) as error:
                raise ValueError(f"meta.tests[{i}]: {error} (got {str(entry)[:120]!r})") from None
        if meta.get("check"):
            if not meta.get("entry_point"):
                raise ValueError("meta.entry_point is missing, the name of the function that meta.check tests")
            tests += _from_check(meta["check"], meta["entry_point"])
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"task {task.id}: {error}. Fix: see components.rewards.code_tests.read_tests") from None
    if not tests:
        raise ValueError(
            f"task {task.id}: has no tests, so that any program would pass. Fix: give meta.tests or meta.check"
        )
    return tests


def _read(entry: Any, entry_point: str | None) -> Sequence[Test]:
    if isinstance(entry, str):
        return _from_asserts(entry, entry_point)
    if "stdin" in entry:
        return [IoTest(_text(entry["stdin"]), _text(entry["stdout"]))]
    name, args, kwargs = entry["call"], entry.get("args", []), entry.get("kwargs", {})
    if not name.isidentifier():
        call = ast.parse(name.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("call is not of the form name(arguments)")
        name, args, kwargs = call.func.id, *_arguments(call)
    return [CallTest(name, tuple(args), dict(kwargs), "json", entry["expected"])]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return value


@lru_cache(maxsize=4096)
def _from_asserts(source: str, entry_point: str | None) -> tuple[Test, ...]:
    """Tests of one entry, which may hold several statements."""
    body = ast.parse(source).body
    try:
        return tuple(test for statement in body for test in _converted(statement, {}))
    except NotConstant:
        name = entry_point or _tested_name(body)
        inner = ast.unparse(ast.FunctionDef("check", _no_arguments(), body, [], lineno=1, col_offset=0))
        return (CodeTest(inner, name),)


@lru_cache(maxsize=1024)
def _from_check(source: str, entry_point: str) -> tuple[Test, ...]:
    tree = ast.parse(source)
    check = next((s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name == "check"), None)
    if check is None or len(check.args.args) != 1:
        raise ValueError("meta.check defines no check(candidate)")
    try:
        return tuple(t for s in check.body for t in _converted(s, {check.args.args[0].arg: entry_point}))
    except NotConstant:
        return (CodeTest(source, entry_point),)


def _converted(statement: ast.stmt, names: Mapping[str, str]) -> Sequence[CallTest]:
    """The call that one statement makes and tests; none if it cannot fail. Raises NotConstant: no such single call."""
    if isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    ):
        return ()
    if not isinstance(statement, ast.Assert):
        raise NotConstant("a statement other than assert")
    test = statement.test
    match test:
        case ast.Constant(value=True):
            return ()
        case ast.Call():
            return [_call(test, names, "true")]
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call):
            return [_call(call, names, "false")]
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(op=ast.Sub()) as gap]), comparators=[at]
        ):
            if isinstance(test.ops[0], ast.Lt | ast.LtE) and isinstance(gap.left, ast.Call):
                return [_call(gap.left, names, "within", constant(gap.right), float(constant(at)))]
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            if isinstance(test.ops[0], ast.Is) and not (
                isinstance(right, ast.Constant) and right.value in (True, False, None)
            ):
                raise NotConstant("identity of what is not True, False or None")
            call, other = (left, right) if isinstance(left, ast.Call) else (right, left)
            if isinstance(call, ast.Call):
                return [_call(call, names, "equal", constant(other))]
    raise NotConstant("a comparison of another form")


def _call(call: ast.Call, names: Mapping[str, str], how: How, expected: Any = None, tolerance: float = 0.0) -> CallTest:
    if not isinstance(call.func, ast.Name) or (names and call.func.id not in names) or hasattr(builtins, call.func.id):
        raise NotConstant("a call of something else than the function under test")
    args, kwargs = _arguments(call)
    return CallTest(names.get(call.func.id, call.func.id), args, kwargs, how, expected, tolerance)


def _arguments(call: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if any(keyword.arg is None for keyword in call.keywords):
        raise NotConstant("**arguments")
    return tuple(map(constant, call.args)), {str(k.arg): constant(k.value) for k in call.keywords}


def _tested_name(body: Sequence[ast.stmt]) -> str:
    """The function that statements call, if it is only one."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    mine = sorted(name for name in called if not hasattr(builtins, name))
    if len(mine) != 1:
        raise ValueError(f"cannot tell which function is tested (called: {mine}); give meta.entry_point")
    return mine[0]


def _no_arguments() -> ast.arguments:
    return ast.arguments([], [ast.arg("candidate")], None, [], [], None, [])
