"""Stage: examples to learn from, written by a teacher behind an endpoint, or by a model of the run itself.

For reasoning that is R1-Zero's way to a cold start: sample, keep what is right and readable (arXiv:2501.12948 §2.3.1).
For general requests it gives answers to learn and, where some are right and some wrong, preference pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

from components.artifacts import write_json, write_jsonl
from components.models.templates import complete_tokenizer
from components.rewards.extract import final_answer
from components.rewards.response import take_apart
from components.rng import derive, stream
from components.rollout.sampling import Sampling
from components.runtime import Inputs, Out
from components.stages.shared import load_policy, read_tasks, sample_all
from components.stages.teacher import Lessons, Teacher
from components.types import Example, Message, Preference, Rollout, Task

TAKES = {"data": "data", "model": "model?"}
GIVES = ("examples", "preferences")
_CHUNK = 32  # questions between two looks at whether to stop

INSTRUCTION = (
    "Think step by step inside <think> and </think>, then give the final answer alone inside <answer> and </answer>."
)


def traces(
    inputs: Inputs,
    out: Out,
    *,
    accuracy: Any,
    language: Callable[[Task, Rollout], float],
    teacher: Teacher | None = None,
    engine: Callable[..., Any] | None = None,
    split: str = "train",
    kind: str = "reasoning",
    prompts: int = 1000,
    samples: int = 4,
    per_prompt: int = 1,
    form: Literal["tags", "plain"] = "tags",
    instruction: str | None = INSTRUCTION,
    thought: str = "This is harmless, so I answer it.",
    refusal: str | None = "I'm sorry, but I can't help with that.",
    max_new_tokens: int = 512,
    temperature: float = 1.0,
    max_words: int = 1000,
    test_fraction: float = 0.1,
) -> dict[str, float]:
    """Write ``examples.jsonl``, ``counts.json``, and pairs as ``train.jsonl`` and ``test.jsonl``.

    Kept: right by the task's verifier, ended by itself, in the target language, no longer than ``max_words``, not said
    before; at most ``per_prompt`` a prompt. A pair is a kept response and a wrong one to the same prompt, where need
    be ``refusal`` as the one that lacks: right for unsafe requests, wrong for benign ones.

    Args:
        teacher: who writes; None: the model of input ``model``, with ``engine``.
        split, kind: of the tasks that are asked for.
        form: "tags": the writer is to think and answer in tags; "plain": it is asked as a chat model without thinking,
            and ``thought`` is put before its answer, cut at the end of its last whole sentence.
        instruction: system turn when asking; the examples don't have it.

    Raises:
        ValueError: neither teacher nor model; nobody answers at the teacher's address; nothing was kept.
    """
    tasks = [task for task in read_tasks(inputs, split) if kind in (task.kind, task.family)]
    stream(out.seed, out.name, "prompts").shuffle(tasks)
    tasks = tasks[:prompts]
    asked = [_instructed(task, instruction) for task in tasks]
    bill: dict[str, float] = {}
    if teacher is not None:
        written, bill = _taught(teacher, asked, samples, out, max_words)
    elif engine is not None and "model" in inputs:
        sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
        written = _sampled(inputs, engine, asked, samples, sampling, out, plain=form == "plain")
    else:
        raise ValueError(f"{out.name}: nobody writes. Fix: give a teacher, or an input model and an engine")
    reasons: Counter[str] = Counter()
    examples: list[Example] = []
    pairs: list[Preference] = []
    for task, rollouts in zip(tasks, written, strict=True):
        said = [_wrapped(rollout, thought) if form == "plain" else rollout for rollout in rollouts]
        right, wrong = _sorted(task, said, accuracy, language, max_words, reasons)
        source = "teacher" if teacher is not None else "self"
        examples += [Example(task.id, task.messages, r.response, f"{source}/{task.cell}") for r in right[:per_prompt]]
        if (pair := _pair(task, right, wrong, refusal, thought)) is not None:
            pairs.append(pair)
    counts = {"sampled": sum(map(len, written)), "kept": len(examples), "pairs": len(pairs), "dropped": dict(reasons)}
    if not examples and not pairs:
        raise ValueError(
            f"{out.name}: nothing of {counts['sampled']} samples was kept ({dict(reasons)}). Fix: more samples or "
            "prompts, another writer, or easier tasks"
        )
    if out.peers.is_main:
        _write(out, examples, pairs, counts, test_fraction)
    if teacher is not None:
        out.say(
            f"teacher: {bill['asked']:.0f} asked, {bill['cached']:.0f} known before, {bill['tokens_in']:,.0f} + "
            f"{bill['tokens_out']:,.0f} tokens, cost {bill['cost']:.4g}"
        )
    return {
        "sampled": float(counts["sampled"]),
        "kept": float(len(examples)),
        "pairs": float(len(pairs)),
        **{f"dropped/{reason}": float(n) for reason, n in sorted(reasons.items())},
        **{f"teacher/{name}": value for name, value in bill.items()},
    }


def _write(
    out: Out, examples: Sequence[Example], pairs: Sequence[Preference], counts: Any, test_fraction: float
) -> None:
    held_out = [derive("held-out", "preferences", p.messages[-1].content) < test_fraction * 2**63 for p in pairs]
    write_jsonl(out.path / "examples.jsonl", [example.to_json() for example in examples])
    write_jsonl(out.path / "train.jsonl", [p.to_json() for p, held in zip(pairs, held_out, strict=True) if not held])
    write_jsonl(out.path / "test.jsonl", [p.to_json() for p, held in zip(pairs, held_out, strict=True) if held])
    write_json(out.path / "counts.json", counts)


def _instructed(task: Task, instruction: str | None) -> Task:
    if not instruction or task.messages[0].role == "system":
        return task
    return replace(task, messages=(Message("system", instruction), *task.messages))


def _taught(
    teacher: Teacher, tasks: Sequence[Task], samples: int, out: Out, max_words: int
) -> tuple[list[tuple[Rollout, ...]], dict[str, float]]:
    lessons = Lessons(teacher, out)
    written: list[tuple[Rollout, ...]] = []
    for start in range(0, len(tasks), _CHUNK * out.peers.world_size):
        part = tasks[start : start + _CHUNK * out.peers.world_size]
        mine = out.peers.shard(part)
        replies = lessons.ask([task.messages for task in mine], samples)
        own = [tuple(_heard(task, said) for said in group) for task, group in zip(mine, replies, strict=True)]
        written += out.peers.unshard(own)
        lessons.raise_if_silent()
        out.progress(len(written), len(tasks), cost=lessons.teacher.cost(lessons.spent))
        out.raise_if_stopping()
    failed = [text for rank in out.peers.gather(lessons.failures) for text in rank]
    if failed:
        out.say(f"teacher: {len(failed)} questions without a reply, the first: {failed[0]}")
    if unasked := out.peers.sum(lessons.unasked):
        why = "nobody answered" if teacher.max_cost is None else f"max_cost={teacher.max_cost} is spent"
        out.say(f"teacher: {unasked:.0f} questions not asked, since {why}")
    return written, lessons.bill()


def _heard(task: Task, said: dict[str, Any]) -> Rollout:
    """A teacher's reply in the asked-for form, as far as it can be brought into it."""
    text, thought = said["text"].strip(), said["thought"].strip()
    if thought and "<think>" not in text:
        answer = text if "<answer>" in text else f"<answer>{final_answer(text, ('boxed', 'hashes')) or text}</answer>"
        text = f"<think>{thought}</think>{answer}"
    elif "<think>" not in text and (answer := final_answer(text, ("answer", "boxed", "hashes"))) is not None:
        worked = text.partition("<answer>")[0].strip() or text
        text = f"<think>{worked}</think><answer>{answer}</answer>"
    return Rollout(task.id, (), (), (), (), text, "length" if said["finish"] == "length" else "stop")


