"""What ran and what it cost, for the tiles at the top, the line under the title and the picture of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from components.evaluation.lineage import BUDGET
from components.evaluation.page.cost import Cost, current_run, reused_from, total
from components.evaluation.page.lanes import draw
from components.evaluation.page.sources import Node

Stages = Sequence[Mapping[str, Any]]


def took(seconds: float | None) -> str:
    """``12 s``, ``3 min 05 s``, ``2 h 10 min``; a dash where nobody knows."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(number: float | None) -> str:
    """``950``, ``12.3 k``, ``4.56 M``; a dash where nobody knows."""
    if number is None:
        return "–"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def tiles(stages: Stages, costs: Mapping[str, Cost]) -> list[dict[str, Any]]:
    """The few figures at the top: where the last stage arrived, and from where; what it all cost."""
    found: list[dict[str, Any]] = []
    if stages:
        last = stages[-1]["metrics"]
        for name, title in (
            ("pass@1", "Reasoning, pass@1"),
            ("unsafe_refused", "Unsafe requests refused"),
            ("benign_answered", "Benign requests answered"),
        ):
            if name in last:
                had = [(s["name"], s["metrics"][name]["value"]) for s in stages if name in s["metrics"]]
                start = next((h for h in had[:-1] if h[1] > 0), had[0])  # a base model without the format scores 0
                found.append({"title": title, "estimate": last[name], "from": start if len(had) > 1 else None})
    wall, cpu, tokens = (total(costs.values(), part) for part in ("wall_s", "cpu_s", "tokens"))
    if wall is not None:
        parts = [f"{len(costs)} stages"]
        parts += [f"CPU {took(cpu)}"] if cpu is not None else []
        parts += [f"{counted(tokens)} tokens sampled"] if tokens is not None else []
        found.append({"title": "Time in all stages", "text": took(wall), "detail": " · ".join(parts), "estimate": None})
    return found


def pipeline(nodes: Mapping[str, Node], costs: Mapping[str, Cost]) -> dict[str, Any]:
    """Rows of the DAG with what each stage cost, and what was built and reused in sum.

    An edge that only says how much compute to spend is not drawn: nothing is learned through it.
    """
    drawn = draw({s: tuple(p for role, p in n.parents.items() if role != BUDGET) for s, n in nodes.items()})
    run = current_run(nodes)
    longest = max((cost.wall_s or 0.0 for cost in costs.values()), default=0.0)
    reused = {stage: reused_from(node, run) for stage, node in nodes.items()}
    rows = [_row(nodes[stage], costs[stage], reused[stage], longest) for stage in drawn.order]
    built = [costs[stage] for stage in nodes if reused[stage] is None]
    spared = [costs[stage] for stage in nodes if reused[stage] is not None]
    return {
        "svg": drawn.svg,
        "rows": rows,
        "built": (len(built), took(total(built, "wall_s"))),
        "reused": (len(spared), took(total(spared, "wall_s"))),
        "cpu": took(total(costs.values(), "cpu_s")),
        "tokens": counted(total(costs.values(), "tokens")),
        "has_costs": any(cost.cpu_s is not None or cost.tokens is not None for cost in costs.values()),
    }


def _row(node: Node, cost: Cost, reused: str | None, longest: float) -> dict[str, Any]:
    resumed = node.manifest.get("resumed_at")
    inputs = [f"{parent} ({role})" if role == BUDGET else parent for role, parent in node.parents.items()]
    facts = [
        f"from {', '.join(dict.fromkeys(inputs))}" if inputs else "no inputs",
        f"key {str(node.manifest['key'])[:12]}" if node.manifest.get("key") else "",
        f"built {node.manifest['created']}" if node.manifest.get("created") else "",
        f"by run {node.manifest['run']}" if node.manifest.get("run") else "",
        f"peak memory {cost.peak_mb:,.0f} MB" if cost.peak_mb else "",
    ]
    return {
        "name": node.stage,
        "what": node.target.rpartition(".")[2].replace("_", " "),
        "wall": took(cost.wall_s),
        "cpu": took(cost.cpu_s),
        "tokens": counted(cost.tokens),
        "share": (cost.wall_s or 0.0) / longest if longest else 0.0,
        "cached": reused is not None,
        "resumed": resumed,
        "facts": " · ".join(fact for fact in facts if fact),
    }


def origin(nodes: Mapping[str, Node]) -> list[str]:
    """Who built the newest stage, when and with what, for the line under the title."""
    newest = max((n.manifest for n in nodes.values()), key=lambda m: str(m.get("created", "")), default={})
    versions = newest.get("versions") or {}
    parts = [str(newest["run"])] if newest.get("run") else []
    parts += [str(newest["created"]).replace("T", " ").replace("Z", " UTC")] if newest.get("created") else []
    parts += [f"{name} {versions[name]}" for name in ("r1flow", "torch") if versions.get(name)]
    return parts + ([str(versions["machine"])] if versions.get("machine") else [])
