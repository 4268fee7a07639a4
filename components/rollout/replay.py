"""An environment whose episodes begin in the middle: what was said there before is said again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from components.types import Task

SAID = "replayed turns"  # in a task's meta: (text, observation) of the turns before


class ReplayDiffers(RuntimeError):
    """The environment answered a turn otherwise than the first time: it is not repeatable."""


class Replayed:
    """`Environment` that takes an episode to where ``task.meta[SAID]`` leads, then lets the policy go on.

    The final state has what the environment left as ``left``, and as ``said`` what it was told since, with its answers.
    """

    inspects = True

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._environment, name)

    def reset(self, task: Task) -> ReplayedEpisode:
        """Raises ReplayDiffers."""
        meta = dict(task.meta)
        before = meta.pop(SAID, ())
        episode = self._environment.reset(replace(task, meta=meta))
        for text, observation in before:
            step = episode.step(text)
            if step.done or _plain(step.observation) != _plain(observation):
                told = f"{_plain(step.observation)!r:.200} instead of {_plain(observation)!r:.200}"
                raise ReplayDiffers(f"task {task.id}: to {text!r:.80} it answered {told}")
        return ReplayedEpisode(episode, bool(getattr(self._environment, "inspects", False)))


@dataclass
class ReplayedEpisode:
    episode: Any
    inspects: bool
    said: list[tuple[str, Any, Mapping[str, float], float]] = field(default_factory=list)

    def step(self, text: str) -> Any:
        step = self.episode.step(text)
        self.said.append((text, _plain(step.observation), dict(step.info), step.reward))
        return step

    def state(self) -> dict[str, Any]:
        return {"left": dict(self.episode.state()) if self.inspects else {}, "said": self.said}

    def close(self) -> None:
        if hasattr(self.episode, "close"):
            self.episode.close()


def _plain(observation: Any) -> Any:
    return list(observation) if isinstance(observation, tuple) else observation
