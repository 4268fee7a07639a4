"""The driver: order, concurrency, reuse, failure, stop; with the real store and the real launchers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import ArtifactStore
from components.runtime import StageArtifact
from flows.content import with_content
from flows.launch.events import Emit
from flows.pipeline import Driver, RunResult
from flows.signals import Stop
from flows.slots import Slots
from flows.stage import StageSpec, run_stage

pytestmark = pytest.mark.timeout(180)
TOYS = "tests.flows.toy_stages_c"
IN_PROCESS = {"_target_": "flows.launch.inprocess.InProcess"}
ONE = {"_target_": "flows.launch.torchrun.Torchrun", "processes": 1}


def spec(name: str, function: str = "count", launcher: dict[str, Any] = IN_PROCESS, **more: Any) -> StageSpec:
    return StageSpec(name, f"{TOYS}.{function}", launcher=launcher, **more)


def diamond(**settings: Any) -> list[StageSpec]:
    """a → b, c → d; named in an order that isn't the one they can run in."""
    return [
        spec("d", inputs={"left": "b", "right": "c"}),
        spec("a", settings=settings),
        spec("b", inputs={"x": "a"}),
        spec("c", inputs={"x": "a"}),
    ]


class Runner:
    """Runs specs on one store and keeps the events."""

    def __init__(self, root: Path) -> None:
        self.store = ArtifactStore(root / "cache")
        self.events: list[dict[str, Any]] = []

    def __call__(self, specs: list[StageSpec], *, emit: Emit | None = None, **more: Any) -> RunResult:
        def execute(spec: StageSpec, parents: Any, launch: Any, say: Callable[[str], None]) -> StageArtifact:
            return run_stage(spec, parents, self.store, launch, say)

        self.events.clear()

        def hear(event: dict[str, Any]) -> None:
            self.events.append(event)
            if emit is not None:
                emit(event)

        return Driver(specs, execute, emit=hear, allow=("components", TOYS), **more).run()

    def states(self) -> list[tuple[str, str]]:
        return [(event["stage"], event["state"]) for event in self.events if event["event"] == "stage"]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_stages_run_after_their_inputs_and_are_reused_the_second_time(run: Runner):
    first = run(diamond())
    assert (first.state, first.exit_code) == ("done", 0)
    assert first.stages["d"].artifact is not None
    assert first.stages["d"].artifact.metrics == {"total": 1 + (1 + 1) + (1 + 1)}
    assert list(first.stages) == ["d", "a", "b", "c"]
    assert [name for name, state in run.states() if state == "done"] == ["a", "b", "c", "d"]
    second = run(diamond())
    assert {outcome.state for outcome in second.stages.values()} == {"reused"}
    assert not [state for _, state in run.states() if state == "building"]
    assert second.stages["a"].why.startswith("reused")


def test_only_what_depends_on_a_changed_setting_is_built_again(run: Runner):
    specs = [*diamond(amount=1), spec("aside")]
    run(specs)
    result = run([*diamond(amount=2), spec("aside")])
    assert {name: outcome.state for name, outcome in result.stages.items()} == {
        **dict.fromkeys("abcd", "done"),
        "aside": "reused",
    }


def test_a_failed_stage_skips_its_descendants_and_nothing_else(run: Runner):
    result = run(
        [
            spec("bad", "fail", settings={"how": "raise"}),
            spec("child", inputs={"x": "bad"}),
            spec("grandchild", inputs={"x": "child", "y": "good"}),
            spec("good"),
            spec("other", inputs={"x": "good"}),
        ]
    )
    assert {name: outcome.state for name, outcome in result.stages.items()} == {
        "bad": "failed",
        "child": "skipped",
        "grandchild": "skipped",
        "good": "done",
        "other": "done",
    }
    assert (result.state, result.exit_code) == ("failed", 1)
    assert "the answer is 43" in result.stages["bad"].why
    assert "in fail" in result.stages["bad"].details
    assert result.stages["grandchild"].why == "needs child"


def test_independent_stages_overlap_within_the_cores_and_not_beyond(run: Runner):
    def sleepers(processes: int) -> list[StageSpec]:
        launcher = {**ONE, "processes": processes}
        return [spec(f"s{i}", "sleep", launcher, settings={"seconds": 0.3 + 0.001 * processes}) for i in range(3)]

    def most_at_once(result: RunResult) -> int:
        spans = [dict(outcome.artifact.metrics) for outcome in result.stages.values() if outcome.artifact]
        return max(sum(s["begin"] <= at["begin"] < s["end"] for s in spans) for at in spans)

    assert most_at_once(run(sleepers(1), capacity=2)) == 2
    assert most_at_once(run(sleepers(2), capacity=2)) == 1  # each takes both cores
    assert most_at_once(run(sleepers(4), capacity=2)) == 1  # larger than the machine: alone, but it runs


