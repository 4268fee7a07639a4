"""What can only fail is refused before anything is built: one line a problem, with the remedy."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.compose import compose
from flows.errors import BadInput
from flows.launch import devices
from flows.notes import notes
from flows.run import prepare
from flows.sweep import expand

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"


def rows(file: Path, n: int, **more: str) -> str:
    lines = [{"prompt": f"how much is {i} plus {i} ?", "answer": str(2 * i), **more} for i in range(n)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def refused(tmp_path: Path, *overrides: str) -> list[str]:
    with pytest.raises(BadInput) as caught:
        prepare([f"artifacts={tmp_path / 'artifacts'}", *overrides])
    lines = str(caught.value).splitlines()
    assert all(" Fix: " in line for line in lines)
    assert not (tmp_path / "artifacts").exists()
    return lines


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rl_1.inputs.model=curate", "rl_1 inputs.model: curate gives data, not a model (got 'curate')"),
        ("rl_1.inputs.model=null", "rl_1 inputs.model: is missing: this stage needs a model"),
        ("eval_rl_2.inputs.model=reward_model", "reward_model gives a reward model, not a model"),
        ("sft_2.inputs.rejection=null", "sft_2 files.rejection: no such input"),
        ("data.scale=-1", "curate source.scale: must be positive, got -1.0"),
        ("data.pretrain_lines=-5", "curate source.pretrain_lines: must not be negative"),
        ("model.source.hidden_size=7", "base model.hidden_size: 7 must be an even multiple of heads=4. Fix: write 8"),
        ("model.source.kv_heads=3", "base model.heads: 4 must be a multiple of kv_heads=3"),
        ("model.hidden_size=7", "model.hidden_size: no such key 'hidden_size'"),
        ("rl_1.reward.weights.format=nan", "rl_1 reward.weights.format: is not a finite number (got nan)"),
        ("rl_1.optimizer.betas=[0.9,inf]", "rl_1 optimizer.betas.1: is infinite (got inf)"),
        ("rl_1.quotas={}", "rl_1 quotas: needs at least one prompt of each kind (got {})"),
        ("rl_1.algorithm=vapo rl_1.algorithm.critic.warmup_steps=-1", "algorithm.critic: warmup_steps=-1 is negative"),
        ("only=5", "only: is not a mapping (got 5)"),
        ("stages=5", "stages: is not a mapping (got 5)"),
        ("only={rl_1:5}", "only.rl_1: is not a mapping (got 5)"),
        ("cache.code=ingore", "cache.code: no such choice (got 'ingore'). Fix: did you mean ignore?"),
        ("cache=5", "cache: is not a mapping"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_work(tmp_path: Path, override: str, told: str) -> None:
    [line] = refused(tmp_path, *override.split())
    assert told in line


def test_a_gpu_that_is_not_there(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(devices, "cuda_devices", lambda: 0)
    monkeypatch.setattr("flows.launch.torchrun.cuda_devices", lambda: 0)
    [line] = refused(tmp_path, "launcher.device=cuda")
    assert "launcher.device: cuda for 2 processes, and this machine has 0 CUDA devices" in line
    monkeypatch.setattr("flows.launch.torchrun.cuda_devices", lambda: 1)
    assert "Fix: processes=1 uses what there is" in refused(tmp_path, "launcher.device=cuda")[0]
    for known in (2, 8, None):  # None: only torch can tell
        monkeypatch.setattr("flows.launch.torchrun.cuda_devices", lambda known=known: known)
        assert prepare([f"artifacts={tmp_path}", "launcher.device=cuda"])


@pytest.mark.skipif(Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_known_as_one() -> None:
    assert devices.cuda_devices() == 0


@pytest.mark.parametrize(
    "path", ["", "x" * 300, "/tmp/" + "x/" * 2000, "file", "file/below", "dangling", "dangling/below"]
)
def test_a_place_for_artifacts_that_is_none(tmp_path: Path, monkeypatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadInput) as caught:
        prepare([f"artifacts={path}"])
    [line] = str(caught.value).splitlines()
    assert line.startswith("configuration artifacts: ")
    assert len(line) < 300
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["dangling", "file"]


@pytest.mark.parametrize("name", ["cache", "runs", "mlflow"])
def test_a_file_where_a_run_wants_a_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(BadInput, match=rf"artifacts: is not a directory \(got '.*{name}'\)"):
        prepare([f"artifacts={tmp_path}"])


def test_a_sweep_without_values() -> None:
    with pytest.raises(BadInput, match=r"seed=range\(0,0\): has no values. Fix: list some"):
        expand(["seed=range(0,0)"])


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        # r1 learns from traces and pairs, and its second round needs general tasks
        (
            ["n=300"],
            ["cold_start files: there is nothing", "preferences: the data have no pairs", "rl_2 quotas.unsafe"],
        ),
        (["n=300", "trace=add"], ["preferences: the data have no pairs", "rl_2 quotas.unsafe"]),
        (["n=300", "pipeline=r1_zero"], []),
        (["n=3", "pipeline=r1_zero"], ["base batch_size: 20 rows", "rl quotas.reasoning: 32 prompts a step, and"]),
        (
            ["n=3", "pipeline=r1_zero", "data.test_fraction=0.0"],
            ["curate source: too little data, no task is left for test", "base batch_size", "rl quotas.reasoning"],
        ),
        (["n=300", "pipeline=r1_zero", "rl.quotas.boxes=2"], ["rl quotas.boxes: the data have no such tasks"]),
    ],
)
def test_data_that_lack_what_the_pipeline_learns_from(tmp_path: Path, overrides: list[str], told: list[str]) -> None:
    own = dict(text.split("=") for text in overrides if text.split("=")[0] in ("n", "trace"))
    path = rows(tmp_path / "q.jsonl", int(own.pop("n")), **own)
    rest = [text for text in overrides if text.split("=")[0] not in ("n", "trace")]
    arguments = ["data=jsonl", f"data.path={path}", *rest]
    if not told:
        assert prepare([f"artifacts={tmp_path}", *arguments])
        return
    lines = refused(tmp_path, *arguments)
    for text in told:
        assert any(text in line for line in lines), (text, lines)


def test_data_of_another_kind(tmp_path: Path, monkeypatch) -> None:
    lines = refused(tmp_path, "data=reasoning_gym", "pipeline=r1_zero")
    assert lines == [
        "stage base model: the data have no text to pretrain it on. "
        "Fix: model=pretrained model.source.path=DIR_OR_HUB_NAME."
    ]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, package=None: None if name == "reasoning_gym" else found(name, package)
    )
    [line] = refused(tmp_path, "data=reasoning_gym", "pipeline=r1_zero", "model=pretrained", "model.source.path=a/b")
    assert "curate source: needs the package reasoning-gym. Fix: pip install 'r1flow[reasoning-gym]'" in line


def test_json_nested_too_deep(tmp_path: Path) -> None:
    file = tmp_path / "deep.jsonl"
    file.write_text('{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    [line] = refused(tmp_path, "data=jsonl", f"data.path={file}")
    assert "deep.jsonl:1 line: is nested too deep to be read" in line


@pytest.mark.parametrize("columns", ["data.columns={prompt: question}", "data.columns.prompt=question"])
def test_columns_are_named_without_a_sign(tmp_path: Path, columns: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text("".join(json.dumps({"question": f"{i} ?", "answer": i}) + "\n" for i in range(300)))
    overrides = [f"artifacts={tmp_path}", "data=jsonl", f"data.path={file}", "pipeline=r1_zero", columns]
    curate = next(spec for spec in prepare(overrides).specs if spec.name == "curate")
    assert curate.settings["source"]["columns"] == {"prompt": "question"}


def test_a_stage_can_be_taken_away_by_its_name(tmp_path: Path) -> None:
    assert "report" not in {spec.name for spec in prepare([f"artifacts={tmp_path}", "~report"]).specs}
    lines = refused(tmp_path, "~rl_2")
    assert any("eval_rl_2 inputs.model: no such stage (got 'rl_2')" in line for line in lines)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["algorithm=dapo", "rl_1.beta=0.1"], "stage rl_1 beta=0.1 has no effect: this algorithm has no KL term."),
        (["algorithm=rloo", "rl_1.beta=0.1"], "stage rl_1 beta=0.1 has no effect: the KL term has its own, 0.05."),
        (["rl_1.beta=0.1"], None),
        (["algorithm=dapo", "rl_1.beta=0"], None),
        (["algorithm=dapo"], None),  # the pipeline's own beta for rl_2 is for algorithms that have the term
    ],
)
def test_a_coefficient_that_nothing_uses_is_mentioned(tmp_path: Path, overrides: list[str], told: str | None) -> None:
    prepared = prepare([f"artifacts={tmp_path}", *overrides])
    found = list(notes(prepared.config, prepared.specs))
    assert [line.startswith(told or "-") for line in found] == ([True] if told else [])


def test_code_of_the_users_own_that_is_no_python(tmp_path: Path, monkeypatch, capsys) -> None:
    from flows.cli import main

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_broken.py").write_text("def reward(task, rollout)\n    return 1\n")
    reward = "rl_1.reward={_target_: own_broken.reward, _partial_: true}"
    assert main(["plan", "pipeline=r1_zero", reward.replace("rl_1", "rl"), "allow=[own_broken]"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "own_broken.py:1: is not Python" in line
    assert "Fix: " in line


def test_a_wrong_shape_in_a_users_own_file(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "odd.yaml").write_text("# @package _global_\nstages:\n  a: 5\n")
    with pytest.raises(BadInput, match=r"stages\.a: is not a mapping \(got 5\)"):
        compose(["pipeline=odd"], tmp_path)


def test_a_pipeline_whose_stages_land_where_nothing_reads_them(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "late.yaml").write_text("# my pipeline\n# @package _global_\nstages:\n  a: {b: 5}\n")
    with pytest.raises(BadInput, match=r"pipeline: its stages stand under 'pipeline'.*first line") as caught:
        compose(["pipeline=late"], tmp_path)
    assert "@package _global_" in str(caught.value)


# --- the streams -----------------------------------------------------------------------------------------------------


def shell(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FIXTURES}"}
    command = script.replace("r1flow", f"{sys.executable} -m flows.cli")
    return subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def state(tmp_path: Path) -> str:
    return json.loads(sorted(tmp_path.glob("artifacts/runs/*/run.json"))[-1].read_text())["state"]


RUN = f"r1flow run --config-dir {FIXTURES / 'conf'}"


def test_who_stops_reading_a_runs_output_does_not_stop_the_run(tmp_path: Path) -> None:
    done = shell(tmp_path, f"{RUN} | head -n 1; echo code ${{PIPESTATUS[0]}}")
    assert done.stdout.splitlines()[-1] == "code 0"
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""
    assert state(tmp_path) == "done"


def test_a_failed_run_that_nobody_reads_still_fails(tmp_path: Path) -> None:
    done = shell(tmp_path, f"{RUN} second.fail=true | head -n 1; echo code ${{PIPESTATUS[0]}}")
    assert done.stdout.splitlines()[-1] == "code 1"
    assert state(tmp_path) == "failed"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        (f"{RUN} > /dev/full", 0, "r1flow: the output can't be written: No space left on device.\n"),
        (f"{RUN} > /dev/full 2> /dev/full", 0, ""),
        (f"{RUN} >&-", 0, ""),
        ("r1flow status > /dev/full", 1, "r1flow: the output can't be written: No space left on device.\n"),
        ("r1flow --help > /dev/full", 1, "r1flow: the output can't be written: No space left on device.\n"),
    ],
)
def test_output_that_cannot_be_written_is_said_once_and_ends_no_run(
    tmp_path: Path, where: str, code: int, said: str
) -> None:
    done = shell(tmp_path, where)
    assert (done.returncode, done.stderr) == (code, said)
    if "run" in where:
        assert state(tmp_path) == "done"
