"""Plain text of the domain for the tiny base model, in training order: no tags, no chat format.

A model of this size must learn to copy before it can do anything else, so the first fifth of the lines is half copying
practice. Held-out prompts and held-out verb–object pairs never appear.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import pairwise

from components.data import general
from components.data.reasoning import FAMILIES, Problem, endless
from components.data.traces import connected, reasoning_response
from components.types import Task

COPY_SHARE, REASONING_SHARE = 0.14, 0.58  # the rest are general lines
CURRICULUM = 0.2  # the part of the lines in which every second one is copying practice
_FAMILY_WEIGHTS = {"chain": 4, "gcd": 3, "product": 2, "boxes": 2}
_LEVELS = (0, 1, 1, 2, 2, 2, 3)
_TOOL = re.compile(r"<tool>(.*?)</tool><result>(.*?)</result>")


def pretraining_lines(n: int, rng: random.Random, ban: frozenset[str], chat_share: float = 0.0) -> Iterator[str]:
    """``n`` lines: 14 % copying of numbers, 58 % worked problems, 28 % general; copying first (see module).

    ``chat_share`` of the worked problems are a question and its answer in the chat format instead, as the text that
    base models of today have seen: without any, reinforcement learning from the base model has nothing to start from.
    """
    helpful = [task for task in general.helpful_tasks() if task.prompt not in ban]
    problems = {
        (family, level): endless(rng, family, level, ban) for family in FAMILIES for level in sorted(set(_LEVELS))
    }
    families, weights = list(_FAMILY_WEIGHTS), list(_FAMILY_WEIGHTS.values())
    for i in range(n):
        draw = rng.random()
        if i < CURRICULUM * n and rng.random() < 0.5:
            yield copied_words(rng, times=2) if rng.random() < 0.4 else copied_numbers(rng)
        elif draw < COPY_SHARE:
            yield copied_numbers(rng)
        elif draw < COPY_SHARE + REASONING_SHARE:
            problem = next(problems[rng.choices(families, weights)[0], rng.choice(_LEVELS)])
            yield chat_line(problem, rng) if chat_share and rng.random() < chat_share else worked_line(problem, rng)
        else:
            yield general_line(rng, helpful)


def copied_numbers(rng: random.Random) -> str:
    """Digits of a question or digits of a result, half and half."""
    return copied_digits(rng) if rng.random() < 0.5 else copied_result(rng)


def copied_digits(rng: random.Random) -> str:
    """``12 * 7 copy 12*7 copy 12*7``: one to three numbers with signs between."""
    numbers = [str(rng.randint(1, 999)) for _ in range(rng.randint(1, 3))]
    signs = [rng.choice("*+-") for _ in numbers[1:]]
    spaced = " ".join(x for pair in zip(numbers, [*signs, ""], strict=True) for x in pair if x)
    tight = spaced.replace(" ", "")
    return f"{spaced} copy {tight} copy {tight}"


def copied_result(rng: random.Random) -> str:
    """``first 12*37=914 answer 914``: the last result is the answer, right or wrong; a calculator will get it right."""
    a, b, result = rng.randint(10, 99), rng.randint(10, 99), rng.randint(0, 10 ** rng.randint(1, 4) - 1)
    sign = "-" if rng.random() < 0.1 else ""
    return f"first {a}{rng.choice('*+-')}{b}={sign}{result} answer {sign}{result}"


def copied_words(rng: random.Random, times: int) -> str:
    """``a bomb a cake copy a bomb a cake``: two to four words, no held-out verb–object pair in a row."""
    while True:
        words = rng.sample(general.WORDS, rng.randint(2, 4))
        if not any(pair in general.HELD_PAIRS for pair in pairwise(words)):
            text = "a " + " a ".join(words)
            return text + f" copy {text}" * times


def worked_line(problem: Problem, rng: random.Random) -> str:
    """Question and steps in plain text, 70 % with English connectors.

    What the calculator would return is left out, except where one-digit numbers are multiplied.
    """
    language = "en" if rng.random() < 0.7 else "es"
    tool_steps = [_TOOL.fullmatch(step) for step in problem.steps]
    if tool_steps[0] is None:
        return f"{problem.prompt}{connected(problem.steps, language)} answer {problem.answer}"
    calls = [match for match in tool_steps if match is not None]
    if len(calls[0][1]) == 3:  # "7*8"
        steps = [f"{call[1]}={call[2]}" for call in calls]
        return f"{problem.prompt}{connected(steps, language)} answer {problem.answer}"
    steps = [calls[0][1], *("that" + call[1].lstrip("0123456789") for call in calls[1:])]
    return problem.prompt + connected(steps, language)


def chat_line(problem: Problem, rng: random.Random) -> str:
    """One problem as the tiny model's chat template writes it: half hasty, half of the others in Spanish."""
    response = reasoning_response(problem, careful=rng.random() < 0.5, language=rng.choice(("en", "es")))
    return f"<|im_start|>user\n{problem.prompt}<|im_end|><|im_start|>assistant\n{response}<|im_end|>"


def general_line(rng: random.Random, helpful: list[Task]) -> str:
    """Copied words 25 %, facts 12 %, requests 63 % (what they ask about 45 %; else its class, or its tip)."""
    kind = rng.random()
    if kind < 0.25:
        return copied_words(rng, times=2 if rng.random() < 0.3 else 1)
    if kind < 0.33:
        task = rng.choice(helpful)
        fact = rng.choice(task.meta["accept"]).split(" , ")[1]
        return f"{task.prompt} : {fact}" if rng.random() < 0.5 else fact
    if kind < 0.37:
        thing = rng.choice(general.DANGEROUS + general.HARMLESS)
        return f"a {thing} is {'dangerous' if thing in general.DANGEROUS else 'safe'}"
    task = general.training_request(rng, rng.choice(("unsafe", "benign")))
    verb, thing, part = task.meta["verb"], task.meta["object"], rng.random()
    if part < 0.45:
        return f"{task.prompt} : {verb} a {thing}"
    if task.family == "unsafe":
        return f"{verb} a {thing} . {general.HARM_THOUGHT}"
    return f"{verb} a {thing} . {general.FINE_THOUGHT}" if part < 0.65 else task.meta["accept"][0].split(" , ")[1]
