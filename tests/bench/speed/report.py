"""Figures as JSON and as a table, and what got slower between two of them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from timing import Figure

SLOWER = 0.15


def write(path: Path, figures: Sequence[Figure], repeats: int) -> None:
    """Figures measured now replace those of the same name in the file; others stay."""
    kept = {figure.name: figure for figure in read(path)} if path.exists() else {}
    kept |= {figure.name: figure for figure in figures}
    content = {"machine": machine(), "repeats": repeats, "figures": [asdict(figure) for figure in kept.values()]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> list[Figure]:
    return [Figure(**row) for row in json.loads(path.read_text())["figures"]]


def machine() -> dict[str, Any]:
    """What the absolute numbers depend on."""
    return {
        "cores": os.cpu_count(),
        "cpu": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def table(path: Path) -> str:
    """The figures of a file in Markdown."""
    content = json.loads(path.read_text())
    about = ", ".join(f"{name} {value}" for name, value in content["machine"].items())
    lines = [
        "# Figures of the benchmark",
        "",
        "What each line is stands in the docstrings of `tests/bench/speed/`; `make bench` measures anew and tells what",
        "got slower. Ratios are medians of paired repetitions in CPU-seconds of one thread.",
        f"Machine: {about}.",
        "",
        "| figure | value | promised | reached | behind it |",
        "|---|---:|---:|:-:|---|",
    ]
    for figure in read(path):
        promised = "" if figure.must is None else f"{'≤' if figure.better == 'lower' else '≥'} {figure.must:g}"
        reached = {True: "yes", False: "no", None: ""}[figure.reached]
        detail = ", ".join(f"{name} {value}" for name, value in figure.detail.items())
        lines.append(f"| {figure.name} | {figure.value:.2f}{figure.unit} | {promised} | {reached} | {detail} |")
    return "\n".join(lines) + "\n"


def slower(new: Sequence[Figure], base: Sequence[Figure], tolerance: float = SLOWER) -> list[str]:
    """One line for each figure that is worse than in ``base`` by more than ``tolerance``."""
    before = {figure.name: figure for figure in base}
    lines = []
    for figure in new:
        old = before.get(figure.name)
        if old is None or not figure.better:
            continue
        worse = figure.value / old.value if figure.better == "lower" else old.value / figure.value
        if worse > 1 + tolerance:
            change = f"{old.value:.2f} → {figure.value:.2f}{figure.unit}"
            lines.append(f"{figure.name}: {change}, {100 * (worse - 1):.0f} % worse")
    return lines
