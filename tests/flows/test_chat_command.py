"""``r1flow chat`` with a real, untrained model."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from flows.chat import chat, find_model, split_response
from flows.cli import main
from flows.errors import BadInput

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from components.models.load import save_model
    from components.models.tiny import Tiny

    directory = tmp_path_factory.mktemp("chat") / "artifact" / "model"
    tiny = Tiny(hidden_size=32, layers=1, heads=2, kv_heads=1, mlp=64, vocab_size=400)
    lines = [f"{a}+{b}={a + b}" for a in range(20) for b in range(20)]
    save_model(*tiny.build(lines, seed=0), directory)
    return directory


def test_thinking_and_answer_are_told_apart():
    assert split_response("<think>1+1\n=2</think>\n<answer>2</answer>") == ("1+1\n=2", "2")
    assert split_response("<think>without an end") == ("without an end", "")
    assert split_response("plain words") == ("", "plain words")


def test_each_line_is_answered_and_a_question_that_is_too_long_is_refused(model, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("1+2\n\n" + "9+9+" * 2000 + "1\n3+4\n"))
    shown = io.StringIO()
    chat(model, max_new_tokens=8, temperature=0.0, seed=0, keep=True, console=Console(file=shown, width=10_000))
    assert "too long" in shown.getvalue()
    assert shown.getvalue().count("cut at the token limit") + shown.getvalue().count("(no answer)") >= 2


def test_a_model_is_found_by_path_by_artifact_and_by_stage_of_the_latest_run(model, tmp_path):
    assert find_model(tmp_path, str(model)) == model
    assert find_model(tmp_path, str(model.parent)) == model
    run = tmp_path / "runs" / "20260101-000000-amber"
    run.mkdir(parents=True)
    content = {
        "schema": 1,
        "id": run.name,
        "state": "done",
        "stages": {"rl_1": {"state": "done", "path": str(model.parent)}},
    }
    (run / "run.json").write_text(json.dumps(content))
    assert find_model(tmp_path, "rl_1") == model
    with pytest.raises(BadInput, match="did you mean rl_1"):
        find_model(tmp_path, "rl_2")


def damaged(model, tmp_path, name, change):
    """A copy of the model in which one file is another."""
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    change(copy / name)
    return copy


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.safetensors", lambda file: file.write_bytes(b"garbage")),
        ("model.safetensors", lambda file: file.write_bytes(file.read_bytes()[:1000])),
        ("model.safetensors", lambda file: file.unlink()),
        ("config.json", lambda file: file.write_text("garbage")),
        ("config.json", lambda file: file.write_text(file.read_text().replace('": 32', '": 64'))),
        ("tokenizer.json", lambda file: file.write_text("garbage")),
        ("tokenizer.json", lambda file: file.unlink()),
    ],
    ids=["garbage", "cut off", "no weights", "config", "another shape", "tokenizer", "no tokenizer"],
)  # fmt: skip
def test_a_model_that_cannot_be_loaded_is_told_in_one_line(model, tmp_path, capsys, monkeypatch, name, change):
    copy = damaged(model, tmp_path, name, change)
    monkeypatch.setattr("sys.stdin", io.StringIO("1+2\n"))
    assert main(["chat", str(copy)]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("chat: this model can't be loaded (")
    assert str(copy) in line
    assert "Fix: " in line
    assert "Traceback" not in line


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
def test_input_that_is_not_utf_8_is_told_with_its_line_after_what_came_before(model, locale):
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "chat", str(model), "--max-new-tokens", "2"],
        input=b"1+2\n\xff\xfe\n",
        cwd=ROOT,
        env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": "1" if locale == "POSIX" else "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    *_, line = done.stderr.decode().splitlines()
    assert line.startswith("chat line ") and line.endswith(": is not UTF-8. Fix: save the text as UTF-8.")
    assert b"Traceback" not in done.stderr
