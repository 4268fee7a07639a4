"""The vocabulary everything speaks: small frozen records, standard library only.

Task → Rollout → Score → Group      (data of one RL step)
Example                             (one supervised sample)
Preference                          (one chosen/rejected pair)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Finish = Literal["stop", "length", "timeout", "failed"]
Outcome = Literal["scored", "abstained", "failed"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt with what is needed to verify an answer to it.

    Attributes:
        id: unique within the data set; matches ``^[A-Za-z0-9._-]{1,80}$``.
        answer: gold answer, or None where only a rule or a model can judge.
        verifier: name of the check that applies ("exact", "math", "unsafe", "benign", "list", "reasoning_gym", …).
        family: task family, the first axis of curriculum and evaluation ("chain", "gcd", …).
        level: difficulty inside the family, 0 is easiest.
        kind: "reasoning" or "general"; routes rewards.
        meta: whatever the verifier needs (JSON values only).
    """

    id: str
    messages: tuple[Message, ...]
    answer: str | None
    verifier: str
    family: str = "default"
    level: int = 0
    kind: str = "reasoning"
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """Text of the last user turn."""
        return self.messages[-1].content

    @property
    def cell(self) -> str:
        """Curriculum and evaluation cell, ``family/level``."""
        return f"{self.family}/{self.level}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Task:
        return cls(**{**row, "messages": tuple(Message(**m) for m in row["messages"])})


@dataclass(frozen=True, slots=True)
class Rollout:
    """What the policy did on one task, token-exact: nothing is ever decoded and tokenised again.

    Attributes:
        prompt_tokens: ids of the rendered prompt, including anything the template pre-fills.
        tokens: ids after the prompt, the policy's own and the environment's, terminator included.
        action_mask: True where the policy produced the token; same length as ``tokens``.
        logp_behavior: log-probability (nats) under the sampling policy; 0.0 where ``action_mask`` is False.
        response: template prefill + decoded ``tokens`` without the terminator ("<think>…</answer>").
        finish: "stop" (the policy ended), "length" (cut at the token limit), "timeout" (the environment did not answer
            in time), "failed" (the environment broke).
        policy_version: optimiser step of the weights that sampled it.
        info: counters from the environment (tool calls, invalid calls, …).
        turn_rewards: the environment's rewards of the policy's turns, in their order.
        state: what the episode left behind (JSON values), for rewards that judge it.
    """

    task_id: str
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    action_mask: tuple[bool, ...]
    logp_behavior: tuple[float, ...]
    response: str
    finish: Finish
    policy_version: int = 0
    info: Mapping[str, float] = field(default_factory=dict)
    turn_rewards: tuple[float, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """Reward of one rollout.

    ``total`` is what RL uses; ``terms`` are the raw, unweighted values by name, ``weighted`` what each of them adds to
    the total. An abstained or failed score has ``total = 0.0`` and must be left out of the group's statistics and of
    the loss; ``reason`` says why.
    """

    total: float
    terms: Mapping[str, float] = field(default_factory=dict)
    outcome: Outcome = "scored"
    reason: str = ""
    weighted: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one task in one step, with their scores (same order)."""

    task: Task
    rollouts: tuple[Rollout, ...]
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """One supervised sample: the model learns ``response`` after ``messages``.

    ``response`` is the full text from ``<think>`` on. ``tokens``/``mask`` are set when it came from a rollout of the
    same tokenizer, so that it is trained on token-exactly; ``prompt_tokens`` as well, where the prompt is not what the
    messages alone are rendered to (tools, earlier turns of an episode).
    """

    task_id: str
    messages: tuple[Message, ...]
    response: str
    source: str = ""
    tokens: tuple[int, ...] | None = None
    mask: tuple[bool, ...] | None = None
    prompt_tokens: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return _without_unset(asdict(self), "prompt_tokens")

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Example:
        tokens, mask, prompt = row.get("tokens"), row.get("mask"), row.get("prompt_tokens")
        return cls(
            task_id=row["task_id"],
            messages=tuple(Message(**m) for m in row["messages"]),
            response=row["response"],
            source=row.get("source", ""),
            tokens=None if tokens is None else tuple(tokens),
            mask=None if mask is None else tuple(bool(m) for m in mask),
            prompt_tokens=None if prompt is None else tuple(prompt),
        )


@dataclass(frozen=True, slots=True)
class Preference:
    """A pair of responses to one prompt, the first preferred. ``defect`` names what is wrong with the second.

    ``prompt_tokens``, ``chosen_tokens`` and ``rejected_tokens`` are set when both came from rollouts of the same
    tokenizer; the policy wrote all of the latter.
    """

    task_id: str
    messages: tuple[Message, ...]
    chosen: str
    rejected: str
    family: str = "default"
    defect: str = ""
    prompt_tokens: tuple[int, ...] | None = None
    chosen_tokens: tuple[int, ...] | None = None
    rejected_tokens: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return _without_unset(asdict(self), "prompt_tokens", "chosen_tokens", "rejected_tokens")

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Preference:
        tokens = {name: tuple(ids) for name, ids in row.items() if name.endswith("_tokens") and ids is not None}
        return cls(**{**row, **tokens, "messages": tuple(Message(**m) for m in row["messages"])})


def _without_unset(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None or name not in names}
