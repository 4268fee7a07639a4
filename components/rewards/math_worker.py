"""The process in which math-verify runs: one JSON request a line on stdin, one JSON reply a line on stdout.

The process that is started only loads the packages and forks; a child of it does the checks. Each check has a budget of
CPU time, kept by the kernel (`ITIMER_PROF`), which also ends a computation that no Python code interrupts. A child that
dies is replaced by a fork, a few milliseconds instead of the second that importing takes.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

_WARM = (
    ("\\frac{1}{2}", "0.5"),
    ("\\sqrt{2}", "2^{0.5}"),
    ("x^2+1", "1+x^{2}"),
    ("(1,2)", "(1,3)"),
    ("x\\le 3", "x<3"),
)


def main(memory: int) -> None:
    """Serve until stdin is closed. ``memory``: address space of the child, bytes."""
    logging.disable(logging.CRITICAL)
    parse_in_two_stages()
    for gold, answer in _WARM:  # parsers and caches fill before the first fork, so that no check pays for it
        equal({"gold": gold, "answer": answer, "tolerance": 0.0})
    _write({"ready": os.getpid()})
    while True:
        child = os.fork()
        if child == 0:
            try:
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
                _serve()
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            return
        number = os.WTERMSIG(status)
        _write({"cpu_limit": True} if number == signal.SIGPROF else {"died": signal.Signals(number).name})


def parse_in_two_stages() -> None:
    """Let the LaTeX parser try ANTLR's SLL prediction before full LL.

    Where SLL succeeds the tree is the same (Parr, Harwell and Fisher 2014), and pairs and sets take 3 ms instead of 30.
    """
    try:
        from antlr4.atn.PredictionMode import PredictionMode
        from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy

        create, parse = _Latex2Sympy.create_parser, _Latex2Sympy.parse
    except (ImportError, AttributeError):  # another version of the parser: as it is, only slower
        return
    mode = PredictionMode.LL

    def create_in_mode(self: Any, text: str) -> Any:
        parser = create(self, text)
        parser._interp.predictionMode = mode
        return parser

    def parse_twice(self: Any, text: str) -> Any:
        nonlocal mode
        try:
            mode = PredictionMode.SLL
            return parse(self, text)
        except Exception:  # a syntax error of this stage says nothing
            mode = PredictionMode.LL
            return parse(self, text)

    parser_class: Any = _Latex2Sympy
    parser_class.create_parser, parser_class.parse = create_in_mode, parse_twice


def equal(request: dict[str, Any]) -> bool:
    """Whether two spelled expressions are equal: exactly, or numbers within the relative tolerance."""
    from math_verify import verify

    gold, mine = parsed(request["gold"]), parsed(request["answer"])
    if gold is None or mine is None:
        return False
    if not request["tolerance"] and _differ(gold, mine):
        return False
    # No time limits inside: they are alarms, and this process has a limit of its own. Decimals are fractions here, so
    # rounding can't make 0.333333 of 1/3.
    if verify([gold], [mine], float_rounding=30, numeric_precision=40, strict=True, timeout_seconds=0):
        return True
    return bool(request["tolerance"]) and _near(gold, mine, request["tolerance"])


@lru_cache(maxsize=1024)
def parsed(text: str) -> Any:
    r"""The expression that a spelled text is, decimals as exact fractions; None if it is none.

    The text goes in as the content of a ``\boxed{…}``, so that nothing is searched for in it.
    """
    from math_verify import LatexExtractionConfig, parse
    from sympy import Float, Rational

    config = LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0)
    found = parse(f"\\boxed{{{text}}}", [config], fallback_mode="no_fallback", parsing_timeout=0)
    if not found or isinstance(found[0], str):
        return None
    decimals = {f: Rational(repr(float(f))) for f in found[0].atoms(Float)}
    return found[0].xreplace(decimals) if decimals else found[0]


def _differ(gold: Any, mine: Any) -> bool:
    """Whether two expressions have clearly different values at one point: then nothing has to be simplified.

    Three times as fast as a proof; what it does not see is left to math-verify.
    """
    from sympy import Expr, Rational, Symbol

    if not isinstance(gold, Expr) or not isinstance(mine, Expr) or isinstance(gold, Symbol) or isinstance(mine, Symbol):
        return False
    symbols = sorted(gold.free_symbols | mine.free_symbols, key=str)
    point = {symbol: Rational(7 * i + 11, 13) for i, symbol in enumerate(symbols)}
    pair: tuple[Any, Any] = (gold, mine)
    try:
        at = [complex(expression.xreplace(point).evalf(20)) for expression in pair]
    except (TypeError, ValueError, OverflowError, AttributeError):  # no numbers there
        return False
    return abs(at[0] - at[1]) > 1e-6 * max(abs(at[0]), abs(at[1]))  # False for NaN


def _near(gold: Any, mine: Any, tolerance: float) -> bool:
    try:
        return bool(abs((gold - mine).evalf(40)) <= tolerance * abs(gold.evalf(40)))
    except (TypeError, AttributeError, ValueError):  # not numbers
        return False


def _serve() -> None:
    while line := sys.stdin.readline():
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
        try:
            reply: dict[str, Any] = {"equal": equal(request)}
        except (MemoryError, RecursionError) as error:  # too big an answer, whoever computes it
            reply = {"equal": False, "why": type(error).__name__}
        except Exception as error:  # the algebra system doesn't take this expression
            reply = {"equal": False, "why": f"{type(error).__name__}: {error}"[:200]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(reply)


def _write(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
