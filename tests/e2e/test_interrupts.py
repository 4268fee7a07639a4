"""Stopped anywhere and continued, a run ends where an uninterrupted one ends, bit for bit."""

from __future__ import annotations

import re
import signal

import pytest

from tests.e2e.conftest import Smoke
from tests.e2e.tools import LIMIT_S, Workplace, becomes, files_below, rollouts, sha256

pytestmark = pytest.mark.timeout(900)
BEFORE = ("curate", "base", "cold_start", "profile")
STEPS, FIRST = 24, 5  # all, and those after which a run is stopped
RUN = ("run", "pipeline=to_rl", "reward=digits", f"rl_1.steps={STEPS}", "rl_1.lr=1e-3")
QUICK = (*RUN, "orchestrator=inline", "tracking=none")


@pytest.fixture(scope="module")
def uninterrupted(smoke: Smoke, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("uninterrupted")).with_finished(smoke.place, *BEFORE)
    done = place.r1flow(*QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def result(place: Workplace) -> dict[str, str]:
    """Hashes of everything the RL stage made but its logs: weights, tokenizer, rollouts, curriculum."""
    artifact = place.artifact("rl_1")
    made = files_below(artifact, but=("logs",)) - {"manifest.json"}
    return {name: sha256(artifact / name) for name in sorted(made)}


def steps_done(place: Workplace) -> int:
    logs = place.artifacts.glob("cache/rl_1/*.partial/logs/metrics.jsonl")
    return sum(len(file.read_text().splitlines()) for file in logs)


def stop_in_the_middle(place: Workplace, signum: int, *arguments: str, **environment: str) -> tuple[int, str]:
    """Start a run and signal its driver after some steps of RL; exit code and output."""
    process = place.start(*arguments, **environment)
    assert becomes(True, lambda: steps_done(place) >= FIRST or process.poll() is not None, limit_s=LIMIT_S)
    process.send_signal(signum)
    code = process.wait(60)
    return code, (place.root / "output.txt").read_text()


def test_the_stage_under_test_learns(smoke: Smoke, uninterrupted: Workplace) -> None:
    """If nothing moved the weights, any way of continuing would end at the same ones."""
    before = sha256(smoke.place.artifact("cold_start") / "model" / "model.safetensors")
    assert result(uninterrupted)["model/model.safetensors"] != before
    assert len({row["total"] for row in rollouts(uninterrupted.artifact("rl_1"))}) > 5


def test_ctrl_c_stops_at_a_checkpoint_and_the_same_command_goes_on_there(
    smoke: Smoke, uninterrupted: Workplace, place: Workplace
) -> None:
    """With the trackers of the smoke run, which both record the interruption."""
    place.with_finished(smoke.place, *BEFORE)
    address = smoke.place.prefect_url
    store = f"sqlite:///{smoke.place.artifacts}/mlflow/mlflow.db"
    outside = {"PREFECT_API_URL": f"{address}/api", "MLFLOW_TRACKING_URI": store}
    never = "rl_1.checkpoint_every=1000"  # so that only the stop itself can have saved the step
    code, output = stop_in_the_middle(place, signal.SIGINT, *RUN, never, **outside)
    assert code == 130, output
    assert place.states()["rl_1"] == "interrupted"
    assert "Traceback" not in output
    stopped_at = steps_done(place)
    assert FIRST <= stopped_at < STEPS
    assert becomes({}, place.leftovers, limit_s=30) == {}
    run = place.records()[-1]["id"]
    assert becomes("Interrupted", lambda: smoke.place.flow_state(run)) == "Interrupted"
    assert smoke.place.mlflow("select status from runs where name = ?", run) == [("KILLED",)]

    done = place.r1flow(*QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"resuming at step {stopped_at}\n" in done.stdout
    assert result(place) == result(uninterrupted)


def test_kill_9_of_the_driver_leaves_no_orphan_and_no_lock_and_the_same_command_goes_on(
    smoke: Smoke, uninterrupted: Workplace, place: Workplace
) -> None:
    place.with_finished(smoke.place, *BEFORE)
    code, _ = stop_in_the_middle(place, signal.SIGKILL, *QUICK, "rl_1.checkpoint_every=2")
    assert code == -signal.SIGKILL
    assert becomes({}, place.processes, limit_s=10) == {}
    assert place.records()[-1]["state"] == "running"  # it could not say more; `status` knows better
    assert "killed" in place.r1flow("status").stdout

    done = place.r1flow(*QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "waiting for" not in done.stdout
    [step] = re.findall(r"resuming at step (\d+)\n", done.stdout)
    assert FIRST - 1 <= int(step) < STEPS
    assert int(step) % 2 == 0
    assert result(place) == result(uninterrupted)
