"""Steps and environments as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.environments.protocol import Step

TOKEN_VARIABLE = "R1FLOW_ENVS_TOKEN"
TOKEN_RULE = "at least 8 printable ASCII characters, and no space"
MOST = 32 << 20  # bytes of a request or an answer
_SHOWN = {
    "chat": False,
    "speaker": "tool",
    "seconds": 60.0,
    "inspects": False,
    "overflow": "stop",
    "reserve": 64,
}


def is_token(text: str) -> bool:
    """Whether it keeps `TOKEN_RULE`: a header can carry it."""
    return len(text) >= 8 and text.isascii() and text.isprintable() and " " not in text


def about(environment: Any, digest: str) -> dict[str, Any]:
    """What an engine has to know of an environment, the defaults of what it lacks filled in."""
    shown = {name: getattr(environment, name, default) for name, default in _SHOWN.items()}
    return {"stop": list(environment.stop), "wrapper": list(environment.wrapper), "digest": digest, **shown}


def is_about(row: Mapping[str, Any]) -> bool:
    """Whether `about` made it."""
    return {"stop", "wrapper", "digest", *_SHOWN} <= set(row)


def step_to_json(step: Step) -> dict[str, Any]:
    said = step.observation
    return {
        "observation": said if said is None or isinstance(said, str) else list(said),
        "done": step.done,
        "cut": step.cut,
        "info": dict(step.info),
        "reward": step.reward,
    }


def step_from_json(row: Mapping[str, Any]) -> Step:
    """Inverse of `step_to_json`. Raises KeyError and TypeError for anything else."""
    said = row["observation"]
    said = tuple(said) if isinstance(said, list) else said
    return Step(said, bool(row["done"]), bool(row["cut"]), dict(row["info"]), float(row["reward"]))
