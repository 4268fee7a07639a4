"""A Python interpreter that remembers, in the sandbox: names that one call defines are there in the next."""

from __future__ import annotations

from typing import Any

from components.environments.tool_loop import ToolError
from components.environments.tools.host import Broken
from components.types import Task

# Runs inside the sandbox. What a cell prints, and the value of its last expression, as a text.
_HARNESS = """
import ast, contextlib, io, traceback
_names = {"__name__": "__main__"}

class _Capped(io.StringIO):
    def write(self, text):
        if self.tell() < MOST:
            super().write(text[: MOST - self.tell()])
        return len(text)

def cell(source):
    said = _Capped()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            tree = ast.parse(source, "<cell>")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<cell>", "exec"), _names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), _names)
                if value is not None:
                    print(repr(value))
        except BaseException as error:
            lines = traceback.format_exception_only(error)
            print("".join(lines).strip())
            return [False, said.getvalue()]
    return [True, said.getvalue()]
"""


class PythonSession:
    """The cells so far. Each call runs them all again in a fresh program, which the sandbox makes repeatable.

    So an episode needs no process while the policy writes; what a cell breaks – its interpreter, the memory, the CPU
    limit, which is for all cells together – is as if that cell had never been.
    """

    def __init__(self, sandbox: Any, task: Task | None, max_chars: int) -> None:
        self._sandbox, self._harness = sandbox, _HARNESS.replace("MOST", str(max_chars))
        self.cells: list[str] = [] if task is None else list(task.meta.get("python", ()))

    def python(self, code: str) -> str:
        """Run Python; names stay defined. Returns what was printed, and the value of a last expression.

        Args:
            code: statements.
        """
        result = self._sandbox.calls(self._harness, [("cell", (source,), {}) for source in (*self.cells, code)])
        if result.outcome == "infra":
            raise Broken(f"the sandbox: {result.detail}")
        if result.outcome != "pass" or len(result.answers) <= len(self.cells):
            raise RuntimeError(f"{result.detail or result.outcome}; the interpreter is as before this call")
        answer = result.answers[-1]
        if answer.error is not None:
            raise RuntimeError(f"{answer.error}; the interpreter is as before this call")
        self.cells.append(code)
        good, said = answer.value
        if not good:
            raise ToolError(said)
        return said or "(no output)"

    def state(self) -> dict[str, Any]:
        return {"cells": list(self.cells)}

    def close(self) -> None:
        pass


class Python:
    """The toolset: ``python``; its state is the list of cells that ran. A task's ``meta["python"]`` ran before.

    Args:
        sandbox: `components.environments.sandbox.pool.Sandbox`.
    """

    name = "python"
    slow = True
    tools = (PythonSession.python,)

    def __init__(self, *, sandbox: Any, max_chars: int = 4000) -> None:
        self.sandbox, self.max_chars = sandbox, max_chars

    def open(self, task: Task | None) -> PythonSession:
        return PythonSession(self.sandbox, task, self.max_chars)

    def __reduce__(self) -> Any:
        raise TypeError("the python tool has a sandbox of its own")
