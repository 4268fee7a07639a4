"""An agent's environment: typed tools, called in the form that the model knows, until it has nothing more to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from components.environments.protocol import Step
from components.environments.tools.formats import FormatName, Malformed, named
from components.environments.tools.host import Both, Here, Host, Said, listed, offered
from components.environments.tools.process import Processes
from components.types import Task

_COSTS = ("invalid", "failed", "refused", "step")


class ToolEnvironment:
    """Answers a turn's calls, in their order, with one observation each, until a turn makes none.

    Counters in ``info``: ``steps`` (turns with calls), ``tool_calls``, ``tool_invalid`` (malformed, no such tool, or
    arguments that it refuses), ``tool_malformed`` (of these), ``tool_failed`` (it raised), ``tool_refused`` (beyond a
    limit). Whatever goes wrong with
    a call is an observation that says so. A tool's process that ends fails the episode, a tool that does not answer in
    time makes it "timeout"; one that reaches ``max_turns`` ends as "length".

    A task may carry in ``meta``: ``tools``, the names of those that it offers, and whatever its toolsets begin with.

    Args:
        tools: typed functions, and toolsets (`components.environments.tools`).
        format: "hermes" (Qwen and many others) or "llama": turns of the chat template; "tags": inside the text.
        max_turns, max_calls: per episode; calls beyond are refused.
        max_parallel: calls of one turn.
        max_chars: of one result, longer ones are cut.
        seconds: of one call.
        isolate: "always" runs an episode's tools in a process of its own; "auto" does so with those from outside
            r1flow, which might hang or end their interpreter.
        memory_mib: of such a process.
        overflow, reserve: see `protocol.Environment`.
        costs: what a call that is "invalid", "failed" or "refused", and a "step", takes off its turn's reward.

    Raises:
        ValueError: settings that make no sense.
    """

    inspects = True

    def __init__(
        self,
        *,
        tools: Sequence[Any],
        format: FormatName = "hermes",
        max_turns: int = 16,
        max_calls: int = 32,
        max_parallel: int = 8,
        max_chars: int = 2000,
        seconds: float = 30.0,
        isolate: Literal["auto", "always", "never"] = "auto",
        memory_mib: int = 2048,
        overflow: Literal["stop", "shorten"] = "shorten",
        reserve: int = 64,
        costs: Mapping[str, float] | None = None,
    ) -> None:
        self.format, self.tools = named(format), tuple(tools)
        self._listed = listed(self.tools)
        problems = _none(self._listed) + _problems(max_turns, max_calls, max_parallel, max_chars, seconds, costs or {})
        if problems:
            raise ValueError(f"tool environment: {'; '.join(problems)}")
        self.max_turns, self.max_calls, self.max_parallel = max_turns, max_calls, max_parallel
        self.max_chars, self.overflow, self.reserve = max_chars, overflow, reserve
        self.costs = dict(costs or {})
        self.chat, self.stop, self.wrapper = self.format.chat, self.format.stop, self.format.wrapper
        apart = [e for e in self.tools if isolate == "always" or (isolate == "auto" and _foreign(e))]
        self._near = [entry for entry in self.tools if entry not in apart]
        self._far = Processes(apart, max_chars=max_chars, seconds=seconds, memory_mib=memory_mib) if apart else None
        self.asynchronous = bool(apart) or any(getattr(entry, "slow", False) for entry in self.tools)
        # A step's own deadline is only for what the calls' deadlines do not see.
        self.seconds = 60.0 + seconds * max_parallel

    def reset(self, task: Task | None) -> AgentEpisode:
        if self._far is None:
            return AgentEpisode(self, Here(self._near, task, self.max_chars))
        far = self._far.open(task)
        return AgentEpisode(self, Both(Here(self._near, task, self.max_chars), far) if self._near else far)

    def schemas(self, task: Task | None = None) -> list[dict[str, Any]]:
        """JSON schemas of the tools that a task offers."""
        names = offered(task)
        return [tool.schema for tool in self._listed if names is None or tool.name in names]

    def manual(self, task: Task | None = None) -> str:
        """How to call them, for a chat template that has no place for schemas."""
        return self.format.manual(self.schemas(task))

    def close(self) -> None:
        """End the processes of tools; a later episode starts them again."""
        if self._far is not None:
            self._far.close()


@dataclass
class AgentEpisode:
    """One rollout's tools and what it has used of its limits."""

    environment: ToolEnvironment
    host: Host
    turns: int = 0
    calls: int = 0

    def step(self, text: str) -> Step:
        environment = self.environment
        calls = environment.format.calls(text)
        if not calls:
            return Step(done=True)
        if self.turns == environment.max_turns:
            return Step(done=True, cut=True, info={"tool_refused": float(len(calls))})
        self.turns += 1
        said: list[tuple[str, str]] = []
        malformed = 0
        for i, call in enumerate(calls[: environment.max_parallel + 1]):
            if self.calls == environment.max_calls or i == environment.max_parallel:
                left = len(calls) - i
                said.append(("refused", f"error: no more calls; {left} not made"))
                break
            self.calls += 1
            malformed += isinstance(call, Malformed)
            answer: Said = self.host.call(call)
            said.append((answer.kind, answer.text))
        made = len([kind for kind, _ in said if kind != "refused"])
        counts = {"invalid": 0, "failed": 0, "refused": len(calls) - made}
        for kind, _ in said:
            if kind in ("invalid", "failed"):
                counts[kind] += 1
        cost = sum(environment.costs.get(kind, 0.0) * count for kind, count in (*counts.items(), ("step", 1)))
        info = {"steps": 1.0, "tool_calls": float(made), "tool_malformed": float(malformed)}
        info |= {f"tool_{k}": float(n) for k, n in counts.items()}
        return Step(tuple(text for _, text in said), info=info, reward=-cost)

    def state(self) -> dict[str, Any]:
        return self.host.state()

    def close(self) -> None:
        self.host.close()


def tool_environment_check(settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with a tool environment's settings."""
    turns, calls, parallel, chars = (
        settings.get(name, 1) for name in ("max_turns", "max_calls", "max_parallel", "max_chars")
    )
    problems = _none(settings["tools"]) if "tools" in settings else []
    return problems + _problems(
        turns, calls, parallel, chars, settings.get("seconds", 1.0), settings.get("costs") or {}
    )


def _none(tools: Sequence[Any]) -> list[str]:
    text = "tools: there are none, so that nothing can be called. Fix: name some, as conf/environment/agent.yaml does"
    return [] if tools else [f"{text}, or choose environment=none"]


def _problems(
    turns: int, calls: int, parallel: int, chars: int, seconds: float, costs: Mapping[str, float]
) -> list[str]:
    figures = {"max_turns": turns, "max_calls": calls, "max_parallel": parallel, "max_chars": chars}
    problems = [f"{name}: must be at least 1 (got {value})" for name, value in figures.items() if value < 1]
    if seconds <= 0:
        problems.append(f"seconds: must be positive (got {seconds})")
    unknown = sorted(set(costs) - set(_COSTS))
    return problems + [f"costs: no such event {name!r}. Fix: one of {', '.join(_COSTS)}" for name in unknown]


def _foreign(entry: Any) -> bool:
    entry = getattr(entry, "func", entry)
    module = getattr(entry, "__module__", None) if hasattr(entry, "__name__") else type(entry).__module__
    return not str(module).startswith("components.")
