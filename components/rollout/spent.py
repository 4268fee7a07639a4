"""What a round of reinforcement learning cost, in tokens: the budget of a control that spends the same otherwise."""

from __future__ import annotations

import json
from pathlib import Path

from components.rollout.record import read_rows


def tokens_spent(*, path: str | Path) -> int:
    """Tokens of responses that went through the network in a finished RL stage: Σ sampled + Σ trained on.

    A token that the reference judged (KL) counts once more. A sampled token counts like a trained one: it costs a third
    of the arithmetic (one forward pass instead of forward and backward), but is made one at a time. Measured on CPU
    with the tiny model that comes out even with training tokens; where sampling is cheaper, the control gets the
    better of it. Prompts, which groups share, are left out.

    Why tokens and not seconds: they are part of what the stage computed, the same on every machine and every day, so
    that the control is too.

    Args:
        path: directory of the RL stage's artifact, with ``rollouts/`` and ``logs/metrics.jsonl``.

    Raises:
        ValueError: the artifact is not of an RL stage, or has no step.
    """
    path = Path(path)
    files, log = sorted((path / "rollouts").glob("*.parquet")), path / "logs" / "metrics.jsonl"
    if not files or not log.is_file():
        raise ValueError(f"{path} has no rollouts and step metrics. Fix: name an RL stage as the budget's input")
    sampled = sum(int(row["length"]) for file in files for row in read_rows(file, ["length"]))
    trained = 0.0
    for line in log.read_text(encoding="utf-8").splitlines():
        step = json.loads(line)
        trained += step.get("tokens", 0.0) * (2 if "kl_ref" in step else 1)
    return sampled + round(trained)
