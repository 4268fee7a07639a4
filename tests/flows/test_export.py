"""``r1flow export``: what it writes is what any other program loads, all of it or nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import ArtifactStore
from components.evaluation.summary import summarise
from components.models.load import load_model, save_model
from components.models.tiny import Tiny
from components.runtime import StageArtifact
from flows.cli import main

LINES = [f"{a} + {b} = {a + b} so the answer is {a + b}" for a in range(9) for b in range(9)]


def commit(
    store: ArtifactStore, stage: str, write: Any, settings: dict[str, Any], **inputs: StageArtifact
) -> StageArtifact:
    """A finished artifact as a run leaves it."""
    with store.claim(stage, f"key-of-{stage}") as claim:
        write(claim.draft)
        spec = {"target": f"components.stages.{stage}", "settings": settings, "seed": 7, "source": {}}
        return claim.commit(metrics={}, parents=inputs, spec=spec, wall_s=1.0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of data, a model, its evaluation and a reward model."""
    artifacts = tmp_path_factory.mktemp("finished")
    store = ArtifactStore(artifacts / "cache", run="run-1")
    model = Tiny(hidden_size=32, layers=2, heads=2, kv_heads=1, mlp=64).build(LINES, 0)
    report = {"kept": {"train": 90, "test": 9}, "dropped": {"duplicate": {"train": 3}}, "noted": {"source": ["a note"]}}
    answers = [
        {"task_id": f"t{n}", "family": "sums", "level": 0, "kind": "reasoning", "response": "<answer>1</answer>",
         "correct": float(n < 3), "format_ok": 1.0, "language": 1.0, "length": 4, "finish": "stop"}
        for n in range(12)
    ]  # fmt: skip

    def put(name: str, content: Any) -> Any:
        return lambda folder: (folder / name).write_text(json.dumps(content))

    data = commit(store, "curate", put("report.json", report), {"source": {"path": "/home/someone/secret/q.jsonl"}})
    source = {"model": {"path": "org/base", "_content_": "0123"}}
    base = commit(store, "base", lambda folder: save_model(*model, folder / "model"), source, data=data)
    commit(store, "eval_base", put("summary.json", summarise(answers)), {}, model=base, data=data)

    def scorer(folder: Path) -> None:
        save_model(*model, folder / "model")
        (folder / "head.safetensors").write_bytes(b"")

    commit(store, "reward_model", scorer, {}, model=base)
    return artifacts


def exported(finished: Path, *arguments: str) -> int:
    return main(["export", "--artifacts", str(finished), *arguments])


def test_the_directory_gives_the_same_greedy_output_in_plain_transformers(finished: Path, tmp_path: Path) -> None:
    assert exported(finished, "base/key", "--to", str(tmp_path / "out")) == 0
    code = f"""
import json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(tmp_path / "out")!r})
model = AutoModelForCausalLM.from_pretrained({str(tmp_path / "out")!r})
prompt = tokenizer.apply_chat_template(
    [{{"role": "user", "content": "3 + 4"}}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)
print(json.dumps(model.generate(**prompt, max_new_tokens=24, do_sample=False)[0].tolist()))
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    from components.models.chat import render
    from components.models.decoder import make_decoder
    from components.rollout.collect import collect
    from components.rollout.sampling import Sampling
    from components.rollout.torch_engine import TorchEngine
    from components.types import Message, Task

    model, tokenizer = load_model(finished / "cache" / "base" / "key-of-base" / "model", "cpu")
    task = Task("t", (Message("user", "3 + 4"),), None, "none")
    engine = TorchEngine(make_decoder(model), tokenizer)
    [(rollout,)] = collect(
        engine, tokenizer, render, [task], 1, Sampling(max_new_tokens=24, temperature=0.0), address=(0,)
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = [*rollout.prompt_tokens, *rollout.tokens]
    assert theirs[: len(ours)] == ours
    assert len(theirs) == len(ours)


def test_the_card_has_data_settings_figures_and_lineage_and_no_path_of_this_machine(
    finished: Path, tmp_path: Path
) -> None:
    assert exported(finished, "base/key", "--to", str(tmp_path / "out")) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "base_model: org/base" in card
    assert "| **base** | 12 × 1 | 25.0 [8, 58] |" in card  # 3 of 12, as summary.json has it
    assert "`curate`: train 90, test 9. Dropped: 3 duplicate.\n- a note" in card
    assert "| base | `components.stages.base` | curate |" in card
    assert '"seed": 7' in card
    assert "someone" not in card
    assert "…/q.jsonl" in card
    assert "_content_" not in card


def test_what_is_there_is_kept_unless_it_may_be_replaced(finished: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert exported(finished, "base/key", "--to", str(out)) == 2
    assert "holds something already (mine.txt)" in capsys.readouterr().err
    assert [file.name for file in tmp_path.rglob("*")] == ["out", "mine.txt"]
    assert exported(finished, "base/key", "--to", str(out), "--force") == 0
    assert not (out / "mine.txt").exists()
    assert (out / "model.safetensors").is_file()
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_failure_on_the_way_leaves_what_was_there(
    finished: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flows.export.shutil.copyfile", full)
    assert exported(finished, "base/key", "--to", str(out), "--force") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert {file.name for file in tmp_path.rglob("*")} == {"out", "mine.txt"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "has no finished stage of that name (got 'nothing')"),
        (["base/zzz"], "no such artifact (got 'base/zzz')"),
        (["curate/key"], "holds no language model"),
        (["reward_model/key"], "holds no language model"),
    ],
)
def test_what_is_no_model_is_refused(
    finished: Path, tmp_path: Path, capsys: Any, arguments: list[str], told: str
) -> None:
    assert exported(finished, *arguments, "--to", str(tmp_path / "out")) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line
    assert "Fix: " in line
    assert not (tmp_path / "out").exists()


def test_a_damaged_model_is_not_exported(finished: Path, tmp_path: Path, capsys: Any) -> None:
    import shutil

    copied = tmp_path / "copied"
    shutil.copytree(finished, copied)
    file = copied / "cache" / "base" / "key-of-base" / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert exported(copied, "base/key", "--to", str(tmp_path / "out")) == 2
    assert "is damaged: model/model.safetensors" in capsys.readouterr().err


@pytest.mark.slow
def test_the_evaluation_harness_runs_it_on_a_task_of_ones_own(finished: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("pip install lm_eval")
    assert exported(finished, "base/key", "--to", str(tmp_path / "out")) == 0
    (tmp_path / "q.jsonl").write_text("".join(json.dumps({"q": f"{n} + 1", "a": str(n + 1)}) + "\n" for n in range(8)))
    (tmp_path / "sums.yaml").write_text(HARNESS_TASK.format(file=tmp_path / "q.jsonl"))
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={tmp_path / 'out'}"]
    command += ["--tasks", "own_sums", "--include_path", str(tmp_path), "--apply_chat_template", "--device", "cpu"]
    command += ["--output_path", str(tmp_path / "results")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "hf")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    [file] = (tmp_path / "results").rglob("results_*.json")
    figures = json.loads(file.read_text())["results"]["own_sums"]
    assert 0.0 <= figures["exact_match,none"] <= 1.0


HARNESS_TASK = """\
task: own_sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["</answer>"], max_gen_toks: 16, do_sample: false}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
