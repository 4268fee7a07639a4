"""What several stages need: reading tasks, loading a policy, sampling with all peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.artifacts import read_jsonl
from components.models.adapt import load_trainable
from components.models.chat import render, render_all, shows_tools
from components.models.decoder import make_decoder
from components.models.load import load_model
from components.models.lora import Lora
from components.rng import derive
from components.rollout.collect import collect
from components.rollout.sampling import Sampling
from components.runtime import Inputs, Out
from components.stages.drawn import Drawn
from components.types import Message, Rollout, Task

CHUNK = 256  # tasks that a sampling stage draws before it keeps them


@dataclass
class Policy:
    """A model that can be trained, its tokenizer, its forward passes, and the engine that samples from it."""

    model: Any
    tokenizer: Any
    decoder: Any
    engine: Any

    def prompts(self, tasks: Sequence[Task], environment: Any) -> list[Any]:
        """Rendered prompts, with the tools that a chat environment offers."""
        if getattr(environment, "chat", False):
            return [with_tools(self.tokenizer, task, environment) for task in tasks]
        return render_all(self.tokenizer, [task.messages for task in tasks])

    def sample(
        self,
        tasks: Sequence[Task],
        n: int,
        sampling: Sampling,
        environment: Any,
        address: tuple[int | str, ...],
        version: int = 0,
    ) -> list[tuple[Rollout, ...]]:
        """n rollouts of each task; the i-th of a task is a function of (weights, address, task id, i) alone."""
        given = iter(self.prompts(tasks, environment))
        return collect(
            self.engine,
            self.tokenizer,
            lambda _, messages: next(given),
            tasks,
            n,
            sampling,
            environment,
            address=address,
            policy_version=version,
        )


def with_tools(tokenizer: Any, task: Task, environment: Any) -> Any:
    """A task's prompt with the tools that it offers.

    They stand where the chat template puts them, else in a system message, and before the first message of a template
    that takes none.
    """
    schemas = environment.schemas(task)
    if not schemas:
        return render(tokenizer, task.messages)
    if shows_tools(tokenizer):
        return render(tokenizer, task.messages, schemas)
    first, *rest = task.messages
    manual = environment.manual(task)
    if first.role == "system":
        return render(tokenizer, [Message("system", f"{first.content}\n\n{manual}"), *rest])
    try:
        return render(tokenizer, [Message("system", manual), first, *rest])
    except ValueError:
        return render(tokenizer, [Message(first.role, f"{manual}\n\n{first.content}"), *rest])


def load_policy(inputs: Inputs, engine: Callable[..., Any], source: str = "model") -> Policy:
    """The model of an input artifact, with an engine on it."""
    return make_policy(*load_model(inputs[source].path / "model"), engine)


def load_trained_policy(
    inputs: Inputs, engine: Callable[..., Any], out: Out, *, lora: Lora | None, recompute: bool
) -> Policy:
    """`load_policy` of what the stage is going to train; with ``lora`` these are adapters."""
    seed = derive(out.seed, out.name)
    model, tokenizer = load_trainable(inputs["model"].path, lora, seed, recompute=recompute, say=out.say)
    return make_policy(model, tokenizer, engine)


def make_policy(model: Any, tokenizer: Any, engine: Callable[..., Any]) -> Policy:
    """A model with its forward passes and an engine."""
    decoder = make_decoder(model)
    return Policy(model, tokenizer, decoder, engine(decoder, tokenizer))


def read_tasks(inputs: Inputs, split: str, source: str = "data") -> list[Task]:
    """Tasks of one split of the curated data."""
    return [Task.from_json(row) for row in read_jsonl(inputs[source].path / "tasks" / f"{split}.jsonl")]


def sample_all(
    policy: Policy,
    tasks: Sequence[Task],
    n: int,
    sampling: Sampling,
    environment: Any,
    out: Out,
    label: str,
    chunk: int = CHUNK,
    address: tuple[int | str, ...] | None = None,
) -> list[tuple[Rollout, ...]]:
    """n rollouts of every task, the work shared by all peers, in the order of ``tasks`` on every rank.

    What was drawn before the stage was stopped is kept, ``chunk`` tasks at a time; a stage that samples twice needs two
    labels.

    Args:
        chunk: tasks drawn at once, and at most lost by a crash.

    Raises:
        Interrupted: a stop was asked for; what is drawn is kept.
        OSError: samples could not be kept, the disk is full or broken.
    """
    drawn = Drawn(out, label, tasks, n)
    rollouts: list[tuple[Rollout, ...]] = []
    for start in range(0, len(tasks), chunk):
        end = min(start + chunk, len(tasks))
        groups = drawn.get(start, end)
        if groups is None:
            mine = out.peers.shard(tasks[start:end])
            own = policy.sample(mine, n, sampling, environment, address or (out.seed, out.name, label))
            groups = out.peers.unshard(own)
            drawn.keep(start, end, groups)
        rollouts += groups
        out.progress(end, len(tasks))
        out.raise_if_stopping()
    if drawn.found:
        out.say(f"{drawn.found} of {len(tasks)} prompts had been sampled before ({label})")
    return rollouts


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0.0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def by_cell(tasks: Sequence[Task]) -> Mapping[str, list[int]]:
    """Positions of the tasks of each cell, cells in order."""
    cells: dict[str, list[int]] = {}
    for i, task in enumerate(tasks):
        cells.setdefault(task.cell, []).append(i)
    return dict(sorted(cells.items()))
