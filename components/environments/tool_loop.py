"""One tool inside the policy's own text: ``<tool>input</tool>`` is answered by ``<result>output</result>``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from components.environments.protocol import Step
from components.types import Task


class ToolError(ValueError):
    """The tool refuses this input; its message becomes the result, and the call counts as invalid."""


class ToolLoop:
    """Answers every tool call until the policy ends its turn.

    Counters in ``info``: ``tool_calls``, ``tool_invalid`` (the tool refused the input), ``tool_refused`` (beyond
    ``max_calls``).

    Args:
        tool: input text -> output text; raises `ToolError` for input it refuses. Any other exception fails the rollout.
        max_calls: calls answered per episode; the next one ends it.
        max_chars: longer output is cut.
        call: text around a call.
        wrapper: text around a result.
    """

    def __init__(
        self,
        *,
        tool: Callable[[str], str],
        max_calls: int = 8,
        max_chars: int = 2000,
        call: tuple[str, str] = ("<tool>", "</tool>"),
        wrapper: tuple[str, str] = ("<result>", "</result>"),
    ) -> None:
        if max_calls < 1 or max_chars < 1:
            raise ValueError(f"max_calls and max_chars must be at least 1, got {max_calls} and {max_chars}")
        self.tool, self.max_calls, self.max_chars = tool, max_calls, max_chars
        self.call = (call[0], call[1])
        self.wrapper = (wrapper[0], wrapper[1])
        self.stop = (call[1],)

    def reset(self, task: Task | None) -> ToolEpisode:
        return ToolEpisode(self)


@dataclass
class ToolEpisode:
    """State of one rollout: how many calls were answered."""

    loop: ToolLoop
    calls: int = 0

    def step(self, text: str) -> Step:
        loop = self.loop
        if self.calls == loop.max_calls:
            return Step(done=True, info={"tool_refused": 1.0})
        self.calls += 1
        body, closed = text.rpartition(loop.call[1])[:2]
        _, opened, argument = body.rpartition(loop.call[0])
        try:
            if not (closed and opened):
                raise ToolError("error")
            output, invalid = loop.tool(argument), 0.0
        except ToolError as error:
            output, invalid = str(error), 1.0
        return Step(output[: loop.max_chars], info={"tool_calls": 1.0, "tool_invalid": invalid})
