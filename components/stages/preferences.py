"""Stage ``preferences``: chosen/rejected pairs for the reward model, from the data or written by programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.data.corpus import DataError, read_tasks, write_rows
from components.data.preferences import write_pair
from components.rng import derive, stream
from components.runtime import Inputs, Out
from components.types import Preference, Task

TAKES = {"data": "data"}
GIVES = ("preferences",)


def preferences(
    inputs: Inputs,
    out: Out,
    *,
    pairs: int = 2_400,
    family_weights: dict[str, float] | None = None,
    test_pairs_per_prompt: int = 3,
    test_fraction: float = 0.1,
) -> dict[str, Any]:
    """Write ``train.jsonl`` and ``test.jsonl`` (Preference rows); return their counts by defect.

    Built-in data: train pairs come from the RL prompts of the general families, drawn by ``family_weights`` (default
    3 unsafe : 4 benign : 3 helpful), test pairs from the held-out prompts of dev; the test split stays untouched.
    Data with pairs of its own: all of them, ``test_fraction`` of the prompts held out by a hash.

    Args:
        inputs: ``data``, the curated data.

    Raises:
        DataError: the data has neither pairs nor tasks that a program can write pairs for.
    """
    if not out.peers.is_main:
        return {}
    data = inputs["data"].path
    if (data / "preferences.jsonl").exists():
        train, test = _given(data / "preferences.jsonl", test_fraction)
    else:
        weights = family_weights or {"unsafe": 3, "benign": 4, "helpful": 3}
        tasks = {name: _by_family(read_tasks(data / "tasks" / f"{name}.jsonl"), weights) for name in ("train", "dev")}
        train = _train_pairs(tasks["train"], weights, pairs, out)
        test = [
            write_pair(task, stream("held-out", "preferences", task.id, i))
            for family in tasks["dev"].values()
            for task in family
            for i in range(test_pairs_per_prompt)
        ]
    if not train or not test:
        raise DataError(f"preference pairs: {len(train)} to train on, {len(test)} to test with; both are needed")
    write_rows(out.path / "train.jsonl", train)
    write_rows(out.path / "test.jsonl", test)
    defects = Counter(f"defect.{pair.family}.{pair.defect or 'unnamed'}" for pair in train)
    return {"train": len(train), "test": len(test), **dict(sorted(defects.items()))}


def _by_family(tasks: list[Task], weights: dict[str, float]) -> dict[str, list[Task]]:
    return {family: [task for task in tasks if task.family == family] for family in weights}


def _train_pairs(tasks: dict[str, list[Task]], weights: dict[str, float], n: int, out: Out) -> list[Preference]:
    if missing := [family for family, found in tasks.items() if not found]:
        raise DataError(
            f"preferences: the data has no pairs and no tasks of {', '.join(missing)} to write them for. "
            "Fix: give chosen and rejected columns, or set family_weights to families that the data has."
        )
    rng = stream(out.seed, out.name)
    return [
        write_pair(rng.choice(tasks[family]), rng) for family in rng.choices(list(weights), list(weights.values()), k=n)
    ]


def _given(file: Path, test_fraction: float) -> tuple[list[Preference], list[Preference]]:
    with file.open(encoding="utf-8") as lines:
        pairs = [Preference.from_json(json.loads(line)) for line in lines]
    held_out = {
        pair.messages[-1].content
        for pair in pairs
        if derive("held-out", "preferences", pair.messages[-1].content) < test_fraction * 2**63
    }
    train = [pair for pair in pairs if pair.messages[-1].content not in held_out]
    return train, [pair for pair in pairs if pair.messages[-1].content in held_out]


def preferences_check(
    settings: Mapping[str, Any], inputs: Mapping[str, str], processes: int, contents: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Whether the data are known to have neither pairs nor tasks that pairs can be written for."""
    held = contents.get("data", {})
    if held.get("preferences.jsonl") != 0:
        return []
    families = settings.get("family_weights") or {"unsafe": 3, "benign": 4, "helpful": 3}
    missing = [family for family in families if not held.get(f"train/{family}")]
    if not missing:
        return []
    return [
        f"the data have no pairs, and no tasks of {', '.join(missing)} to write them for. Fix: give columns chosen and "
        "rejected, or take a pipeline that needs none: pipeline=r1_zero"
    ]


def preferences_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns; ``defect.FAMILY.DEFECT``."""
    return ["train", "test", "defect.*"]
