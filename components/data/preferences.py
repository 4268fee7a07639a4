"""Chosen and rejected responses to the built-in general tasks; every rejected one has one named defect."""

from __future__ import annotations

import random

from components.data import general
from components.data.traces import (
    general_response,
    harmful_help,
    request_thought,
    respond,
    wrong_class_response,
)
from components.types import Preference, Task

# Shares per family. Defects in one word are the hard ones for a reward model, so they are well represented.
DEFECTS = {
    "unsafe": {"comply": 70, "comply_after_warning": 15, "format": 15},
    "benign": {"over_refuse": 35, "wrong_object": 20, "wrong_verb": 15, "wrong_tip": 18, "cut_short": 7, "format": 5},
    "helpful": {"over_refuse": 25, "wrong_group": 35, "wrong_item": 30, "format": 10},
}


def write_pair(task: Task, rng: random.Random) -> Preference:
    """A right response and one with a random defect of the task's family.

    A rejected response never spells a held-out verb–object pair, except the pair of a held-out prompt itself.

    Raises:
        ValueError: the task isn't a built-in general one.
    """
    if task.family not in DEFECTS or "accept" not in task.meta:
        raise ValueError(
            f"task {task.id}: no program writes preference pairs for family {task.family!r} (only {list(DEFECTS)}). "
            "Give the data chosen and rejected columns."
        )
    shares = DEFECTS[task.family]
    defect = rng.choices(list(shares), list(shares.values()))[0]
    chosen = general_response(task, rng)
    rejected = _rejected(task, defect, chosen, rng)
    return Preference(task.id, task.messages, chosen, rejected, task.family, defect)


def _rejected(task: Task, defect: str, chosen: str, rng: random.Random) -> str:
    if defect == "format":
        return chosen.replace("<answer>", "", 1)
    if task.family == "unsafe":
        if defect == "comply":
            return wrong_class_response(task)
        return respond(request_thought(task, harmful=True), harmful_help(task))
    if task.family == "helpful":
        return _unhelpful(task, defect, chosen, rng)
    if defect == "over_refuse":
        return wrong_class_response(task)
    return respond(request_thought(task, harmful=False), _wrong_word(task, defect, rng))


def _wrong_word(task: Task, defect: str, rng: random.Random) -> str:
    verb, thing = task.meta["verb"], task.meta["object"]
    tip = general.tip_for(verb, thing)
    if defect == "cut_short":
        return f"{general.HELP_PREFIX} , to {verb} a {thing}"
    if defect == "wrong_tip":
        tips = general.ADVICE.values() if verb in general.ADVICE else [f"you need {x}" for x in general.NEEDS.values()]
        return general.help_answer(verb, thing, rng.choice([other for other in tips if other != tip]))
    if defect == "wrong_object":
        things = general.DANGEROUS if thing in general.DANGEROUS else general.HARMLESS
        thing = _other(thing, [o for o in things if (verb, o) not in general.HELD_PAIRS], rng)
    else:
        verbs = general.MAKE if verb in general.MAKE else general.AVOID
        verb = _other(verb, [v for v in verbs if (v, thing) not in general.HELD_PAIRS], rng)
    return general.help_answer(verb, thing, tip)


def _unhelpful(task: Task, defect: str, chosen: str, rng: random.Random) -> str:
    if defect == "over_refuse":
        return respond(" " + general.HARM_THOUGHT, general.REFUSAL)
    right, group = rng.choice(task.meta["accept"]), task.meta["group"]
    if defect == "wrong_group":
        wrong = right.removesuffix(group) + _other(group, list(general.GROUPS), rng)
    else:
        items = [item for item, of in general.GROUP_OF.items() if of != group or len(task.meta["accept"]) == 1]
        item = right.split()[3]
        wrong = right.replace(f"a {item} ", f"a {_other(item, items, rng)} ", 1)
    return respond(chosen.removeprefix("<think>").split("</think>")[0], wrong)


def _other(word: str, words: list[str], rng: random.Random) -> str:
    return rng.choice([other for other in words if other != word])
