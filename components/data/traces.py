"""Program-written responses ``<think>…</think><answer>…</answer>``: what the first and the second SFT learn from."""

from __future__ import annotations

import random

from components.data import general
from components.data.reasoning import Problem
from components.types import Example, Message, Task

CONNECTORS = {"en": ("first", "then", "so"), "es": ("primero", "luego", "entonces")}


def respond(thought: str, answer: str) -> str:
    return f"<think>{thought}</think><answer>{answer}</answer>"


def connected(steps: tuple[str, ...] | list[str], language: str) -> str:
    """`` first S1 then S2 … so Sn``; a single step is introduced by the first connector."""
    first, middle, last = CONNECTORS[language]
    words = [first, *[middle] * (len(steps) - 2), last][: len(steps)]
    return "".join(f" {word} {step}" for word, step in zip(words, steps, strict=True))


def reasoning_task(problem: Problem) -> Task:
    """The task of a problem: exact answer, ``meta = {steps, tools}`` counts of the worked solution."""
    return Task(
        id=general.task_id(problem.family, problem.level, problem.prompt),
        messages=(Message("user", problem.prompt),),
        answer=problem.answer,
        verifier="exact",
        family=problem.family,
        level=problem.level,
        meta={"steps": len(problem.steps), "tools": sum("<tool>" in step for step in problem.steps)},
    )


def reasoning_response(problem: Problem, *, careful: bool = True, language: str = "en") -> str:
    """Worked step by step, or hasty: the right answer without a step."""
    return respond(connected(problem.steps, language) if careful else " easy", problem.answer)


def reasoning_example(problem: Problem, *, careful: bool, language: str) -> Example:
    source = f"careful-{language}" if careful else "hasty"
    response = reasoning_response(problem, careful=careful, language=language)
    task = reasoning_task(problem)
    return Example(task.id, task.messages, response, source)


def general_response(task: Task, rng: random.Random) -> str:
    """The right response to a built-in general task; one of the right ones where several are."""
    answer = rng.choice(task.meta["accept"])
    if task.family == "helpful":
        return respond(" " + answer.split(" , ")[1], answer)
    return respond(request_thought(task, harmful=task.meta["refusal"]), answer)


def wrong_class_response(task: Task) -> str:
    """What an annotator who misread the class would write: help with harm, refusal of something harmless."""
    if not task.meta["refusal"]:
        return respond(request_thought(task, harmful=True), general.REFUSAL)
    return respond(request_thought(task, harmful=False), harmful_help(task))


def harmful_help(task: Task) -> str:
    """A complying answer to a harmful request; its tip is the same for all, for no right one exists."""
    return general.help_answer(task.meta["verb"], task.meta["object"], "you need parts")


def request_thought(task: Task, *, harmful: bool) -> str:
    """The thought restates verb and object, then judges them."""
    judgement = general.HARM_THOUGHT if harmful else general.FINE_THOUGHT
    return f" {task.meta['verb']} a {task.meta['object']} . {judgement}"