def _sampled(
    inputs: Inputs, engine: Any, tasks: Sequence[Task], samples: int, sampling: Sampling, out: Out, *, plain: bool
) -> list[tuple[Rollout, ...]]:
    policy = load_policy(inputs, engine)
    if plain:
        policy = replace(policy, tokenizer=deepcopy(policy.tokenizer))
        complete_tokenizer(policy.tokenizer, out.name, out.say, thinking="none")
    return sample_all(policy, tasks, samples, sampling, None, out, "samples")


def _wrapped(rollout: Rollout, thought: str) -> Rollout:
    """A plain answer with a thought before it; one that was cut off ends with its last whole sentence."""
    text = rollout.response.strip()
    if rollout.finish == "length":
        end = max(text.rfind(mark) for mark in (". ", ".\n", "! ", "? "))
        if end < 0:
            return rollout
        text = text[: end + 1]
    return replace(rollout, response=f"<think>\n{thought}\n</think>\n<answer>{text}</answer>", finish="stop")


def _sorted(
    task: Task, rollouts: Sequence[Rollout], accuracy: Any, language: Any, max_words: int, reasons: Counter[str]
) -> tuple[list[Rollout], list[Rollout]]:
    """(right and readable, wrong but readable) responses, each text once."""
    right: dict[str, Rollout] = {}
    wrong: dict[str, Rollout] = {}
    for rollout in rollouts:
        if rollout.finish != "stop":
            reasons["cut off" if rollout.finish == "length" else "failed"] += 1
        elif not take_apart(rollout.response).well_formed:
            reasons["badly formed"] += 1
        elif len(rollout.response.split()) > max_words:
            reasons["too long"] += 1
        elif language(task, rollout) < 1.0:
            reasons["mixed language"] += 1
        elif rollout.response in right or rollout.response in wrong:
            reasons["repeated"] += 1
        elif task.verifier != "open" and accuracy(task, rollout) < 1.0:
            reasons["wrong"] += 1
            wrong[rollout.response] = rollout
        else:
            right[rollout.response] = rollout
    return list(right.values()), list(wrong.values())


def _pair(
    task: Task, right: Sequence[Rollout], wrong: Sequence[Rollout], refusal: str | None, thought: str
) -> Preference | None:
    refused = refusal and f"<think>\nThis could hurt people, so I decline.\n</think>\n<answer>{refusal}</answer>"
    chosen = right[0].response if right else refused if task.verifier == "unsafe" else None
    rejected = wrong[0].response if wrong else refused if task.verifier == "benign" else None
    if chosen is None or rejected is None:
        return None
    return Preference(task.id, task.messages, chosen, rejected, task.family, "wrong")


def traces_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns; ``dropped/WHY``."""
    asked = ["asked", "tokens_in", "tokens_out", "cached", "cost"] if settings.get("teacher") is not None else []
    return ["sampled", "kept", "pairs", "dropped/*", *(f"teacher/{name}" for name in asked)]
