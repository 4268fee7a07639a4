"""What a run will take: time, disk and memory of each stage, from what the same stage took before.

An estimate says where it comes from and how far it may be off. Nothing is guessed: a stage that was never built, and is
not calibrated (`flows.calibrate`), has none.
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore
from flows.effort import Counts, effort
from flows.history import Row, alike, distance
from flows.run_only import key_settings
from flows.stage import StageSpec
from flows.status import size_text

OWN_S = 1.0  # of a stage whatever its work: starting workers, reading, writing
MUCH = 5.0  # times the work
LOADED = 2.0  # times as long on a machine that others use as well
UNSURE = 3.0  # how far off an estimate from another model or other data may be, either way


@dataclass(frozen=True)
class Estimate:
    """Attributes:
    low_s, s, high_s: seconds of wall time: on an idle machine, as last time, on a loaded one.
    disk: bytes of the artifact.
    memory: bytes of all its processes at their peak (pages that they share counted in each).
    source: where the figures come from: the key of an earlier artifact, scaled, or a calibration.
    """

    low_s: float
    s: float
    high_s: float
    disk: float
    memory: float
    source: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class History:
    """Estimates from earlier artifacts of one store.

    Data and model of a stage are compared with those of the earlier artifact through its parents: other data or another
    model make an estimate unsure.

    Args:
        specs: the pipeline.
    """

    def __init__(self, specs: Sequence[StageSpec], store: ArtifactStore) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._store = store
        self._rows = {(row["stage"], row["key"]): row for row in store.ls() if not row["problem"]}

    def __call__(self, spec: StageSpec) -> Estimate | None:
        """The estimate of one stage; None if the store has no artifact of it."""
        rows = [row for row in alike(spec, self._store) if row.get("wall_s") is not None]
        if not rows:
            return None
        scaled = [found for row in rows[:8] if (found := self._scaled(spec, row)) is not None]
        if not scaled:
            return None
        sure = [found for found in scaled if not found[1]] or scaled[:1]
        first = sure[0][0]
        return Estimate(
            min(found.low_s for found, _ in sure),
            first.s,
            max(found.high_s for found, _ in sure),
            first.disk,
            first.memory,
            first.source + (f" +{len(sure) - 1}" if len(sure) > 1 else ""),
        )

    def _scaled(self, spec: StageSpec, row: Row) -> tuple[Estimate, bool] | None:
        """What one earlier artifact says of the stage, and whether that is unsure; None if it was over at once, which
        says nothing of one with much to do."""
        (counts, known), (old_counts, old_known) = self._counts(spec), self._counts_of(row)
        both = counts.keys() & old_counts.keys()
        now = effort(spec.target, spec.settings, {name: counts[name] for name in both})
        then = effort(spec.target, row["spec"].get("settings") or {}, {name: old_counts[name] for name in both})
        factor = now / then if now and then else 1.0
        model, same_model = self._model_factor(spec, row)
        machine = _machine(Path(row["path"]))
        workers = max(1, int(machine.get("processes", 1)))
        wanted = max(1, int(spec.launcher.get("processes") or 1))
        spread = factor * model * workers / wanted
        wall = float(row["wall_s"])
        if spread > MUCH and wall < MUCH * OWN_S:
            return None
        used = machine.get("workers") or []
        busy = min(wall, max((w["cpu_s"] for w in used), default=wall))

        def scale(seconds: float) -> float:
            own = min(seconds, OWN_S)
            return own + (seconds - own) * spread

        doubt = 1.0 if known and old_known and same_model else UNSURE
        grows = factor if spec.target.endswith((".rl", ".reject", ".evaluate", ".curate")) else 1.0
        memory = 2**20 * sum(w["peak_rss_mb"] for w in used) * wanted / workers
        what = "" if abs(factor - 1) < 0.01 else f" × {factor:.2g}"
        other = "" if same_model else ", another model"
        source = f"{row['key'][:8]}{what}{other}"
        low, s, high = scale(busy) / doubt, scale(wall), scale(wall) * LOADED * doubt
        return Estimate(min(low, s), s, high, row["size"] * grows * model, memory, source), doubt > 1

    def _counts(self, spec: StageSpec) -> tuple[Counts, bool]:
        """What the data of a stage of the pipeline hold, and whether that is known."""
        data = self._specs.get(spec.inputs.get("data", ""))
        if data is None:
            return {}, True
        rows = alike(data, self._store)
        if not rows:
            return {}, False
        old, new = rows[0]["spec"].get("settings") or {}, key_settings(data.settings, data.target)
        if distance(old, new) == 0:
            return _numbers(rows[0]["metrics"]), True
        then, now = (float((made_of.get("source") or {}).get("scale") or 0) for made_of in (old, new))
        if then and now and distance(old, new) == 1 and then != now:
            return {k: v * now / then for k, v in _numbers(rows[0]["metrics"]).items()}, True
        return {}, False

    def _counts_of(self, row: Row) -> tuple[Counts, bool]:
        parent = (row.get("parents") or {}).get("data")
        if parent is None:
            return {}, True
        found = self._rows.get((parent["stage"], parent["key"]))
        return ({}, False) if found is None else (_numbers(found["metrics"]), True)

    def _model_factor(self, spec: StageSpec, row: Row) -> tuple[float, bool]:
        """How much larger the model is now than then, and whether it is the same one."""
        now = next((s.settings["model"] for s in self._line(spec) if "model" in s.settings), None)
        base = next((r for r in self._line_of(row) if "model" in (r["spec"].get("settings") or {})), None)
        if base is None or now is None:
            return 1.0, base is None and now is None
        if distance(base["spec"]["settings"]["model"], key_settings(now)) == 0:
            return 1.0, True
        alike_base = [
            r
            for r in self._rows.values()
            if distance((r["spec"].get("settings") or {}).get("model"), key_settings(now)) == 0
        ]
        sizes = [float(r["metrics"].get("parameters") or 0) for r in (alike_base[:1] or [{"metrics": {}}])]
        then = float(base["metrics"].get("parameters") or 0)
        return (sizes[0] / then if sizes[0] and then else 1.0), False

    def _line(self, spec: StageSpec) -> Iterator[StageSpec]:
        yield spec
        if (before := self._specs.get(spec.inputs.get("model", ""))) is not None:
            yield from self._line(before)

    def _line_of(self, row: Row) -> Iterator[Row]:
        yield row
        parent = (row.get("parents") or {}).get("model")
        if parent is not None and (before := self._rows.get((parent["stage"], parent["key"]))) is not None:
            yield from self._line_of(before)


def total_s(
    specs: Sequence[StageSpec], seconds: Mapping[str, float], slots: Callable[[StageSpec], int], capacity: int
) -> float:
    """Wall time of a run whose stages take so long, run as the driver does: in the order of the pipeline, as soon as
    their inputs are there and cores are free. Stages without seconds take none (reused ones)."""
    done, running, now = set[str](), list[tuple[float, str, int]](), 0.0
    waiting, free = list(specs), capacity
    while waiting or running:
        for spec in list(waiting):
            held = min(slots(spec), capacity) if spec.name in seconds else 0
            if held <= free and all(parent in done for parent in spec.inputs.values()):
                waiting.remove(spec)
                heapq.heappush(running, (now + seconds.get(spec.name, 0.0), spec.name, held))
                free -= held
        if not running:
            raise ValueError(f"stages that can never start: {', '.join(spec.name for spec in waiting)}")
        now, name, held = heapq.heappop(running)
        done.add(name)
        free += held
    return now


def room(artifacts: Path) -> tuple[int, int | None]:
    """(bytes free on the disk of the artifacts, bytes of memory available; None where the system does not say)."""
    there = next(path for path in (artifacts.absolute(), *artifacts.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free, available_memory()


def available_memory() -> int | None:
    """Bytes that new processes can have, the limit of a container included."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit.isdigit():
            found.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def warnings(estimates: Mapping[str, Estimate], free_disk: float, free_memory: float | None) -> Iterator[str]:
    """What will not fit, with the figures."""
    disk = sum(found.disk for found in estimates.values())
    if disk > free_disk:
        yield (
            f"the run needs about {size_text(disk)} of disk and {size_text(free_disk)} are free. Fix: r1flow cache gc, "
            "or artifacts=DIR on another disk"
        )
    for name, found in estimates.items():
        if free_memory is not None and found.memory > free_memory:
            yield (
                f"{name} needs up to {size_text(found.memory)} of memory and {size_text(free_memory)} are available. "
                f"Fix: lower {name}.micro_batch_tokens, or launcher.processes=1"
            )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def _machine(path: Path) -> Mapping[str, Any]:
    file = path / "logs" / "workers.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
