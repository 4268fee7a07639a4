"""Environments of the package verifiers (0.1: ``load_environment``, `MultiTurnEnv` and what is made of it).

There the environment runs the rollout and asks a client for each of the model's messages. Here the policy does: the
rollout runs beside it, and its client waits for the turn that the policy writes.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from components.environments.adapters.text import spoken
from components.environments.protocol import Step
from components.environments.tools.formats import Call, FormatName, Malformed, named
from components.rng import derive
from components.types import Message, Task

_REMEDY = "Fix: pip install 'verifiers>=0.1.10,<0.2', in the environment server's Python if it needs other packages"


class VerifiersEnvironment:
    """Episodes of ``verifiers.load_environment(name, **arguments)``.

    A task's ``meta["verifiers"]`` is a row of the environment's data set; `tasks` makes such tasks. Tool results stand
    in tools' turns, other messages in a user's. The final state has ``reward`` and ``metrics`` as the environment's
    rubric gives them, of an episode that was cut off too, and ``stop``, why it ended.

    Args:
        name: of an installed environment; a module with ``load_environment``.
        arguments: of its ``load_environment``.
        format: how the policy writes calls, if the environment has tools.
        speaker: whose turns its messages are; "auto": tools' if it has tools.
        seconds: of a turn, and of the scoring.
        overflow, reserve: see `protocol.Environment`.

    Raises:
        ImportError: when first used: verifiers is missing, or one that has no `load_environment`.
    """

    chat, asynchronous, inspects, foreign = True, True, True, True
    stop: tuple[str, ...] = ()
    wrapper = ("", "")

    def __init__(
        self,
        *,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        format: FormatName = "hermes",
        speaker: Literal["auto", "tool", "user"] = "auto",
        seconds: float = 60.0,
        overflow: Literal["stop", "shorten"] = "shorten",
        reserve: int = 64,
    ) -> None:
        if seconds <= 0 or format == "tags":
            raise ValueError(f"verifiers: seconds must be positive and format hermes or llama, got {seconds}, {format}")
        self.name, self.arguments, self.format = name, dict(arguments or {}), named(format)
        self._speaker, self.seconds, self.overflow, self.reserve = speaker, seconds, overflow, reserve
        self._loop: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._lock = threading.Lock()

    @property
    def speaker(self) -> str:
        return self._speaker if self._speaker != "auto" else "tool" if self.schemas() else "user"

    @cached_property
    def theirs(self) -> Any:
        """The environment of the package's."""
        try:
            package = _package()
            load_environment = package.load_environment
        except (ImportError, AttributeError) as error:
            raise ImportError(f"environment=verifiers: {error}. {_REMEDY}") from error
        return load_environment(self.name, **self.arguments)

    def reset(self, task: Task | None) -> VerifiersEpisode:
        return VerifiersEpisode(self, task)

    def schemas(self, task: Task | None = None) -> list[dict[str, Any]]:
        tools = [_as_dict(tool) for tool in self.theirs.tool_defs or ()]
        return [{"type": "function", "function": {k: v for k, v in t.items() if k != "strict"}} for t in tools]

    def manual(self, task: Task | None = None) -> str:
        return self.format.manual(self.schemas(task))

    def tasks(self, counts: Mapping[str, int], *, held_out: Sequence[str], seed: int) -> dict[str, list[Task]]:
        """Rows of its data set, each in one split; those held out are drawn the same for every seed, and first."""
        rows = [dict(row) for row in self.theirs.get_dataset()]
        made: dict[str, list[Task]] = {}
        for split in sorted(counts, key=lambda name: name not in held_out):
            address = ("held-out",) if split in held_out else (seed,)
            rows.sort(key=lambda row: derive("verifiers", *address, json.dumps(row, sort_keys=True, default=str)))
            taken, rows = rows[: counts[split]], rows[counts[split] :]
            made[split] = [self._task(row) for row in taken]
        return made

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of this process, in a thread of its own."""
        with self._lock:
            if self._loop is None or self._loop[0] != os.getpid():
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, daemon=True).start()
                self._loop = (os.getpid(), loop)
            return self._loop[1]

    def _task(self, row: dict[str, Any]) -> Task:
        plain = json.loads(json.dumps(row, default=str))
        messages = tuple(Message(m["role"], _text(m)) for m in map(_as_dict, plain["prompt"]))
        number = derive("verifiers", self.name, json.dumps(plain, sort_keys=True))
        family = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.name)[:40]
        answer = plain.get("answer")
        meta = {"verifiers": plain}
        return Task(f"verifiers-{number}", messages, str(answer) if answer else None, "environment", family, meta=meta)


class VerifiersEpisode:
    """One rollout of theirs, which waits for the policy's turns."""

    def __init__(self, environment: VerifiersEnvironment, task: Task | None) -> None:
        row = {} if task is None else task.meta.get("verifiers")
        if not row:
            raise ValueError("the task has no meta.verifiers. Fix: data=environment makes tasks of its data set")
        self._of, self._length = environment, 0
        self._heard: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._turn: asyncio.Future[Any] | None = None
        self._over: Mapping[str, Any] | None = None
        self._loop = environment.loop()
        self._work = asyncio.run_coroutine_threadsafe(self._run(row), self._loop)
        self._listen()

    def step(self, text: str) -> Step:
        calls = self._of.format.calls(text) if self._of.schemas() else []
        bad = [call.reason for call in calls if isinstance(call, Malformed)]
        counts = {"steps": 1.0, "tool_calls": float(len(calls)), "tool_malformed": float(len(bad))}
        known = {schema["function"]["name"] for schema in self._of.schemas()} if calls else set()
        unknown = [call for call in calls if isinstance(call, Call) and call.name not in known]
        counts["tool_invalid"] = float(len(bad) + len(unknown))
        if self._over is not None:
            return Step(done=True)
        if bad:
            return Step(f"error: {bad[0]}", info=counts)
        self._say(_answer(spoken(text), [call for call in calls if isinstance(call, Call)], self._length))
        said = self._listen()
        return Step(None if said is None else tuple(said), done=said is None, info=counts)

    def state(self) -> dict[str, Any]:
        if self._over is None:  # cut off: their rollout ends as one whose prompt got too long, and is scored
            self._loop.call_soon_threadsafe(self._fail, _package().OverlongPromptError())
            while self._over is None:
                self._listen()
        reward, metrics = self._over.get("reward"), self._over.get("metrics") or {}
        return {
            "reward": None if reward is None else float(reward),
            "metrics": {str(name): float(value) for name, value in metrics.items()},
            "stop": str(self._over.get("stop_condition") or ""),
        }

    def close(self) -> None:
        self._work.cancel()

    async def _run(self, row: Mapping[str, Any]) -> None:
        theirs = self._of.theirs
        try:
            given = {"example_id": 0, **row}
            state = await theirs.rollout(given, _client(self), "policy", {})
            if (error := state.get("error")) is not None:
                raise error
            await theirs.rubric.score_rollout(state)
            self._heard.put(("over", state))
        except BaseException as error:
            self._heard.put(("raised", error))

    async def asked(self, prompt: Sequence[Any]) -> Any:
        """Their client's part: tell the policy what is new, and wait for its turn."""
        self._turn = self._loop.create_future()
        self._heard.put(("asked", list(prompt)))
        return await self._turn

    def _listen(self) -> list[str] | None:
        """What their environment says next; None: it is over."""
        try:
            kind, told = self._heard.get(timeout=self._of.seconds)
        except queue.Empty:
            raise TimeoutError(f"environment {self._of.name} did not answer within {self._of.seconds:g} s") from None
        if kind == "raised":
            raise told
        if kind == "over":
            self._over = told
            return None
        new = [_as_dict(message) for message in told[self._length :]]
        self._length = len(told) + 1  # and the policy's own turn
        return [_text(message) for message in new]

    def _say(self, message: Any) -> None:
        self._loop.call_soon_threadsafe(self._answered, message)

    def _answered(self, message: Any) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(message)

    def _fail(self, error: BaseException) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_exception(error)


