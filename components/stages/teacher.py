"""A teacher: a model behind an OpenAI-compatible endpoint. What it says is kept, and what it costs is counted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.rewards.endpoint import Endpoint, NoReply
from components.rewards.verdicts import Verdicts
from components.runtime import Out
from components.types import Message

KEPT = "teacher"  # folder below the artifacts


class Teacher(Endpoint):
    """`Endpoint` that also reads the reasoning some servers give apart, and the tokens they count.

    Args:
        price_in, price_out: of a million tokens of questions and of replies, in the currency that you think in.
        max_cost: nothing more is asked once that much is spent in this stage; None for no limit.
        others: as for `Endpoint`.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        key_env: str = "OPENAI_API_KEY",
        temperature: float = 0.7,
        max_tokens: int = 2048,
        options: Mapping[str, Any] | None = None,
        seconds: float = 600.0,
        attempt_seconds: float = 300.0,
        retries: int = 4,
        backoff_s: float = 1.0,
        concurrency: int = 8,
        price_in: float = 0.0,
        price_out: float = 0.0,
        max_cost: float | None = None,
    ) -> None:
        super().__init__(
            url=url,
            model=model,
            key_env=key_env,
            temperature=temperature,
            max_tokens=max_tokens,
            options=options,
            seconds=seconds,
            attempt_seconds=attempt_seconds,
            retries=retries,
            backoff_s=backoff_s,
            concurrency=concurrency,
        )
        self.price_in, self.price_out, self.max_cost = price_in, price_out, max_cost

    def taken(self, body: bytes) -> str:
        """Text, reasoning, tokens and why it ended, as JSON."""
        text = super().taken(body)
        answer = json.loads(body)
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        thought = choice["message"].get("reasoning_content") or choice["message"].get("reasoning") or ""
        found = {
            "text": text,
            "thought": thought if isinstance(thought, str) else "",
            "finish": str(choice.get("finish_reason") or "stop"),
            "tokens_in": int(usage.get("prompt_tokens") or 0),
            "tokens_out": int(usage.get("completion_tokens") or 0),
        }
        return json.dumps(found, ensure_ascii=False)

    def cost(self, spent: Mapping[str, float]) -> float:
        """Price of ``tokens_in`` and ``tokens_out``."""
        return (spent["tokens_in"] * self.price_in + spent["tokens_out"] * self.price_out) / 1e6


def teacher_check(settings: Mapping[str, Any]) -> list[str]:
    """What preflight can say of the settings."""
    problems = []
    if not str(settings["url"]).startswith(("http://", "https://")):
        problems.append(f"url: is no address (got {settings['url']!r}). Fix: write http://host:port/v1")
    for name in ("price_in", "price_out", "max_cost"):
        if (settings.get(name) or 0) < 0:
            problems.append(f"{name}: must not be negative (got {settings[name]}). Fix: 0 if it costs nothing")
    return problems


@dataclass
class Lessons:
    """Questions to a teacher, each asked once: replies are kept in ``<artifacts>/teacher``, for later stages too.

    Attributes:
        spent: what was asked for here: requests, tokens in and out; cached: replies that were there already.
    """

    teacher: Teacher
    out: Out
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("asked", "tokens_in", "tokens_out"), 0.0))
    cached: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._kept = Verdicts()
        self._kept.keep_in(folder_of(self.out), self.out.peers.rank)

    def ask(self, conversations: Sequence[Sequence[Message]], samples: int) -> list[list[dict[str, Any]]]:
        """Replies to each conversation; fewer than ``samples`` where some failed or the money is spent."""
        keys = [[self._key(c, i) for i in range(samples)] for c in conversations]
        missing = [
            (key, c) for c, own in zip(conversations, keys, strict=True) for key in own if not self._kept.get(key)
        ]
        self.cached += len(conversations) * samples - len(missing)
        if self._is_broke():
            missing = []
        for (key, _), reply in zip(missing, self.teacher([c for _, c in missing]), strict=True):
            if isinstance(reply, NoReply):
                self.failures.append(str(reply))
                continue
            self._kept.put(key, reply, model=self.teacher.request["model"])
            said = json.loads(reply)
            self.spent["asked"] += 1
            for name in ("tokens_in", "tokens_out"):
                self.spent[name] += said[name]
        return [[json.loads(text) for key in own if (text := self._kept.get(key))] for own in keys]

    def bill(self) -> dict[str, float]:
        """What this stage asked for, over all ranks."""
        total = {name: self.out.peers.sum(value) for name, value in self.spent.items()}
        return {**total, "cached": self.out.peers.sum(self.cached), "cost": self.teacher.cost(total)}

    def _is_broke(self) -> bool:
        limit = self.teacher.max_cost
        return limit is not None and self.teacher.cost(self.spent) >= limit / self.out.peers.world_size

    def _key(self, conversation: Sequence[Message], sample: int) -> str:
        asked = [self.teacher.identity, [[m.role, m.content] for m in conversation], sample]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def folder_of(out: Out) -> Path:
    """Where replies are kept: beside the store of stages, so that a changed setting asks nothing again; else in the
    stage's own checkpoints."""
    store = out.path.parent.parent
    return store.parent / KEPT if store.name == "cache" else out.checkpoints / KEPT
