"""Stage: search among the turns of an episode; its best branches become examples, its contrasts preference pairs.

Agent Q (arXiv:2408.07199) without its critic: Monte-Carlo tree search whose values are outcomes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from components.artifacts import write_json, write_jsonl
from components.rewards.length import verdicts
from components.rng import derive, stream
from components.rollout.sampling import Sampling
from components.rollout.tree import Node, back_up, best_ends, contrasts, grow, select
from components.runtime import Inputs, Out
from components.stages.drawn import Chunks
from components.stages.shared import load_policy, mean, read_tasks
from components.stages.tree_rollouts import Branches
from components.types import Example, Message, Preference, Score, Task

TAKES = {"model": "model", "data": "data"}
GIVES = ("examples", "preferences")


def tree_search(
    inputs: Inputs,
    out: Out,
    *,
    accuracy: Any,
    engine: Callable[..., Any],
    environment: Any,
    split: str = "fresh",
    prompts: int = 64,
    simulations: int = 32,
    width: float = 2.0,
    exploration: float = 1.0,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    solved: float = 1.0,
    margin: float = 0.25,
    per_prompt: int = 1,
    pairs_per_prompt: int = 4,
    test_fraction: float = 0.1,
    checkpoint_every: int = 32,
) -> dict[str, float]:
    """Write ``examples.jsonl`` and ``train.jsonl``, ``test.jsonl`` (pairs), ``search.json`` (what each search found).

    A simulation begins at the turn that `tree.select` chooses: the environment is taken there by saying what was said
    before, the policy plays to the end, and the outcome is counted at every turn on the way. Examples are the best
    ends, pairs the best and the worst turn after the same beginning. Both are token-exact.

    Args:
        accuracy: outcome of a finished episode, best in [0, 1].
        prompts: tasks to search for.
        simulations: of each task.
        width: of N rollouts that passed a turn, ``width``·√N began there; the others followed its best continuations.
        exploration: c of the upper confidence bound.
        max_new_tokens: of an episode, whatever part of it is replayed.
        solved: least outcome of an example.
        margin: least difference in value of a pair.
        per_prompt, pairs_per_prompt: most examples and pairs of a task.
        test_fraction: share of the tasks whose pairs are held out, by a hash of the prompt.
        checkpoint_every: tasks that are searched side by side and then kept; a crash loses no more.

    Raises:
        ValueError: nothing was found to learn from.
    """
    policy = load_policy(inputs, engine)
    tasks = read_tasks(inputs, split)
    stream(out.seed, out.name, "prompts").shuffle(tasks)
    tasks = tasks[:prompts]
    chunks, found = Chunks(out, "searched", tasks), []
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
    branches = Branches(policy, environment, sampling)
    for start in range(0, len(tasks), checkpoint_every):
        end = min(start + checkpoint_every, len(tasks))
        kept = chunks.get(start, end)
        if kept is None:
            mine = out.peers.shard(tasks[start:end])
            roots, failed = search(
                mine,
                branches,
                accuracy,
                simulations=simulations,
                width=width,
                exploration=exploration,
                address=(out.seed, out.name),
            )
            limits = {"solved": solved, "margin": margin, "examples": per_prompt, "pairs": pairs_per_prompt}
            kept = out.peers.unshard(
                [_harvest(branches, *each, **limits) for each in zip(mine, roots, failed, strict=True)]
            )
            chunks.keep(start, end, kept)
        found += kept
        out.progress(end, len(tasks), solved=mean([row["solved"] for row in found]))
        out.raise_if_stopping()
    _warn(out, found)
    return _written(out, found, test_fraction)


def search(
    tasks: Sequence[Task],
    branches: Branches,
    accuracy: Any,
    *,
    simulations: int,
    width: float,
    exploration: float,
    address: tuple[int | str, ...],
) -> tuple[list[Node], list[Counter[str]]]:
    """The tree of each task after so many simulations, and how many of them failed of what.

    The searches go on side by side; none depends on which others there are.
    """
    roots = [Node() for _ in tasks]
    failed: list[Counter[str]] = [Counter() for _ in tasks]
    prompts = branches.prompts(tasks)
    for number in range(simulations):
        nodes = [select(root, width=width, exploration=exploration) for root in roots]
        open_ones = [i for i, node in enumerate(nodes) if node.ended is None]
        for node in nodes:
            if node.ended is not None:
                back_up(node, node.value)
        places = [(tasks[i], prompts[i], nodes[i], derive(*address, tasks[i].id, number)) for i in open_ones]
        played = branches.play(places)
        whole = [k for k, (rollout, _) in enumerate(played) if rollout.finish in ("stop", "length")]
        outcomes = verdicts(accuracy, [(tasks[open_ones[k]], played[k][0]) for k in whole])
        values = dict(zip(whole, outcomes, strict=True))
        for k, i in enumerate(open_ones):
            (rollout, turns), value = played[k], values.get(k)
            if value is None or isinstance(value, Score):
                nodes[i].tries += 1
                failed[i]["not scored" if value is not None else rollout.finish] += 1
            else:
                back_up(grow(nodes[i], turns, rollout), value)
    return roots, failed


def _harvest(
    branches: Branches,
    task: Task,
    root: Node,
    failed: Counter[str],
    *,
    solved: float,
    margin: float,
    examples: int,
    pairs: int,
) -> dict[str, Any]:
    """What one search gives, as JSON."""
    ends = best_ends(root, solved)
    every = [node for node in root.walk() if node.ended is not None]
    return {
        "task": task.id,
        "value": root.value,
        "solved": float(bool(ends)),
        "first": 0.0 if not every else every[0].value,
        "ends": len(every),
        "turns": sum(1 for _ in root.walk()) - 1,
        "failed": dict(failed),
        "examples": [_example(task, node).to_json() for node in ends[:examples]],
        "pairs": [_pair(branches, task, *three).to_json() for three in contrasts(root, margin)[:pairs]],
    }


def _example(task: Task, node: Node) -> Example:
    rollout = node.ended
    assert rollout is not None
    source, exact = f"search/{task.cell}", (rollout.tokens, rollout.action_mask, rollout.prompt_tokens)
    return Example(task.id, task.messages, rollout.response, source, *exact)


def _pair(branches: Branches, task: Task, node: Node, best: Node, worst: Node) -> Preference:
    """The two turns after what precedes both."""
    assert best.turn is not None and worst.turn is not None
    prompt = (*branches.prompts([task])[0].tokens, *(t for turn in node.path for t in turn.tokens))
    messages = list(task.messages)
    for turn in node.path:
        messages.append(Message("assistant", branches.text(turn.own)))
        messages += [Message(branches.speaker, text) for text in branches.answers(turn)]
    return Preference(
        task.id,
        tuple(messages),
        branches.text(best.turn.own),
        branches.text(worst.turn.own),
        task.family,
        "search",
        prompt,
        best.turn.own,
        worst.turn.own,
    )


def _warn(out: Out, found: Sequence[Mapping[str, Any]]) -> None:
    failed = sum(sum(row["failed"].values()) for row in found)
    if failed:
        kinds = sum((Counter(row["failed"]) for row in found), Counter())
        out.say(f"search: {failed} rollouts count for nothing ({', '.join(f'{n} {k}' for k, n in kinds.items())})")


def _written(out: Out, found: Sequence[Mapping[str, Any]], test_fraction: float) -> dict[str, float]:
    examples = [example for row in found for example in row["examples"]]
    pairs = [pair for row in found for pair in row["pairs"]]
    if not examples and not pairs:
        raise ValueError(
            f"{out.name}: no episode of {len(found)} tasks was solved and no two turns differ in value. Fix: easier "
            "tasks, more simulations, a policy that has learned the form (a cold start), or a smaller margin"
        )
    held_out = [derive("held-out", "preferences", pair["task_id"]) < test_fraction * 2**63 for pair in pairs]
    split: dict[bool, list[Any]] = {True: [], False: []}
    for pair, held in zip(pairs, held_out, strict=True):
        split[held].append(pair)
    if out.peers.is_main:
        write_jsonl(out.path / "examples.jsonl", examples)
        write_jsonl(out.path / "train.jsonl", split[False])
        write_jsonl(out.path / "test.jsonl", split[True])
        shown = ("task", "value", "solved", "ends", "turns", "failed")
        write_json(out.path / "search.json", [{name: row[name] for name in shown} for row in found])
    return {
        "tasks": float(len(found)),
        "examples": float(len(examples)),
        "pairs": float(len(pairs)),
        "solved": mean([row["solved"] for row in found]),
        "solved_at_first": mean([row["first"] for row in found]),
        "value": mean([row["value"] for row in found]),
        "failed": float(sum(sum(row["failed"].values()) for row in found)),
    }


def tree_search_check(
    settings: Mapping[str, Any], inputs: Mapping[str, str], processes: int, contents: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Figures that make no sense, and whether the data are known to have no such tasks."""
    usual = {"width": 2.0, "simulations": 32, "checkpoint_every": 32, "exploration": 1.0, "split": "fresh"}
    given = {**usual, **settings}
    problems = [
        f"{name}: must be at least 1 (got {given[name]}). Fix: {usual[name]} is usual"
        for name in ("width", "simulations", "checkpoint_every")
        if given[name] < 1
    ]
    if given["exploration"] < 0:
        problems.append(f"exploration: must not be negative (got {given['exploration']}). Fix: 1.0 is usual")
    if given["simulations"] <= given["width"] ** 2 and not problems:  # n <= width·√n
        problems.append(
            f"simulations: warning: all {given['simulations']} begin at the first turn, with width={given['width']}. "
            "Fix: several times the square of width"
        )
    if contents.get("data", {}).get(f"tasks/{given['split']}.jsonl") == 0:
        problems.append(f"split: the data leave no tasks of {given['split']}. Fix: split: train")
    return problems


def tree_search_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns."""
    return ["tasks", "examples", "pairs", "solved", "solved_at_first", "value", "failed"]
