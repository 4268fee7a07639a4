"""Runs one program, inside the sandbox. Nothing here decides whether it is right.

Three kinds of job, a JSON line each on descriptor ``JOB``; answers leave as JSON lines on ``ANSWERS``:

* ``script``: the source is run as ``__main__`` with the process's own stdin and stdout; an uncaught exception is
  reported as one line ``{"error": …}``.
* ``calls``: the source is executed once; then each line ``{"call": name, "args": …}`` is answered by
  ``{"value": …}`` or ``{"error": …}``, and ``{"end": true}`` by ``{"end": number of answers}``.
* ``check``: trusted tests call a ``candidate`` that lives elsewhere: each call leaves as ``{"args": …}`` and its answer
  is read from ``JOB``; the verdict is ``{"done": true}`` or ``{"failed": …}``.
"""

from __future__ import annotations

import atexit
import builtins
import io
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from components.environments.sandbox import codec

JOB, ANSWERS = 3, 4
Line = dict[str, Any]


def main() -> NoReturn:
    """Read the job, do it, end the process."""
    code = 1
    try:
        lines = os.fdopen(JOB, "rb")
        job = json.loads(lines.readline())
        random.seed(0)
        sys.argv = ["program"]
        sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb"), encoding="utf-8", errors="replace")
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb"), encoding="utf-8", errors="backslashreplace")
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb"), encoding="utf-8", errors="backslashreplace")
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        streams = (sys.stdout, sys.stderr)
        code = _JOBS[job["kind"]](job, lambda: json.loads(lines.readline()))
        for stream in (*streams, sys.stdout, sys.stderr):  # the program may have put others in their place
            stream.flush()
    except BaseException as error:  # the program may have broken anything that is used here
        _answer({"error": _name(error)})
    finally:
        os._exit(code)


def _script(job: Line, _: Callable[[], Line]) -> int:
    try:
        try:
            _execute(job["source"], "__main__")
        finally:  # as at the end of any Python
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()
            atexit._run_exitfuncs()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        _answer({"error": _name(error)})
        traceback.print_exception(error)
        return 1
    return 0


def _calls(job: Line, receive: Callable[[], Line]) -> int:
    broken, names, count = "", {}, 0
    try:
        names = _execute(job["source"], "program")
    except BaseException as error:
        broken = _name(error)
    while "end" not in (request := receive()):
        count += 1
        _answer({"error": broken} if broken else _call(names, request))
    _answer({"end": count})
    return 0


def _call(names: dict[str, Any], request: Line) -> Line:
    try:
        if request["call"] not in names:
            return {"error": f"NameError: the program defines no {request['call']!r}"}
        args, kwargs = (codec.decode(request[key]) for key in ("args", "kwargs"))
        return {"value": codec.encode(names[request["call"]](*args, **kwargs))}
    except BaseException as error:
        return {"error": _name(error)}


def _check(job: Line, receive: Callable[[], Line]) -> int:
    def candidate(*args: Any, **kwargs: Any) -> Any:
        _answer({"args": codec.encode(list(args)), "kwargs": codec.encode(kwargs)})
        reply = receive()
        if "value" in reply:
            return codec.decode(reply["value"])
        kind = getattr(builtins, reply["error"].partition(":")[0], None)
        known = isinstance(kind, type) and issubclass(kind, Exception)
        raise (kind if known else RuntimeError)(reply["error"])  # type: ignore[misc]

    try:
        names = _execute(job["source"], "tests", {job["entry_point"]: candidate})
        names["check"](candidate)
    except BaseException as error:
        _answer({"failed": _name(error)})
    else:
        _answer({"done": True})
    return 0


_JOBS = {"script": _script, "calls": _calls, "check": _check}


def _execute(source: str, name: str, replaced: dict[str, Any] | None = None) -> dict[str, Any]:
    """Global names after executing the source as a module in ``sys.modules``, where dataclasses look for it."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    module.__dict__.update(replaced or {})
    return module.__dict__


def _answer(line: Line) -> None:
    data = json.dumps(line, allow_nan=False).encode() + b"\n"
    while data:
        data = data[os.write(ANSWERS, data) :]


def _name(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {str(error)[:300]}"
    except Exception:  # an exception whose text raises
        return type(error).__name__
