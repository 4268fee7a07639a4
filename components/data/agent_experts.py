"""Programs that do errands in the real environment: what they call and what they are told becomes a trace.

Every one of them gets its errand done. A careful one takes the shortest way; a wandering one also tries what leads
nowhere (a tool that is not on offer, a key that there is not, an argument forgotten, the same call twice); a hasty one
acts without having looked, with luck that a policy cannot count on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

from components.data.agent_errands import DISTRACTORS, KEYS, USEFUL, Errand
from components.types import Task

Manner = Literal["careful", "wandering", "hasty"]
_NO_TOOLS = ("look", "sql", "math")


def calls_of(errand: Errand, tools: Sequence[str], manner: Manner, rng: random.Random) -> list[str]:
    """The calls that an expert of this manner makes, in order."""
    calls = [call for call, _ in errand.steps]
    if manner == "hasty":
        blind = rng.random() < 0.5
        skipped = ("get", "query", "calculator") if blind else ("calculator",)
        return [call for call in calls if not call.startswith(skipped)]
    if manner == "wandering":
        for _ in range(rng.randint(1, 2)):
            at = rng.randint(0, len(calls))
            calls.insert(at, _astray(errand, tools, calls[:at], rng))
    return calls


def _astray(errand: Errand, tools: Sequence[str], before: Sequence[str], rng: random.Random) -> str:
    """A call that changes nothing: mostly an invalid one, else a needless one."""
    word = errand.instruction.split(" ")[-1]
    key = rng.choice([key for key in KEYS if key not in errand.store])
    missing = [name for name in (*USEFUL, *DISTRACTORS) if name not in tools]
    choices = [f"{rng.choice(_NO_TOOLS)} {word}", f"get {key}" if "get" in tools else f"get {word}"]
    choices += [f"{rng.choice(missing)} {word}"] * 2 if missing else []
    choices += [f"put {word}"] if "put" in tools else []
    choices += [f"query select cost from items where name='{word}'"] if "query" in tools else []
    if rng.random() < 0.3:
        needless = [f"{name} {word}" for name in DISTRACTORS if name in tools]
        needless += [call for call in before[-1:] if call.startswith(("get", "query", "calculator"))]
        choices = needless or choices
    return rng.choice(choices)


def play(environment: Any, task: Task, calls: Sequence[str], answer: str, thought: str = "") -> tuple[str, list[str]]:
    """The response that makes these calls in an episode and ends with this answer; and what the tools said.

    Args:
        environment: one whose calls stand in tags inside the text (its ``format.call`` and ``wrapper``).
        thought: words before the first call; without calls there must be some.

    Raises:
        RuntimeError: the environment ended the episode before the calls were made.
    """
    (opening, closing), (before, after) = environment.format.call, environment.wrapper
    episode = environment.reset(task)
    text, said = thought, []
    try:
        for call in calls:
            written = f"{opening}{call}{closing}"
            step = episode.step(written)
            if step.done or step.observation is None:
                raise RuntimeError(f"task {task.id}: the environment ended the expert's episode at {call!r}")
            observations = [step.observation] if isinstance(step.observation, str) else list(step.observation)
            text += written + "".join(f"{before}{line}{after}" for line in observations)
            said += observations
    finally:
        episode.close()
    return f"<think>{text or ' easy'}</think><answer>{answer}</answer>", said
