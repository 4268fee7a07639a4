"""A reward of a user's own: it has signal even on a model that has learned nothing."""

from typing import Any


def digits(task: Any, rollout: Any) -> float:
    """One tenth for every digit of the response."""
    return sum(char.isdigit() for char in rollout.response) / 10
