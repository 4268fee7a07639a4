"""The stages ``curate`` and ``preferences`` over their real output: files, bans, counts, repeatability."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from components.data import general
from components.data.builtin import Builtin
from components.data.corpus import SPLITS, DataError, read_tasks
from components.data.readers import Jsonl
from components.data.tables import Table
from components.runtime import Out, Peers, StageArtifact
from components.stages.curate import curate
from components.stages.preferences import preferences
from components.types import Example, Preference


def build(path: Path, source, seed: int = 0, **out) -> dict:
    path.mkdir()
    return curate({}, Out(path=path, name="curate", seed=seed, **out), source=source)


def pairs(data: Path, path: Path, seed: int = 0, **settings) -> dict:
    path.mkdir()
    inputs = {"data": StageArtifact("curate", "key", data, "digest")}
    return preferences(inputs, Out(path=path, name="preferences", seed=seed), **settings)


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("default") / "curate"
    build(path, Builtin())
    pairs(path, path / "preferences")
    return path


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_all_files_of_the_contract_are_written_and_read_back(default: Path) -> None:
    assert {"pretrain.txt", "cold_start.jsonl", "general.jsonl", "report.json"} < {f.name for f in default.iterdir()}
    for split in SPLITS:
        tasks = read_tasks(default / "tasks" / f"{split}.jsonl")
        assert json.loads((default / "report.json").read_text())["kept"][split] == len(tasks) > 0
    assert Example.from_json(rows(default / "cold_start.jsonl")[0]).response.startswith("<think>")
    pair = Preference.from_json(rows(default / "preferences" / "train.jsonl")[0])
    assert pair.chosen != pair.rejected


def test_nothing_of_the_evaluation_is_in_any_training_file(default: Path) -> None:
    evaluation = [task for split in ("test", "dev") for task in read_tasks(default / "tasks" / f"{split}.jsonl")]
    held = {task.prompt for task in evaluation}
    held |= {re.sub(r"of (\d+) and (\d+)", r"of \2 and \1", task.prompt) for task in evaluation if task.family == "gcd"}
    held_ids = {task.id for task in evaluation}
    spelled = re.compile(rf"\b({'|'.join(general.MAKE + general.AVOID)}) a (?=(\w+))")
    training = [default / "tasks" / f"{split}.jsonl" for split in ("train", "fresh", "profile")]
    training += [default / "cold_start.jsonl", default / "general.jsonl", default / "preferences" / "train.jsonl"]
    for file in training:
        assert general.HELD_PAIRS.isdisjoint(spelled.findall(file.read_text())), file
        for row in rows(file):
            assert row["messages"][-1]["content"] not in held, file
            assert row.get("id", row.get("task_id")) not in held_ids
    longest = max(len(prompt.split()) for prompt in held)
    for line in (default / "pretrain.txt").read_text().splitlines():
        words = line.split()
        assert held.isdisjoint(" ".join(words[:n]) for n in range(1, longest + 1)), line
        assert general.HELD_PAIRS.isdisjoint(spelled.findall(line)), line


def test_the_test_split_is_in_no_file_of_the_preferences(default: Path) -> None:
    held = {task.prompt for task in read_tasks(default / "tasks" / "test.jsonl")}
    for name in ("train", "test"):
        prompts = {row["messages"][-1]["content"] for row in rows(default / "preferences" / f"{name}.jsonl")}
        assert prompts.isdisjoint(held)
    assert len(rows(default / "preferences" / "train.jsonl")) == 2400
    assert len(rows(default / "preferences" / "test.jsonl")) == 336


def test_the_splits_are_disjoint_by_prompt(default: Path) -> None:
    prompts = [task.prompt for split in SPLITS for task in read_tasks(default / "tasks" / f"{split}.jsonl")]
    assert len(prompts) == len(set(prompts))


def test_the_same_seed_gives_the_same_bytes_and_the_evaluation_is_the_same_for_all(tmp_path: Path) -> None:
    source = Builtin(scale=0.05)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build(tmp_path / name, source, seed)
        pairs(tmp_path / name, tmp_path / f"{name}-pairs", seed, pairs=50)
    first, again, other = (contents(tmp_path / name) for name in "abc")
    assert first == again
    assert contents(tmp_path / "a-pairs") == contents(tmp_path / "b-pairs")
    same = {name for name in first if first[name] == other[name]}
    assert {"tasks/test.jsonl", "tasks/dev.jsonl"} <= same <= {"tasks/test.jsonl", "tasks/dev.jsonl", "report.json"}
    assert (tmp_path / "a-pairs/test.jsonl").read_bytes() == (tmp_path / "c-pairs/test.jsonl").read_bytes()


def test_the_data_does_not_depend_on_the_hash_seed_of_the_process(tmp_path: Path) -> None:
    program = (
        "import hashlib; from components.data.builtin import Builtin;"
        "print(hashlib.sha256(repr(Builtin(scale=0.05).load(3)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    assert build(tmp_path / "x", Builtin(scale=0.01), peers=Peers(rank=1, world_size=2)) == {}
    assert list((tmp_path / "x").iterdir()) == []


def test_counts_come_back_as_metrics_and_are_said(tmp_path: Path) -> None:
    questions = [{"prompt": f"q number {i // 2}", "answer": str(i // 2)} for i in range(100)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    said: list[str] = []
    source = Table(reader=Jsonl(path=str(tmp_path / "q.jsonl")))
    metrics = build(tmp_path / "x", source, emit=lambda event: said.append(event["text"]))
    assert metrics["dropped_duplicate"] == 50
    assert sum(metrics[split] for split in SPLITS) == 50
    assert said[-1] == "dropped 50 duplicate"


def test_pairs_of_the_data_are_split_by_prompt(tmp_path: Path) -> None:
    questions = [{"prompt": f"q {i % 50}", "chosen": f"good {i}", "rejected": "bad"} for i in range(100)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    build(tmp_path / "data", Table(reader=Jsonl(path=str(tmp_path / "q.jsonl"))))
    metrics = pairs(tmp_path / "data", tmp_path / "pairs", test_fraction=0.3)
    prompts = [
        {row["messages"][0]["content"] for row in rows(tmp_path / "pairs" / f"{n}.jsonl")} for n in ("train", "test")
    ]
    assert prompts[0].isdisjoint(prompts[1])
    assert metrics["train"] + metrics["test"] == len(rows(tmp_path / "data" / "preferences.jsonl"))


def test_data_without_pairs_or_general_tasks_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(
        "".join(json.dumps({"prompt": f"q {i}", "answer": "1"}) + "\n" for i in range(50))
    )
    build(tmp_path / "data", Table(reader=Jsonl(path=str(tmp_path / "q.jsonl"))))
    with pytest.raises(DataError, match="Fix: give chosen and rejected columns"):
        pairs(tmp_path / "data", tmp_path / "pairs")


def test_nothing_left_to_measure_with_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"prompt": "one", "answer": "1"}\n')
    source = Table(reader=Jsonl(path=str(tmp_path / "q.jsonl")), test_fraction=0.0, dev_fraction=0.0)
    with pytest.raises(DataError, match="no task is left for test"):
        build(tmp_path / "x", source)


def test_a_shared_template_that_costs_many_prompts_is_said(tmp_path: Path) -> None:
    ask = "please think about this step by step and give only the final number : {} + {} ?"
    questions = [{"prompt": ask.format(i % 20, i // 20), "answer": str(i % 20 + i // 20)} for i in range(400)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    said: list[str] = []
    source = Table(reader=Jsonl(path=str(tmp_path / "q.jsonl")))
    with contextlib.suppress(DataError):  # it may leave nothing to train on
        build(tmp_path / "x", source, emit=lambda event: said.append(event["text"]))
    assert any("set curate.cleaning.ngram=0" in text for text in said)
