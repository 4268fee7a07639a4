"""Reading what a run left behind: manifests along the lineage, answers, rollouts, step metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.runtime import Inputs, StageArtifact

MANIFEST = "manifest.json"
_FILES = 240  # rollout files read of a stage: enough for every trend, and a long run's page takes no longer


@dataclass(frozen=True)
class Node:
    """A stage that some input of the report was built from.

    Attributes:
        parents: names of the stages it took inputs from, by input name.
        cached: True if this run found it built; None where nobody said.
    """

    stage: str
    path: Path
    parents: Mapping[str, str]
    manifest: Mapping[str, Any]
    cached: bool | None = None

    @property
    def target(self) -> str:
        return str((self.manifest.get("spec") or {}).get("target", ""))

    @property
    def wall_s(self) -> float | None:
        return self.manifest.get("wall_s")

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self.manifest.get("metrics") or {}


@dataclass(frozen=True)
class Evaluation:
    """Answers of one model.

    Attributes:
        stage: the stage whose model answered.
        rl: whether that stage was reinforcement learning.
    """

    name: str
    stage: str
    rows: list[dict[str, Any]]
    rl: bool = False


@dataclass
class Sources:
    """Everything the page is made of."""

    nodes: dict[str, Node]
    evaluations: list[Evaluation]
    steps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    rollouts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    profile: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    counts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    prompts: dict[str, tuple[str, str]] = field(default_factory=dict)


def read_sources(inputs: Inputs, prefix: str) -> Sources:
    """Read the inputs and, through their manifests, every stage they were built from.

    What an input is, is told by what lies in it: ``answers.parquet`` an evaluation, ``rollouts/`` reinforcement
    learning, ``profile.json``, ``counts.json`` rejection sampling, ``report.json`` the data. Evaluations keep the order
    of ``inputs``; their names without ``prefix`` are the names of the models where no manifest says.
    """
    nodes = lineage(inputs)
    found = Sources(nodes, [])
    for name, artifact in inputs.items():
        if (artifact.path / "answers.parquet").exists():
            node = nodes[artifact.stage]
            model = node.parents.get("model", artifact.stage.removeprefix(prefix))
            is_rl = (nodes[model].path / "rollouts").is_dir() if model in nodes else (model.startswith("rl"))
            rows = read_parquet(artifact.path / "answers.parquet")
            found.evaluations.append(Evaluation(name, model, rows, is_rl))
    for stage, node in nodes.items():
        if steps := _jsonl(node.path / "logs" / "metrics.jsonl"):
            found.steps[stage] = steps
        if (node.path / "rollouts").is_dir():
            found.rollouts[stage] = _rollouts(node.path / "rollouts")
        if (node.path / "profile.json").exists():
            found.profile = _json(node.path / "profile.json")
        for file in ("report.json", "counts.json", "pairs.json"):
            if (node.path / file).exists():
                found.counts[stage] = _json(node.path / file)
        for split in sorted((node.path / "tasks").glob("*.jsonl")):
            if split.stem in ("test", "dev"):
                found.prompts |= {
                    row["id"]: (row["messages"][-1]["content"], row.get("answer") or "") for row in _jsonl(split)
                }
    return found


def lineage(inputs: Inputs) -> dict[str, Node]:
    """Stages the inputs were built from and the inputs themselves, parents first."""
    cached = {artifact.stage: artifact.cached for artifact in inputs.values()}
    nodes: dict[str, Node] = {}

    def visit(stage: str, path: Path) -> None:
        if stage in nodes:
            return
        manifest = _json(path / MANIFEST) if (path / MANIFEST).exists() else {}
        parents: dict[str, str] = {}
        for role, parent in (manifest.get("parents") or {}).items():
            if isinstance(parent, Mapping) and {"stage", "key"} <= parent.keys():
                parents[role] = str(parent["stage"])
                visit(parents[role], path.parents[1] / parents[role] / str(parent["key"]))
        nodes[stage] = Node(stage, path, parents, manifest, cached.get(stage))

    for artifact in inputs.values():
        visit(artifact.stage, artifact.path)
    return nodes


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Records of a Parquet file."""
    import pyarrow.parquet as pq  # heavy, and nobody but the report needs it here

    return pq.read_table(path, columns=None if columns is None else list(columns)).to_pylist()


def _rollouts(folder: Path) -> list[dict[str, Any]]:
    """Rollouts without their tokens, of at most `_FILES` files spread evenly over the steps."""
    import pyarrow.parquet as pq  # heavy, see above

    rows: list[dict[str, Any]] = []
    files = sorted(folder.glob("*.parquet"))
    for file in files[:: max(1, -(-len(files) // _FILES))]:
        names = [name for name in pq.read_schema(file).names if name not in ("tokens", "action_mask")]
        rows += read_parquet(file, names)
    return rows


def terms(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Reward terms of a rollout that applied to it."""
    for name, value in row.items():
        if name.startswith("term.") and value is not None:
            yield name.removeprefix("term."), value


def artifact_of(stage: str, path: Path) -> StageArtifact:
    """A stage's artifact as an input, for a page made outside a run."""
    manifest = _json(path / MANIFEST)
    return StageArtifact(stage, str(manifest.get("key", path.name)), path, str(manifest.get("digest", "")))


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _jsonl(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]  # a killed writer leaves half a line
