"""The guide on a pipeline: it finds what earlier stages left, tries the reward's own verifier, and says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.artifacts import ArtifactStore, write_jsonl
from components.runtime import StageArtifact
from components.types import Message, Task
from flows.advise import advise_run
from flows.history import alike, distance
from flows.run import prepare
from flows.stage import StageSpec, run_stage

ALLOW = ("components", "tests")


@pytest.fixture(scope="module")
def specs() -> Mapping[str, StageSpec]:
    wanted = ("curate", "base", "cold_start", "eval_cold_start", "profile", "rl_1")
    return {spec.name: spec for spec in prepare(["orchestrator=inline"]).specs if spec.name in wanted}


class Lab:
    """A store with artifacts whose content the test decides."""

    def __init__(self, root: Path, specs: Mapping[str, StageSpec]) -> None:
        self.store, self.specs = ArtifactStore(root / "cache"), specs
        self.done: dict[str, StageArtifact] = {}

    def put(self, stage: str, **files: Any) -> None:
        """Build a stage: its files by name, lists of rows as Parquet or lines, anything else as JSON."""
        spec = self.specs[stage]
        parents = {name: self.done[source] for name, source in spec.inputs.items()}

        def launch(spec: StageSpec, parents: Any, claim: Any, emit: Any) -> dict[str, float]:
            for name, content in files.items():
                if name == "answers":
                    pq.write_table(pa.Table.from_pylist(content), claim.draft / "answers.parquet")
                elif name == "train":
                    (claim.draft / "tasks").mkdir()
                    write_jsonl(claim.draft / "tasks" / "train.jsonl", [task.to_json() for task in content])
                else:
                    (claim.draft / f"{name}.json").write_text(json.dumps(content))
            (claim.draft / "made").write_text(stage)
            return {}

        self.done[stage] = run_stage(spec, parents, self.store, launch, lambda text, **more: None)

    def advice(self, **settings: Any) -> Any:
        rl = self.specs["rl_1"]
        changed = {**self.specs, "rl_1": replace(rl, settings={**rl.settings, **settings})}
        [found] = advise_run(list(changed.values()), self.store, ALLOW)
        return found

    def state(self, name: str, **settings: Any) -> tuple[str, str]:
        [found] = [check for check in self.advice(**settings).checks if check.name == name]
        return found.state, found.text


def tasks(n: int, kind: str = "reasoning") -> list[Task]:
    return [Task(f"{kind}{i}", (Message("user", f"{i} + 1 ="),), str(i + 1), "exact", "sum", 0, kind) for i in range(n)]


def answers(text: str, prompts: int = 40) -> list[dict[str, Any]]:
    return [
        {"task_id": f"t{i}", "sample": s, "family": "sum", "level": 0, "kind": "reasoning", "correct": float(c)}
        | {"format_ok": 1.0, "language": 1.0, "length": 9, "finish": "stop", "response": "", "answer": "1"}
        for i in range(prompts)
        for s, c in enumerate(text)
    ]


@pytest.fixture
def lab(tmp_path: Path, specs: Mapping[str, StageSpec]) -> Lab:
    lab = Lab(tmp_path, specs)
    lab.put("curate", train=[*tasks(1_200), *tasks(50, "general")])
    lab.put("base")
    lab.put("cold_start")
    return lab


def test_the_guide_reads_the_evaluation_of_the_model_that_rl_starts_from(lab: Lab) -> None:
    assert lab.advice().verdict == "unknown"
    lab.put("eval_cold_start", answers=answers("1000"))
    advice = lab.advice()
    assert (advice.stage, advice.verdict) == ("rl_1", "rl")
    assert "pass@1 25 %" in advice.conclusion
    assert lab.state("data") == ("warn", "1,200 tasks, 10,000 are wanted")
    assert lab.state("baseline")[0] == "good"


def test_the_profile_serves_where_there_is_no_evaluation(lab: Lab) -> None:
    lab.put("profile", profile={"sum/0": {"pass_rate": 0.97, "pass_at_k": 1.0, "n": 60, "k": 8}})
    assert "all is solved, pass@1 97 %" in lab.advice().conclusion


def test_the_rewards_own_verifier_is_tried_on_the_references(lab: Lab) -> None:
    lab.put("eval_cold_start", answers=answers("1000"))
    assert (
        lab.state("verifier")[1] == "the verifier accepts 100% of 200 references, rejects 100% of other tasks' answers"
    )
    broken = {"_target_": "components.rewards.accuracy.Accuracy", "strict": False, "accept": ["boxed"]}
    reward = lab.specs["rl_1"].settings["reward"]
    lenient = {"_target_": "tests.flows.test_advise.Anything"}
    for node, verdict in ((broken, "rl"), (lenient, "not rl")):
        changed = {**reward, "terms": {**reward["terms"], "accuracy": node}}
        assert lab.advice(reward=changed).verdict == verdict


class Anything:
    """A verifier that pays for anything."""

    def __call__(self, task: Any, rollout: Any) -> float:
        return 1.0


def test_a_reward_without_that_term_leaves_the_verifier_untried(lab: Lab) -> None:
    lab.put("eval_cold_start", answers=answers("1000"))
    reward = {"_target_": "components.rewards.mix.Mix", "terms": {"length": {}}, "weights": {"length": 1.0}}
    assert lab.state("verifier", reward=reward) == ("unknown", "the verifier is untested (not tried)")


def test_the_most_alike_of_earlier_artifacts_speaks_for_a_stage(lab: Lab, specs: Mapping[str, StageSpec]) -> None:
    lab.put("eval_cold_start", answers=answers("1000"))
    spec = specs["eval_cold_start"]
    lab.specs = {**specs, "eval_cold_start": replace(spec, settings={**spec.settings, "samples": 2})}
    lab.put("eval_cold_start", answers=answers("11"))
    rows = alike(spec, lab.store)
    assert [row["spec"]["settings"]["samples"] for row in rows] == [4, 2]
    assert alike(replace(spec, target="components.stages.sft.sft"), lab.store) == []


def test_distance_counts_leaves() -> None:
    assert distance({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 5}, "e": 0}) == 3
