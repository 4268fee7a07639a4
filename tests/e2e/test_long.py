"""What takes minutes: the other pipelines, a whole sweep, and a stop in every stage that trains."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from datetime import datetime

import pytest

from tests.e2e.conftest import Smoke
from tests.e2e.tools import LIMIT_S, STAGES, Workplace, becomes, files_below, sha256

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
QUICK = ("orchestrator=inline", "tracking=none")
SMALL = ("model=smoke", "data.scale=0.02", "base.steps=20", *QUICK)


def test_r1_zero_runs_from_the_base_to_the_report(place: Workplace) -> None:
    done = place.r1flow("run", "pipeline=r1_zero", *SMALL, "rl.steps=3", "rl.group_size=4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(place.states().values()) == {"done"}
    assert (place.artifact("report") / "report.html").is_file()


def test_distillation_teaches_another_model_what_a_finished_run_kept(smoke: Smoke, place: Workplace) -> None:
    place.with_finished(smoke.place, *STAGES)
    teacher = [
        text.replace(" ", "")
        for text in (
            "model=smoke", "data.scale=0.02", "base.steps=20", "cold_start.epochs=1", "profile.samples=2",
            "rl_1.steps=6", "rl_1.quotas={reasoning: 8}", "rl_1.group_size=4", "rejection.prompts=20",
            "rejection.samples=2", "eval_rl_1.samples=2",
        )
    ]  # fmt: skip
    done = place.r1flow("run", "pipeline=distill", *teacher, "student_base.steps=20", "distilled.epochs=1", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    reused = {"curate", "base", "cold_start", "profile", "rl_1", "rejection", "eval_rl_1"}
    states = place.states()
    assert states == {name: "reused" if name in reused else "done" for name in states}
    assert "distilled" in (place.artifact("report") / "report.html").read_text()


def test_any_model_directory_can_take_the_place_of_the_tiny_one(smoke: Smoke, place: Workplace) -> None:
    model = smoke.place.artifact("base") / "model"
    place.with_finished(smoke.place, "curate", "preferences")
    done = place.r1flow("run", "pipeline=smoke", "model=pretrained", f"model.source.path={model}",
                        "model.max_new_tokens=24", *QUICK)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.states() == {name: "reused" if name in ("curate", "preferences") else "done" for name in STAGES}
    mine = place.artifact("base") / "model" / "model.safetensors"
    assert sha256(mine) == sha256(model / "model.safetensors")


def test_reasoning_gym_can_take_the_place_of_the_built_in_data(smoke: Smoke, place: Workplace) -> None:
    pytest.importorskip("reasoning_gym")
    model = smoke.place.artifact("base") / "model"  # it has no text to pretrain the tiny model on
    done = place.r1flow(
        "run", "pipeline=r1_zero", "model=pretrained", f"model.source.path={model}", "model.max_new_tokens=24",
        "data=reasoning_gym", "rl.steps=2", "rl.quotas.reasoning=4", "rl.group_size=4", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_sweep_over_the_whole_smoke_pipeline_shares_what_comes_before(smoke: Smoke, place: Workplace) -> None:
    place.with_finished(smoke.place, *STAGES)
    done = place.r1flow("run", "-m", "rl_1.steps=2,3", "pipeline=smoke", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    shared = {"curate", "base", "cold_start", "profile", "preferences", "eval_base", "eval_cold_start"}
    for record in place.records():
        assert {name for name, stage in record["stages"].items() if stage["state"] == "reused"} >= shared
        assert record["stages"]["report"]["state"] == "done"


def test_a_sweep_of_weights_and_seeds_builds_upstream_once_a_seed_and_goes_on_after_a_kill(place: Workplace) -> None:
    command = ("run", "-m", "pipeline=smoke", "reward.weights.format=0.1,0.2,0.4", "seed=1,2", *QUICK)
    sweep = place.start(*command)
    assert becomes(True, lambda: len(place.records()) >= 3 or sweep.poll() is not None, limit_s=4 * LIMIT_S)
    sweep.kill()
    sweep.wait()
    assert becomes({}, place.leftovers) == {}  # the run at work stopped by itself
    before = len(place.records())
    done = place.r1flow(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"going on, {before - 1} of 6 runs are done" in done.stdout
    stages = [(name, stage) for record in place.records() for name, stage in record["stages"].items()]
    built = [(name, stage["key"]) for name, stage in stages if stage["state"] == "done"]
    assert len(built) == len(set(built))
    counted = Counter(name for name, _ in built)
    upstream = {"curate", "base", "cold_start", "profile", "preferences", "eval_base", "eval_cold_start"}
    assert {name: counted[name] for name in upstream} == dict.fromkeys(upstream, 2)
    assert {counted["rl_1"], counted["rl_2"]} == {6}  # what comes after is shared where the smallest RL changes nothing
    [summary] = place.artifacts.glob("sweeps/*/summary.json")
    arms = json.loads(summary.read_text())["arms"]
    assert [(arm["label"], arm["seeds"]) for arm in arms] == [
        (f"reward.weights.format={weight}", ["1", "2"]) for weight in (0.1, 0.2, 0.4)
    ]


@pytest.mark.parametrize(
    ("stage", "longer"),
    [
        ("base", ("base.steps=300", "base.checkpoint_every=1000", "base.log_every=5")),
        ("cold_start", ("cold_start.epochs=60", "cold_start.checkpoint_every=1000", "cold_start.log_every=5")),
        ("reward_model", ("reward_model.epochs=60", "reward_model.checkpoint_every=1000", "reward_model.log_every=2")),
        ("rl_2", ("rl_2.steps=24", "rl_2.checkpoint_every=1000")),
    ],
)
def test_every_stage_that_trains_can_be_stopped_and_ends_the_same(
    smoke: Smoke, place: Workplace, tmp_path_factory: pytest.TempPathFactory, stage: str, longer: tuple[str, ...]
) -> None:
    place.with_finished(smoke.place, *STAGES)
    other = Workplace(tmp_path_factory.mktemp("whole")).with_finished(smoke.place, *STAGES)
    for user in (place, other):  # a pipeline of the user's own that ends there
        rest = "".join(f"  {name}: null\n" for name in smoke.place.downstream(stage))
        head = "# @package _global_\ndefaults: [smoke, _self_]\nstages:\n"
        (user.project / "conf" / "pipeline" / "up_to.yaml").write_text(head + rest)
    command = ("run", "pipeline=up_to", *longer, *QUICK)
    process = place.start(*command)
    log = f"cache/{stage}/*.partial/logs/metrics.jsonl"

    def is_at_work() -> bool:
        rows = [len(file.read_text().splitlines()) for file in place.artifacts.glob(log)]
        return sum(rows) >= 4 or process.poll() is not None

    assert becomes(True, is_at_work, limit_s=LIMIT_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, (place.root / "output.txt").read_text()
    assert place.states()[stage] == "interrupted"
    done = place.r1flow(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"{stage} +resuming at step \d+\n", done.stdout)

    assert other.r1flow(*command).returncode == 0
    mine, others = place.artifact(stage), other.artifact(stage)
    made = files_below(others, but=("logs",)) - {"manifest.json"}
    assert {name: sha256(mine / name) for name in made} == {name: sha256(others / name) for name in made}


def test_a_sweep_takes_hardly_longer_than_the_stages_in_which_its_runs_differ(place: Workplace) -> None:
    """Wall ≤ 1.25 · (what the first run of each seed took, upstream in it, + the others' own stages), by the records.

    All terms are from the same minutes, so that a machine that others use slows both sides down. Beyond the stages a
    run takes some 2 s: its process, reuse of the rest, records. That was 1.16 on two busy cores.
    """
    done = place.r1flow("run", "-m", "pipeline=smoke", "reward.weights.format=0.1,0.2,0.4", "seed=1,2")
    assert done.returncode == 0, done.stdout + done.stderr
    records = place.records()
    stages = [(name, stage) for record in records for name, stage in record["stages"].items()]
    built = [(name, stage["key"]) for name, stage in stages if stage["state"] == "done"]
    assert len(built) == len(set(built))
    first, others = records[:2], records[2:]
    differ_s = [
        sum(stage["wall_s"] for stage in record["stages"].values() if stage["state"] == "done") for record in others
    ]
    span_s = seconds(records[0]["started"], records[-1]["ended"])
    limit_s = 1.25 * (sum(seconds(record["started"], record["ended"]) for record in first) + sum(differ_s))
    print(f"sweep {span_s:.1f} s, limit {limit_s:.1f} s, stages that differ {[round(s, 1) for s in differ_s]} s")
    assert span_s <= limit_s


def seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
