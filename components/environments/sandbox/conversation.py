"""What is said between the outside and a running program, for each kind of job (see `runner`)."""

from __future__ import annotations

from collections.abc import Sequence

from components.environments.sandbox import codec
from components.environments.sandbox.outcome import Answer, Call, Limits, Result, Stopped
from components.environments.sandbox.program import Line, Program


def script(program: Program, limits: Limits) -> Result:
    """Let a script run to its end. Raises Stopped."""
    with program:
        code = program.finish()
        said = {"stdout": program.text("stdout"), "stderr": program.text("stderr"), "exit_code": code}
        if program.rest().startswith(b'{"error": "MemoryError'):
            return Result("memory", f"needs more than {limits.memory_mib} MiB", **said)
        return Result("pass", **said)


def calls(program: Program, wanted: Sequence[Call]) -> Result:
    """Make the calls; what stops the program keeps the answers before it."""
    answers: list[Answer] = []
    with program:
        try:
            for line in (*map(_request, wanted), {"end": True}):  # at once: a program gains nothing by looking ahead
                program.tell(line)
            for _ in wanted:
                answers.append(_answer(program.listen()))
                if (answers[-1].error or "").startswith("MemoryError"):
                    return Result("memory", answers[-1].error or "", tuple(answers))
            _end(program, len(wanted))
        except Stopped as stopped:
            return Result(stopped.outcome, stopped.detail, tuple(answers))
    return Result("pass", answers=tuple(answers))


def check(judge: Program, accused: Program, entry_point: str) -> Result:
    """Carry calls from the tests to the program and answers back. Raises Stopped."""
    with judge, accused:
        count = 0
        while True:
            try:
                said = judge.listen()
            except Stopped as stopped:
                if stopped.outcome == "infra":
                    raise
                return Result("fail", f"the tests: {stopped.detail}")
            if "args" not in said:
                break
            count += 1
            accused.tell({"call": entry_point, **said})
            answer = accused.listen()
            judge.tell(_checked(answer))
            if str(answer.get("error", "")).startswith("MemoryError"):
                return Result("memory", answer["error"])
        accused.tell({"end": True})
        _end(accused, count)
        return Result("pass") if said.get("done") is True else Result("fail", str(said.get("failed")))


def _request(call: Call) -> Line:
    name, args, kwargs = call
    return {"call": name, "args": codec.encode(list(args)), "kwargs": codec.encode(dict(kwargs))}


def _checked(line: Line) -> Line:
    """An answer, if it is one: exactly a value of the encoding, or a text. Raises Stopped."""
    if list(line) == ["value"]:
        try:
            return {"value": codec.encode(codec.decode(line["value"]))}
        except codec.NotData as error:
            raise Stopped("protocol", f"an answer that is no value: {error}") from None
    if list(line) == ["error"] and isinstance(line["error"], str):
        return line
    raise Stopped("protocol", f"an answer that is neither a value nor an error: {str(line)[:80]}")


def _answer(line: Line) -> Answer:
    line = _checked(line)
    return Answer(codec.decode(line["value"])) if "value" in line else Answer(error=line["error"])


def _end(program: Program, count: int) -> None:
    """The last word must be the number of answers, and nothing may follow: an answer too many is a protocol failure."""
    said = program.listen()
    program.finish()  # only then is it certain that nothing follows
    if said != {"end": count} or program.rest():
        raise Stopped("protocol", f"more answers than calls: {str(said)[:80]}")
