"""What the stages on preference pairs share: reading them, and how many held-out ones are ranked right."""

from __future__ import annotations

from collections.abc import Sequence

from components.artifacts import read_jsonl, write_json
from components.evaluation.intervals import wilson
from components.runtime import Inputs, Out
from components.stages.shared import mean
from components.types import Preference


def read_pairs(inputs: Inputs) -> tuple[list[Preference], list[Preference]]:
    """Pairs to train on, and pairs on prompts of no stage.

    Raises:
        ValueError: there are none to train on.
    """
    train, test = (
        [Preference.from_json(row) for row in read_jsonl(inputs["preferences"].path / f"{split}.jsonl")]
        for split in ("train", "test")
    )
    if not train:
        raise ValueError("preferences: no pairs. Fix: look at what the stage that writes them left out")
    return train, test


def record_ranking(out: Out, pairs: Sequence[Preference], right: Sequence[float]) -> dict[str, float]:
    """Share of pairs ranked right with a 95 % Wilson interval; ``pairs.json`` has it by family and defect."""
    found: dict[str, list[float]] = {}
    for pair, ok in zip(pairs, right, strict=True):
        found.setdefault(f"{pair.family}/{pair.defect}", []).append(ok)
    if out.peers.is_main:
        shares = {name: {"accuracy": mean(values), "n": float(len(values))} for name, values in sorted(found.items())}
        write_json(out.path / "pairs.json", shares)
    low, high = wilson(mean(right), len(right))
    return {"accuracy": mean(right), "accuracy_low": low, "accuracy_high": high}
