"""Answers to look at: the same prompts across stages, side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from components.evaluation.page.sources import Evaluation, Sources
from components.evaluation.summary import is_right
from components.rng import stream

_LONGEST = 6000  # characters of one response on the page
_TAGS = {"think": "think", "tool": "tool", "result": "result", "answer": "answer"}


def clip(text: str, longest: int = _LONGEST) -> str:
    """The text, its middle left out if it is longer than ``longest`` characters."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def segments(response: str) -> list[tuple[str, str]]:
    """The response in pieces ``(kind, text)``: think, tool, result, answer or plain.

    One pass from left to right; an inner tag (a tool call in the thinking) interrupts the outer one. Unclosed tags run
    to the end, stray closing tags stay as text, so nothing of the response is lost but the tags.
    """
    pieces: list[tuple[str, str]] = []
    open_tags: list[str] = []
    at = start = 0

    def cut(end: int) -> None:
        if text := response[start:end].strip("\n"):
            pieces.append((_TAGS[open_tags[-1]] if open_tags else "plain", text))

    while (at := response.find("<", at)) >= 0:
        end = response.find(">", at, at + 12)
        tag = response[at + 1 : end] if end > 0 else ""
        if tag in _TAGS:
            cut(at)
            open_tags.append(tag)
        elif tag[:1] == "/" and open_tags and tag[1:] == open_tags[-1]:
            cut(at)
            open_tags.pop()
        else:
            at += 1
            continue
        at = start = end + 1
    cut(len(response))
    return pieces


def side_by_side(evaluations: Sequence[Evaluation], sources: Sources, count: int, seed: int) -> list[dict[str, Any]]:
    """Prompts with one answer of every stage: what changed first, then what did not, families in turn.

    Kinds, drawn in turn so that the selection flatters nobody: wrong at first and right at the end, right at first and
    wrong at the end, wrong both times, right both times. The first evaluated model is left out of this judgement when
    there are more than two (a base model that never saw the format is wrong everywhere).
    """
    shown = [first_answers(evaluation.rows) for evaluation in evaluations]
    if not shown:
        return []
    common = sorted(set.intersection(*(set(answers) for answers in shown)))
    judged = shown[1:] if len(shown) > 2 else shown
    pools: dict[tuple[str, str], list[str]] = defaultdict(list)
    for task in common:
        first, last = is_right(judged[0][task]), is_right(judged[-1][task])
        kind = {(False, True): "gained", (True, False): "lost", (False, False): "wrong", (True, True): "right"}[
            first, last
        ]
        pools[kind, judged[-1][task]["family"]].append(task)
    rng = stream(seed, "report", "side-by-side")
    for pool in pools.values():
        rng.shuffle(pool)
    families = sorted({family for _, family in pools})
    picked: list[tuple[str, str]] = []
    while len(picked) < count and any(pools.values()):
        for kind in ("gained", "lost", "wrong", "right"):
            ready = [family for family in families if pools[kind, family]]
            if ready:
                family = min(ready, key=lambda f: sum(judged[-1][task]["family"] == f for _, task in picked))
                picked.append((kind, pools[kind, family].pop()))
    return [_comparison(kind, task, evaluations, shown, sources) for kind, task in picked[:count]]


def first_answers(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """One answer per prompt: the greedy one where there is one, else the first sample."""
    answers: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        held = answers.get(row["task_id"])
        if held is None or row.get("sample", 0) < held.get("sample", 0):
            answers[row["task_id"]] = row
    return answers


def _comparison(
    kind: str, task: str, evaluations: Sequence[Evaluation], shown: Sequence[Mapping[str, Any]], sources: Sources
) -> dict[str, Any]:
    row = shown[-1][task]
    prompt, gold = prompt_of(row, sources)
    answers = [
        {
            "stage": evaluation.stage,
            "right": is_right(answers[task]),
            "length": answers[task]["length"],
            "segments": segments(clip(answers[task]["response"])),
        }
        for evaluation, answers in zip(evaluations, shown, strict=True)
    ]
    return {
        "kind": kind,
        "family": row["family"],
        "level": row["level"],
        "prompt": clip(prompt),
        "gold": gold,
        "answers": answers,
    }


def prompt_of(row: Mapping[str, Any], sources: Sources) -> tuple[str, str]:
    """Prompt and expected answer, from the row or else from the data."""
    known = sources.prompts.get(row["task_id"], ("", ""))
    return str(row.get("prompt") or known[0]), str(row.get("gold") or known[1])