def test_free_cores_go_to_the_first_stage_of_the_pipeline_that_fits():
    slots, stop, order = Slots(2), Stop(), []
    slots.acquire(0, 2, stop)

    def take(place: int, wanted: int) -> None:
        slots.acquire(place, wanted, stop)
        order.append(place)

    threads = [threading.Thread(target=take, args=each) for each in [(3, 1), (1, 1), (2, 2)]]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    slots.release(2)
    threads[1].join(5)
    threads[0].join(5)
    assert sorted(order) == [1, 3]  # 2 wants both cores, 1 and 3 hold one each
    slots.release(1)
    slots.release(1)
    threads[2].join(5)
    assert order[2] == 2


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_stops_at_a_checkpoint_and_the_same_run_goes_on_there(run: Runner, signum: int, code: int):
    specs = [
        spec("before", launcher=ONE),
        spec("work", "steps", {**ONE, "processes": 2}, inputs={"x": "before"}, settings={"n": 40}),
        spec("after", "sleep", ONE, inputs={"x": "work"}, settings={"seconds": 0.0}),
    ]

    def signal_at_step_5(event: dict[str, Any]) -> None:
        if event["event"] == "progress" and event["done"] == 5:
            os.kill(os.getpid(), signum)

    stop = Stop()
    with stop.installed():
        result = run(specs, emit=signal_at_step_5, stop=stop)
    assert (result.state, result.exit_code) == ("interrupted", code)
    assert {name: outcome.state for name, outcome in result.stages.items()} == {
        "work": "interrupted",
        "after": "interrupted",
        "before": "done",
    }
    result = run(specs)
    assert (result.state, result.exit_code) == ("done", 0)
    assert ("work", "resumed") in run.states()
    work = result.stages["work"].artifact
    assert work is not None
    assert work.metrics["done"] == 40
    assert 5 <= work.metrics["began"] < 40


def test_a_stop_does_not_wait_for_a_stage_that_waits_for_another_runs_lock(
    run: Runner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("flows.pipeline.GRACE_S", 0.2)
    stop, heard = Stop(), threading.Event()

    def stop_when_waiting(event: dict[str, Any]) -> None:
        if event["event"] == "say" and "waiting" in event["text"]:
            heard.set()
            stop.request(signal.SIGINT)

    one = [spec("one", launcher=ONE)]
    run(one)
    artifact = run.store.ls()[0]
    with run.store.claim("one", artifact["key"]):
        result = run(one, emit=stop_when_waiting, stop=stop)
    assert heard.is_set()
    assert result.exit_code == 130


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Stop().installed():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_driver_needs_no_cpu_while_workers_work(run: Runner):
    before = time.process_time()
    run([spec("s", "sleep", ONE, settings={"seconds": 1.5})])
    assert time.process_time() - before < 0.3  # it blocks; a loop that polls would take the whole 1.5 s


def test_events_tell_the_shape_the_states_and_the_end(run: Runner):
    run(diamond())
    assert run.events[0] == {
        "event": "run",
        "state": "running",
        "stages": [
            {"stage": "d", "inputs": {"left": "b", "right": "c"}},
            {"stage": "a", "inputs": {}},
            {"stage": "b", "inputs": {"x": "a"}},
            {"stage": "c", "inputs": {"x": "a"}},
        ],
    }
    assert run.states()[:2] == [("a", "building"), ("a", "done")]
    done = next(event for event in run.events if event.get("state") == "done" and event.get("stage") == "a")
    assert done["metrics"] == {"total": 1}
    assert Path(done["artifact"]["path"], "total").read_text() == "1"
    assert run.events[-1]["event"] == "run"
    assert run.events[-1]["exit_code"] == 0


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([spec("a", inputs={"x": "nowhere"})], "a: input x=nowhere is no stage"),
        ([spec("a", inputs={"x": "b"}), spec("b", inputs={"x": "a"})], "cycle"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused(run: Runner, specs: list[StageSpec], message: str):
    with pytest.raises(ValueError, match=message):
        run(specs)


def test_what_was_made_of_data_that_changed_meanwhile_is_not_kept_under_the_key_of_the_old(run: Runner, tmp_path: Path):
    file = tmp_path / "q.jsonl"

    def write(first: int) -> None:
        file.write_text("".join(f'{{"prompt": "question {i} ?", "answer": "{i + first}"}}\n' for i in range(60)))

    def change(event: dict[str, Any]) -> None:
        if event.get("state") == "building":
            write(100)

    write(0)
    source = {"_target_": "components.data.tables.Table", "path": str(file)}
    curate = StageSpec("curate", "components.stages.curate.curate", {}, {"source": source}, launcher=IN_PROCESS)
    specs = with_content([curate], ("components",))
    result = run(specs, emit=change)
    assert result.state == "failed"
    assert "curate.source names was changed while the run went on" in result.stages["curate"].why
    write(0)
    assert run(specs).stages["curate"].state == "done"
    assert run(specs).stages["curate"].state == "reused"
