"""The gate in a run: who is compared with whom, what stops, what is kept and what is remembered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.runtime import StageArtifact
from flows.build import stage_specs
from flows.compose import compose
from flows.errors import BadInput
from flows.gate import Gate, gate_mode
from flows.launch.events import Fanout
from flows.pipeline import Driver, RunResult
from flows.preflight import preflight_run
from flows.signals import Stop
from flows.stage import StageSpec

EVALUATE = "components.stages.evaluate.evaluate"
IN_PROCESS = {"_target_": "flows.launch.inprocess.InProcess"}
# model → what it gets right of four samples of each prompt
GOOD = {"base": "0000", "cold_start": "1000", "rl_1": "1110"}
STUCK = GOOD | {"rl_1": "1000"}


def specs(**gates: str) -> list[StageSpec]:
    def spec(name: str, target: str, settings: dict[str, Any] | None = None, **inputs: str) -> StageSpec:
        return StageSpec(name, target, inputs, settings or {}, launcher=IN_PROCESS, gate=gates.get(name))

    train = "components.stages.sft.sft"
    return [
        spec("base", "components.stages.base_model.base_model"),
        spec("cold_start", train, model="base"),
        spec("rl_1", "components.stages.rl.rl", model="cold_start"),
        spec("eval_base", EVALUATE, model="base"),
        spec("eval_cold_start", EVALUATE, model="cold_start"),
        spec("eval_rl_1", EVALUATE, model="rl_1"),
        spec("eval_rl_1_cold", EVALUATE, {"temperature": 0.1}, model="rl_1"),  # another way to evaluate: no partner
        spec("last", train, model="rl_1", judged="eval_rl_1"),
    ]


class Run:
    """Runs the specs with made-up answers through the real driver."""

    def __init__(self, root: Path, rights: dict[str, str], mode: str = "warn", **gates: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.root, self.rights = root, rights
        self.specs = self.wanted(specs(**gates))
        stop = Stop()
        with Fanout([self.events.append]) as emit:
            gate = Gate(self.specs, root / "gate", mode, emit, stop)

            def execute(spec: StageSpec, parents: Any, launch: Any, say: Any) -> StageArtifact:
                artifact = self.made(spec)
                gate(spec, artifact)
                return artifact

            self.result: RunResult = Driver(self.specs, execute, emit=emit, stop=stop).run()

    def wanted(self, specs: list[StageSpec]) -> list[StageSpec]:
        return specs

    def made(self, spec: StageSpec) -> StageArtifact:
        path = self.root / spec.name
        path.mkdir(exist_ok=True)
        right = self.rights.get(spec.inputs.get("model", ""), "")
        if spec.target == EVALUATE:
            rows = [
                {"task_id": f"t{i}", "sample": s, "family": "sum", "level": 1, "kind": "reasoning", "correct": float(c)}
                | {"format_ok": 1.0, "language": 1.0, "length": 20, "finish": "stop", "response": "", "answer": "3"}
                for i in range(20)
                for s, c in enumerate(right)
            ]
            pq.write_table(pa.Table.from_pylist(rows), path / "answers.parquet")
        return StageArtifact(spec.name, "k", path, f"{spec.name}-{right}")

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


def test_each_model_is_compared_with_the_one_it_comes_after_and_a_healthy_run_is_left_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, GOOD)
    assert sorted((e["verdict"]["against"], e["stage"], e["passed"]) for e in run.of("gate")) == [
        ("base", "cold_start", True),
        ("cold_start", "rl_1", True),
    ]
    assert run.of("finding") == []
    assert (run.result.state, run.result.exit_code) == ("done", 0)


def test_warn_names_the_stage_that_did_not_help_and_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, STUCK)
    [finding] = run.of("finding")
    assert (finding["stage"], finding["name"], finding["severity"]) == ("rl_1", "gate", "warning")
    assert "did not help: nothing is better than cold_start" in finding["text"]
    assert (run.result.state, run.result.exit_code) == ("done", 0)


def test_stop_ends_the_run_with_1_before_anything_that_depends_on_the_verdict_and_keeps_what_is_built(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, STUCK, "stop")
    assert (run.result.state, run.result.exit_code) == ("failed", 1)
    assert run.result.stages["eval_rl_1"].state == "done"
    assert run.result.stages["eval_rl_1"].artifact is not None
    assert run.result.stages["last"].state == "interrupted"
    assert "the run ends here (gate=stop): rl_1 did not pass" in " ".join(e["text"] for e in run.of("say"))
    assert run.of("run")[-1]["exit_code"] == 1


def test_a_refusal_that_nothing_is_left_to_stop_is_exit_1_as_well(tmp_path: Path) -> None:
    class WithoutMore(Run):
        def wanted(self, specs: list[StageSpec]) -> list[StageSpec]:
            return [spec for spec in specs if spec.name not in ("last", "eval_rl_1_cold")]

    result = WithoutMore(tmp_path, STUCK, "stop").result
    assert {outcome.state for outcome in result.stages.values()} == {"done"}
    assert (result.state, result.exit_code) == ("failed", 1)


def test_stop_does_not_trouble_a_healthy_run(tmp_path: Path) -> None:
    assert Run(tmp_path, GOOD, "stop").result.exit_code == 0


def test_off_says_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, STUCK, "off")
    assert run.of("gate") == run.of("finding") == []


@pytest.mark.parametrize("owner", ["rl_1", "eval_rl_1"])
def test_one_stage_can_be_held_to_more_than_the_run(tmp_path: Path, owner: str) -> None:
    assert Run(tmp_path, STUCK, "warn", **{owner: "stop"}).result.exit_code == 1
    assert Run(tmp_path, STUCK, "stop", **{owner: "off"}).result.exit_code == 0


def test_what_was_judged_is_remembered_by_content(tmp_path: Path) -> None:
    first = Run(tmp_path, GOOD)
    files = sorted((tmp_path / "gate").glob("*.json"))
    assert len(files) == 2
    for file in files:
        file.write_text(json.dumps(json.loads(file.read_text()) | {"text": "from memory"}))
    again = Run(tmp_path, GOOD)
    assert {event["text"] for event in again.of("gate")} == {"from memory"}
    assert "from memory" not in {event["text"] for event in Run(tmp_path, STUCK).of("gate") if event["stage"] == "rl_1"}
    assert len(first.of("gate")) == 2


def test_answers_that_cannot_be_read_stop_nothing(tmp_path: Path) -> None:
    class Broken(Run):
        def made(self, spec: StageSpec) -> StageArtifact:
            artifact = super().made(spec)
            (artifact.path / "answers.parquet").unlink(missing_ok=True)
            return artifact

    run = Broken(tmp_path, GOOD)
    assert run.result.exit_code == 0
    assert "the promotion gate cannot judge, the run goes on: FileNotFoundError" in run.of("say")[0]["text"]


def test_yaml_says_off_and_means_it() -> None:
    assert [gate_mode(value) for value in (None, False, "off", "warn", "stop")] == [
        "warn",
        "off",
        "off",
        "warn",
        "stop",
    ]
    with pytest.raises(ValueError, match="warn, stop or off"):
        gate_mode(True)


def test_the_gate_is_set_for_the_run_a_stage_or_an_evaluation_and_misspelt_is_refused() -> None:
    config = compose(["gate=off", "rl_1.gate=stop", "eval_sft_2.gate=warn"])
    assert config.root["gate"] == "off"
    gates = {spec.name: spec.gate for spec in stage_specs(config)}
    assert (gates["rl_1"], gates["eval_sft_2"], gates["rl_2"]) == ("stop", "warn", None)
    with pytest.raises(BadInput, match="did you mean stop"):
        preflight_run(compose(["gate=stopp"]))
    with pytest.raises(BadInput, match="did you mean warn"):
        stage_specs(compose(["rl_1.gate=warm"]))
