"""A verifier put to the test before anything is trained on its word: does it take the references, and nothing else?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from components.rng import stream
from components.types import Rollout, Score, Task

_FORMS = ("<think> checked</think><answer>{}</answer>", "<think> checked</think><answer>\\boxed{{{}}}</answer>")


def agreement(
    accuracy: Callable[[Task, Rollout], float | Score], tasks: Sequence[Task], *, limit: int = 200, seed: int = 0
) -> dict[str, Any]:
    """How often a verifier calls a task's own reference right, and another task's reference wrong.

    The reference is given as the final answer of a well-formed response, bare or in a box: the verifier may take
    either. The wrong answer is the reference of another task of the same family that differs from it as text.

    Args:
        limit: tasks tried, drawn at random from those with a reference.

    Returns:
        ``n``, ``right`` and ``wrong`` (shares that were accepted and rejected, as they should be; None where nothing
        could be tried), ``failed`` (shares of tries on which the verifier raised or gave no score) and ``examples``,
        three lines at most of what it got wrong.
    """
    draw = stream(seed, "trial")
    with_answer = [task for task in tasks if task.answer and task.kind == "reasoning"]
    chosen = draw.sample(with_answer, min(limit, len(with_answer)))
    families: dict[str, list[str]] = {}
    for task in with_answer:
        families.setdefault(task.family, []).append(str(task.answer))
    accepted, rejected, failed, examples = [], [], [], []
    for task in chosen:
        others = sorted({text for text in families[task.family] if _plain(text) != _plain(str(task.answer))})
        tries = [(str(task.answer), True), *([(draw.choice(others), False)] if others else [])]
        for answer, should in tries:
            scores = [_score(accuracy, task, form.format(answer)) for form in _FORMS]
            known = [score for score in scores if score is not None]
            failed.append(not known)
            if not known:
                continue
            found = any(score >= 1 - 1e-6 for score in known)
            (accepted if should else rejected).append(found == should)
            if found != should and len(examples) < 3:
                said = "right" if found else "wrong"
                examples.append(f"{task.id}: {answer!r} is called {said} where the reference is {task.answer!r}")
    return {
        "n": len(chosen),
        "right": sum(accepted) / len(accepted) if accepted else None,
        "wrong": sum(rejected) / len(rejected) if rejected else None,
        "failed": sum(failed) / len(failed) if failed else 0.0,
        "examples": examples,
    }


def _score(accuracy: Callable[[Task, Rollout], float | Score], task: Task, response: str) -> float | None:
    """The verifier's score of one response; None where it has none."""
    try:
        found = accuracy(task, Rollout(task.id, (), (), (), (), response, "stop"))
    except Exception:  # whatever a user's verifier raises: counted and told
        return None
    if isinstance(found, Score):
        return found.total if found.outcome == "scored" else None
    return float(found)


def _plain(text: str) -> str:
    return " ".join(text.split()).lower()
