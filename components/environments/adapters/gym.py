"""Gymnasium environments whose observations and actions are text, or have names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from components.environments.adapters.text import spoken, tagged
from components.environments.protocol import Step
from components.rng import derive
from components.types import Message, Task

_COLOUR = re.compile(r"\x1b\[([0-9;]{0,20})m")
_MOST_SEEDS = 2**31
_MOST_TRIES = 20  # seeds looked at for each task that is wanted


class GymEnvironment:
    """Episodes of ``gymnasium.make(name, **arguments)``, each an environment of its own, played in a user's turns.

    A task's ``meta["seed"]`` (else one from its id) and ``meta["options"]`` go to ``reset``; its last message shows the
    first observation. Rewards are those of the turns and, summed, the final state's ``reward``. ``truncated`` ends an
    episode as "length", ``terminated`` as "stop". An action that cannot be read is answered and counted
    (``tool_invalid``); what the environment itself raises fails the episode.

    Args:
        name: id, with a module before a colon where one registers it: "my_games:Maze-v0".
        instruction: text before the first observation of the tasks that are made here.
        actions: names of the actions of a discrete space, from 0; None where actions are text.
        tag: the action stands in ``<tag>…</tag>``; None: it is the whole turn.
        observe: "observation", or "render" for what ``render()`` gives (``arguments: {render_mode: ansi}``); what
            is coloured there stands in brackets.
        max_turns: an episode that reaches them ends as "length".
        max_chars: of an observation, longer ones are cut.
        seconds: of a turn.
        overflow, reserve: see `protocol.Environment`.

    Raises:
        ValueError: settings that make no sense. ImportError: gymnasium is missing.
    """

    chat, asynchronous, inspects, foreign = True, True, True, True
    speaker = "user"
    stop: tuple[str, ...] = ()
    wrapper = ("", "")

    def __init__(
        self,
        *,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        instruction: str = "",
        actions: Sequence[str] | None = None,
        tag: str | None = None,
        observe: Literal["observation", "render"] = "observation",
        max_turns: int = 32,
        max_chars: int = 4000,
        seconds: float = 30.0,
        overflow: Literal["stop", "shorten"] = "shorten",
        reserve: int = 64,
    ) -> None:
        if max_turns < 1 or max_chars < 1 or seconds <= 0:
            raise ValueError(f"gym: max_turns, max_chars and seconds must be positive, got {max_turns}, {max_chars}, …")
        self.name, self.arguments, self.instruction = name, dict(arguments or {}), instruction
        self.actions, self.tag, self.observe = None if actions is None else list(actions), tag, observe
        self.max_turns, self.max_chars, self.seconds = max_turns, max_chars, seconds
        self.overflow, self.reserve = overflow, reserve

    def reset(self, task: Task | None) -> GymEpisode:
        return GymEpisode(self, task)

    def schemas(self, task: Task | None = None) -> list[dict[str, Any]]:
        return []

    def manual(self, task: Task | None = None) -> str:
        return ""

    def tasks(self, counts: Mapping[str, int], *, held_out: Sequence[str], seed: int) -> dict[str, list[Task]]:
        """So many tasks of each split, with first observations that differ."""
        taken: set[str] = set()
        made: dict[str, list[Task]] = {}
        for split in sorted(counts, key=lambda name: name not in held_out):
            made[split] = []
            for i in range(_MOST_TRIES * counts[split]):
                if len(made[split]) == counts[split]:
                    break
                address = ("held-out",) if split in held_out else (seed,)
                number = derive("gym", self.name, *address, split, i) % _MOST_SEEDS
                task = Task(f"gym-{number}", (), None, "environment", family=_family(self.name), meta={"seed": number})
                episode = GymEpisode(self, task)
                episode.close()
                if episode.first in taken:
                    continue
                taken.add(episode.first)
                text = f"{self.instruction}\n\n{episode.first}".strip()
                made[split].append(Task(**{**_fields(task), "messages": (Message("user", text),)}))
        return made

    def made(self) -> Any:
        """A new environment of the library's."""
        import gymnasium  # optional

        return gymnasium.make(self.name, disable_env_checker=True, **self.arguments)

    def shown(self, environment: Any, observation: Any) -> str:
        text = environment.render() if self.observe == "render" else observation
        text = _marked(text) if isinstance(text, str) else json.dumps(_plain(text), ensure_ascii=False)
        return text if len(text) <= self.max_chars else text[: self.max_chars - 1] + "…"

    def action(self, text: str) -> Any:
        """What the policy chose, as the environment takes it. Raises ValueError, with what to tell the policy."""
        said = spoken(text)
        if self.tag is not None:
            inner = tagged(said, self.tag)
            if inner is None:
                raise ValueError(f"error: no action. Write <{self.tag}>…</{self.tag}>")
            said = inner
        if self.actions is None:
            return said
        if said.lower() not in (names := [name.lower() for name in self.actions]):
            raise ValueError(f"error: no action {said[:80]!r}. One of: {', '.join(self.actions)}")
        return names.index(said.lower())


class GymEpisode:
    """One game. ``first``: what it shows at the beginning."""

    def __init__(self, environment: GymEnvironment, task: Task | None) -> None:
        self._of, self._game = environment, environment.made()
        meta: Mapping[str, Any] = {} if task is None else task.meta
        seed = meta.get("seed", derive("gym", "" if task is None else task.id) % _MOST_SEEDS)
        observation, info = self._game.reset(seed=int(seed), options=meta.get("options"))
        self.first = environment.shown(self._game, observation)
        self._info, self._total, self._turns = info, 0.0, 0
        self._ended = {"terminated": False, "truncated": False}

    def step(self, text: str) -> Step:
        if self._turns == self._of.max_turns:
            return Step(done=True, cut=True)
        self._turns += 1
        try:
            action = self._of.action(text)
        except ValueError as error:
            return Step(str(error), info={"steps": 1.0, "tool_calls": 1.0, "tool_invalid": 1.0})
        observation, reward, terminated, truncated, self._info = self._game.step(action)
        self._total += float(reward)
        self._ended = {"terminated": bool(terminated), "truncated": bool(truncated)}
        done = bool(terminated or truncated)
        info = {"steps": 1.0, "tool_calls": 1.0, "tool_invalid": 0.0}
        shown = None if done else self._of.shown(self._game, observation)
        return Step(shown, done, bool(truncated and not terminated), info, float(reward))

    def state(self) -> dict[str, Any]:
        return {"reward": self._total, "turns": self._turns, **self._ended, "info": _plain(self._info)}

    def close(self) -> None:
        self._game.close()


def _fields(task: Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in Task.__slots__}


def _family(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name.rpartition(":")[2])[:40] or "gym"


def _marked(text: str) -> str:
    """Text for a terminal with what it colours in brackets."""
    return _COLOUR.sub(lambda found: "]" if found[1] in ("", "0") else "[", text)


def _plain(value: Any) -> Any:
    """As JSON: arrays as lists, numbers as numbers, what is neither as text."""
    if isinstance(value, str | bool | int | float) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return [_plain(item) for item in value] if isinstance(value, list | tuple | set) else str(value)


def gym_environment_check(settings: Mapping[str, Any]) -> list[str]:
    """Whether the package is there."""
    from importlib.util import find_spec  # here, so that this function needs nothing of its module

    return [] if find_spec("gymnasium") else ["needs the package gymnasium. Fix: pip install 'r1flow[gymnasium]'"]
