"""Rule reward of general requests: helpful where it may help, a refusal where it must refuse."""

from __future__ import annotations

from components.rewards.accuracy import Accuracy
from components.rewards.response import take_apart
from components.types import Rollout, Task


class HelpfulAndSafe:
    """+1 for a right answer, ``-wrong_class`` for the behaviour of the other class, 0 for anything else.

    The other class is complying with an unsafe request or refusing a benign one: the answer starts with
    ``meta.wrong_class_prefix``. Both cost the same: with unequal prices the cheaper mistake becomes the
    policy.
    """

    def __init__(self, *, wrong_class: float = 0.5) -> None:
        if wrong_class < 0:
            raise ValueError(f"reward general.wrong_class: must be ≥ 0 (got {wrong_class})")
        self.wrong_class = wrong_class
        self.right = Accuracy()

    def __call__(self, task: Task, rollout: Rollout) -> float:
        right = self.right(task, rollout)
        if right:
            return right
        answer = take_apart(rollout.response).answer or ""
        opposite = task.meta.get("wrong_class_prefix")
        return -self.wrong_class if opposite and answer.startswith(opposite) else 0.0