def _client(episode: VerifiersEpisode) -> Any:
    class Policy(_package().Client):
        """The policy as one of their models: what is asked goes to the episode."""

        def __init__(self) -> None:
            super().__init__(None)

        async def get_response(self, prompt: Any, *_: Any, **__: Any) -> Any:
            return await episode.asked(prompt)

        async def close(self) -> None: ...

        def setup_client(self, config: Any) -> Any: ...
        async def to_native_tool(self, tool: Any) -> Any: ...
        async def to_native_prompt(self, messages: Any) -> Any: ...
        async def get_native_response(self, *_: Any, **__: Any) -> Any: ...
        async def raise_from_native_response(self, response: Any) -> None: ...
        async def from_native_response(self, response: Any) -> Any: ...

    return Policy()


def _answer(text: str, calls: Sequence[Call], number: int) -> Any:
    """The policy's turn as a model's response."""
    types = _package(".types")
    made = [
        types.ToolCall(id=f"call-{number}-{i}", name=call.name, arguments=json.dumps(call.arguments))
        for i, call in enumerate(calls)
    ]
    message = types.ResponseMessage(
        role="assistant",
        content=text,
        tool_calls=made or None,
        finish_reason="tool_calls" if made else "stop",
        is_truncated=False,
    )
    return types.Response(id=f"turn-{number}", created=int(time.time()), model="policy", usage=None, message=message)


def _package(part: str = "") -> Any:
    """The package, which is optional and heavy, or a part of it."""
    return importlib.import_module(f"verifiers{part}")


def _as_dict(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else value.model_dump()


def _text(message: Mapping[str, Any]) -> str:
    """A message's text; parts that are no text are left out."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in map(_as_dict, content) if part.get("type") == "text")


def verifiers_environment_check(settings: Mapping[str, Any]) -> list[str]:
    """Whether the package is there."""
    from importlib.util import find_spec  # here, so that this function needs nothing of its module

    if find_spec("verifiers") is None:
        return ["needs the package verifiers. Fix: pip install 'verifiers>=0.1.10,<0.2'"]
    return []
