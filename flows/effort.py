"""How much there is to do in a stage: what its time is proportional to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Counts = Mapping[str, float]  # what the curated data hold: tasks by split, examples by file


def effort(target: str, settings: Mapping[str, Any], counts: Counts) -> float | None:
    """Work of a stage in units that only compare with others of the same target and model; None where it has none
    that settings tell (its time is then taken to stay the same).

    Args:
        counts: of the data it reads; what is missing counts as 1, on both sides of a comparison.
    """
    kind, get = target.rpartition(".")[2], settings.get

    def held(name: str) -> float:
        return float(counts.get(name) or 1)

    match kind:
        case "base_model":
            return float((get("steps") or 2000) * (get("batch_size") or 20) * (get("context") or 64))
        case "sft" if get("tokens") is None:
            files = [file.removesuffix(".jsonl") for names in (get("files") or {}).values() for file in names]
            examples = sum(held(file) for file in files)
            return float(get("epochs") or 2) * min(get("max_examples") or examples, examples)
        case "dpo" | "reward_model":
            return float(get("epochs") or 1)
        case "rl":
            group = get("group_size") or 8
            return float(get("steps") or 1) * sum((get("quotas") or {"": 1}).values()) * group
        case "profile":
            return held("profile") * (get("samples") or 8)
        case "evaluate":
            return held(get("split") or "test") * ((get("samples") or 4) + bool(get("greedy", True)))
        case "reject":
            return min(float(get("prompts") or 4000), held("fresh")) * (get("samples") or 4)
        case "traces":
            return float(get("prompts") or 1000) * (get("samples") or 4)
        case "preferences":
            return float(get("pairs") or 1)
        case "curate":
            return float((get("source") or {}).get("scale") or 1)
    return None
