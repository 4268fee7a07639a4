"""The whole of ``pipeline=agent`` at its smallest, by the command: stages are real, worlds judge the episodes."""

from __future__ import annotations

import json

import pytest

from components.artifacts import read_jsonl
from components.rollout.record import read_rows
from tests.e2e.tools import Workplace, rollouts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STAGES = {
    *("curate", "base", "cold_start", "profile", "rl_1", "rejection", "sft_2", "rl_2"),
    *("eval_cold_start", "eval_rl_1", "eval_sft_2", "eval_rl_2", "report"),
}


def test_an_agent_is_trained_and_measured_by_one_command(place: Workplace) -> None:
    done = place.r1flow("run", "pipeline=agent_smoke", "orchestrator=inline", "tracking=none", "launcher=inprocess")
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.states() == dict.fromkeys(STAGES, "done")

    curated = place.artifact("curate")
    examples = list(read_jsonl(curated / "cold_start.jsonl"))
    assert {row["source"] for row in examples} == {"careful", "wandering", "hasty"}

    answers = read_rows(place.artifact("eval_rl_2") / "answers.parquet")
    assert {row["steps_needed"] for row in answers} == {1, 2, 3, 4, 5, 6}
    assert {row["kind"] for row in answers} == {"reasoning", "general"}
    assert all(row["invalid_calls"] <= row["steps"] for row in answers)  # one call a turn in tags
    assert max(row["tools"] for row in answers) == 7

    for stage in ("rl_1", "rl_2"):
        rows = rollouts(place.artifact(stage))
        assert {"term.completion", "term.tool_accuracy", "term.efficiency", "term.format"} <= rows[0].keys()
        for row in rows:  # what tools said stands between results, masked, and is nowhere else
            said = row["response"].count("<result>")
            runs = [not a and (i == 0 or row["action_mask"][i - 1]) for i, a in enumerate(row["action_mask"])]
            assert sum(runs) <= said
    assert {row["family"] for row in rollouts(place.artifact("rl_2"))} & {"unsafe", "benign"}

    summary = json.loads((place.artifact("report") / "summary.json").read_text())
    assert [stage["name"] for stage in summary["stages"]] == ["cold_start", "rl_1", "sft_2", "rl_2"]
    for stage in summary["stages"]:
        assert {"pass@1", "pass@2", "pass^2", "steps", "invalid_calls", "longer", "unsafe_refused"} <= stage[
            "metrics"
        ].keys()
        assert {"2", "7"} <= stage["by_tools"].keys()
    page = (place.artifact("report") / "report.html").read_text()
    assert "Episodes with tools" in page
    assert "invalid" in done.stdout  # the table

    again = place.r1flow("run", "pipeline=agent_smoke", "orchestrator=inline", "tracking=none", "launcher=inprocess")
    assert again.returncode == 0
    assert set(place.states().values()) == {"reused"}
