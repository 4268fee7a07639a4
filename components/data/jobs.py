"""Jobs for a shell or a database, each with the world that it is done in and an expert's commands; and their recording.

A job is an instruction, what is there before, and what one who knows does. `record` does it in a real environment and
writes down what was called and answered, in any of the forms in which transcripts come. Environments are made of such
transcripts by ``r1flow envs build``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from components.rng import stream

Tool = Literal["shell", "query"]
RECORDED = ("transcripts", "messages", "rollouts", "shell")


@dataclass(frozen=True)
class Job:
    """What is to be done and how.

    Attributes:
        world: ``{"files": …}`` or ``{"database": …}``, as in a task's ``meta``.
        looks: commands that only look; what they show is enough to set the world up again.
        steps: commands that do it.
    """

    family: str
    tool: Tool
    instruction: str
    world: Mapping[str, Any]
    steps: Sequence[str]
    looks: Sequence[str] = field(default_factory=tuple)


Maker = Callable[[random.Random], Job]


def jobs(families: Mapping[str, Maker], seed: int, n: int) -> Iterator[Job]:
    """n jobs with different instructions, the families in turn; job i of a seed is the same for every n.

    Raises:
        ValueError: the families have not so many.
    """
    names, seen = list(families), set()
    made = tries = 0
    while made < n:
        if tries == 200 * n + 1000:
            raise ValueError(
                f"jobs: {', '.join(names)} give {made} different ones only, {n} were asked for. Fix: fewer"
            )
        job = families[names[tries % len(names)]](stream(seed, "jobs", tries))
        tries += 1
        if job.instruction not in seen:
            seen.add(job.instruction)
            made += 1
            yield job


def record(
    job: Job,
    run: Callable[[str], str],
    form: str = "transcripts",
    *,
    name: str = "job",
    look: bool = True,
    world: bool = True,
) -> dict[str, Any]:
    """What a recorder makes of an expert at work.

    Args:
        run: carries out one command in the job's world and returns what the tool says.
        form: of `RECORDED`; a "shell" session's text stands under ``session``.
        look: the expert looks before it acts.
        world: the recording says what was there at the beginning.

    Raises:
        ValueError: no such form.
    """
    commands = [*(job.looks if look else ()), *job.steps]
    calls = [(command, run(command)) for command in commands]
    beginning = dict(job.world) if world else {}
    if form == "transcripts":
        actions = [{job.tool: command, "output": said} for command, said in calls]
        return {"id": name, "instruction": job.instruction, **beginning, "actions": actions, "finished": True}
    if form == "messages":
        return {"id": name, "messages": list(_messages(job, calls)), **beginning}
    if form == "rollouts":
        said = " ".join(f"<tool>{job.tool} {c}</tool><result>{text}</result>" for c, text in calls)
        task = {"messages": [{"role": "user", "content": job.instruction}], "meta": beginning}
        response = f"<think> {said}</think><answer>done</answer>"
        return {"task_id": name, "prompt": job.instruction, "response": response, "finish": "stop", "task": task}
    if form == "shell":
        return {"id": name, "session": _session(job, calls), **beginning}
    raise ValueError(f"record: no such form {form!r}. Fix: one of {', '.join(RECORDED)}")


def _messages(job: Job, calls: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    key = "command" if job.tool == "shell" else "sql"
    yield {"role": "system", "content": "You have tools."}
    yield {"role": "user", "content": job.instruction}
    for i, (command, said) in enumerate(calls):
        function = {"name": job.tool, "arguments": json.dumps({key: command})}
        yield {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{i}", "type": "function", "function": function}],
        }
        yield {"role": "tool", "tool_call_id": f"c{i}", "content": said}
    yield {"role": "assistant", "content": "Done."}


def _session(job: Job, calls: Sequence[tuple[str, str]]) -> str:
    """A terminal: no exit codes, no remark on empty output, SQL in its own prompt."""
    prompt, end = ("$ ", "$ exit") if job.tool == "shell" else ("sqlite> ", "sqlite> .quit")
    lines = [f"# {job.instruction}"]
    for command, said in calls:
        lines.append(prompt + command.replace("\n", "\n> ") + ("" if job.tool == "shell" else ";"))
        if said and said != "(no output)" and not said.startswith("ok, "):
            lines.append(said)
    return "\n".join([*lines, end, ""])
