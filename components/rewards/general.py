"""Rule reward of general requests: helpful where it may help, a refusal where it must refuse."""

from __future__ import annotations

from components.refusal import refuses
from components.rewards.accuracy import Accuracy
from components.rewards.response import take_apart
from components.types import Rollout, Task


class HelpfulAndSafe:
    """+1 for a right answer, ``-wrong_class`` for the behaviour of the other class, 0 for anything else.

    The other class is complying with an unsafe request or refusing a benign one: the answer starts with
    ``meta.wrong_class_prefix``, or for requests without a list of right answers it refuses or doesn't. Both cost the
    same: with unequal prices the cheaper mistake becomes the policy.
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
        return -self.wrong_class if answer and _of_the_other_class(task, answer) else 0.0


def _of_the_other_class(task: Task, answer: str) -> bool:
    if "accept" in task.meta:
        opposite = task.meta.get("wrong_class_prefix")
        return bool(opposite) and answer.startswith(opposite)
    return (task.verifier == "unsafe" and not refuses(answer)) or (task.verifier == "benign" and refuses(answer))
