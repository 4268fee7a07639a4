"""A teacher: a model behind an OpenAI-compatible endpoint. What it says is kept, and what it costs is counted."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.rewards.endpoint import Endpoint, NoReply, endpoint_check
from components.rewards.verdicts import Verdicts
from components.runtime import Out
from components.types import Message

KEPT = "teacher"  # folder below the artifacts
_PATIENCE = 4  # questions without any reply, and at least `concurrency`, after which no further one is asked


class Teacher(Endpoint):
    """`Endpoint` that also reads the reasoning some servers give apart, and the tokens they count.

    Args:
        price_in, price_out: of a million tokens of questions and of replies, in the currency that you think in.
        max_cost: nothing more is asked once that much is spent in this stage; the at most ``concurrency`` questions
            under way then are still paid for. None for no limit.
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
    problems = endpoint_check(settings)
    for name in ("price_in", "price_out", "max_cost"):
        if (settings.get(name) or 0) < 0:
            problems.append(f"{name}: must not be negative (got {settings[name]}). Fix: 0 if it costs nothing")
    return problems


@dataclass
class Lessons:
    """Questions to a teacher, each asked once: replies are kept in ``<artifacts>/teacher``, for later stages too.

    Attributes:
        spent: what was asked for here: requests, tokens in and out; cached: replies that were there already.
        failures: why questions have no reply. unasked: questions left out, since the money is spent or nobody answers.
    """

    teacher: Teacher
    out: Out
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("asked", "tokens_in", "tokens_out"), 0.0))
    cached: int = 0
    failures: list[str] = field(default_factory=list)
    unasked: int = 0

    def __post_init__(self) -> None:
        self._kept = Verdicts()
        self._kept.keep_in(folder_of(self.out), self.out.peers.rank)
        self._lock = threading.Lock()

    def ask(self, conversations: Sequence[Sequence[Message]], samples: int) -> list[list[dict[str, Any]]]:
        """Replies to each conversation; fewer than ``samples`` where some failed or the money is spent."""
        keys = [[self._key(c, i) for i in range(samples)] for c in conversations]
        missing = [
            (key, c) for c, own in zip(conversations, keys, strict=True) for key in own if not self._kept.get(key)
        ]
        self.cached += len(conversations) * samples - len(missing)
        with ThreadPoolExecutor(self.teacher.concurrency) as pool:
            list(pool.map(self._ask, missing))
        return [[json.loads(text) for key in own if (text := self._kept.get(key))] for own in keys]

    def bill(self) -> dict[str, float]:
        """What this stage asked for, over all ranks."""
        total = {name: self.out.peers.sum(value) for name, value in self.spent.items()}
        return {**total, "cached": self.out.peers.sum(self.cached), "cost": self.teacher.cost(total)}

    def raise_if_silent(self) -> None:
        """To be called by all ranks.

        Raises:
            ValueError: many questions, or all there are, have no reply; with the first one's reason.
        """
        failed = [text for rank in self.out.peers.gather(self.failures) for text in rank]
        replies = self.out.peers.sum(self.spent["asked"])
        if replies or not failed or (self.out.peers.sum(self.cached) and len(failed) < self._patience):
            return
        remedy = (
            ""
            if " Fix: " in failed[0]
            else (
                f". Fix: start the server, or check {self.out.name}.teacher.url and teacher.model: it is asked at "
                f"{self.teacher.url}/chat/completions for {self.teacher.request['model']!r}"
            )
        )
        raise ValueError(
            f"{self.out.name}: the teacher answered none of {len(failed)} questions, the first: {failed[0]}{remedy}"
        )

    def _ask(self, item: tuple[str, Sequence[Message]]) -> None:
        key, conversation = item
        with self._lock:
            if self._is_broke() or (not self.spent["asked"] and len(self.failures) >= self._patience):
                self.unasked += 1
                return
        [reply] = self.teacher([conversation])
        with self._lock:
            if isinstance(reply, NoReply):
                self.failures.append(str(reply))
                return
            self._kept.put(key, reply, model=self.teacher.request["model"])
            said = json.loads(reply)
            self.spent["asked"] += 1
            for name in ("tokens_in", "tokens_out"):
                self.spent[name] += said[name]

    @property
    def _patience(self) -> int:
        return max(_PATIENCE, self.teacher.concurrency)

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
