"""A term in processes of its own: what it does there is its own rollout's failure, and nothing else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from components.rewards.isolated import GIVE_UP, Isolated
from components.rewards.mix import Mix
from tests.rewards.conftest import pairs


def isolated(term: object, **figures: object) -> Isolated:
    return Isolated(term=term, **{"seconds": 5.0, "retries": 0, **figures})  # type: ignore[arg-type]


def gone(pid: int, limit_s: float = 10.0) -> bool:
    """Whether a process ends soon; a zombie has ended."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "LookupError: no such key"),
        ("nan", "returned nan, not a finite number"),
        ("inf", "returned inf, not a finite number"),
        ("text", "returned '1.0', not a finite number"),
        ("listed", "returned [1.0, 2.0], not a finite number"),
        ("nothing", "returned None, not a finite number"),
        ("huge", "not a finite number"),
        ("leaves", "SystemExit: 3"),
        ("dies", "lost its process, which ended with code 7"),
        ("segfaults", "lost its process, which died of SIGSEGV"),
        ("broken_score", "returned a score with {'tone': inf}"),
    ],
)
def test_what_gives_no_score_is_a_failure_that_says_why(my_rewards: ModuleType, name: str, why: str) -> None:
    [score] = isolated(getattr(my_rewards, name)).batch(pairs())
    assert score.outcome == "failed"
    assert score.total == 0.0
    assert why in score.reason


@pytest.mark.parametrize("name", ["sleeps", "spins", "holds_the_interpreter"])
def test_what_hangs_is_killed_at_its_deadline(my_rewards: ModuleType, name: str) -> None:
    term = isolated(getattr(my_rewards, name), seconds=0.3)
    began = time.monotonic()
    [score] = term.batch(pairs())
    assert score.outcome == "failed"
    assert "ran over its deadline of 0.3 s and was killed" in score.reason
    assert time.monotonic() - began < 20  # the machine may be shared; the term sleeps for 60


def test_a_hang_is_its_own_rollouts_failure_and_nobody_elses(my_rewards: ModuleType) -> None:
    scores = isolated(my_rewards.odd_hangs, seconds=0.3).batch(pairs(6))
    assert [score.outcome for score in scores] == ["scored", "failed"] * 3
    assert [score.total for score in scores] == [0.0, 0.0, 2.0, 0.0, 4.0, 0.0]


def test_numbers_of_numpy_and_named_terms_arrive_as_they_are(my_rewards: ModuleType) -> None:
    assert isolated(my_rewards.numbers).batch(pairs())[0].total == 0.5
    [score] = isolated(my_rewards.named).batch(pairs())
    assert (score.total, score.terms) == (0.75, {"tone": 0.5, "wit": 1.0})
    [score] = isolated(my_rewards.unsure).batch(pairs())
    assert (score.outcome, score.reason) == ("abstained", "cannot tell")


def test_settings_and_objects_travel_to_the_process(my_rewards: ModuleType) -> None:
    assert [s.total for s in isolated(partial(my_rewards.scaled, by=0.5)).batch(pairs(2))] == [1.0, 1.0]
    counts = isolated(my_rewards.Counts(10), workers=1)
    assert [s.total for s in counts.batch(pairs(3))] == [11.0, 12.0, 13.0]
    assert counts.term.n == 10


def test_a_term_for_whole_batches_is_given_the_whole_batch(my_rewards: ModuleType) -> None:
    assert [s.total for s in isolated(my_rewards.Whole(), workers=4).batch(pairs(5))] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("name", "why"), [("Short", "returned 1 values for 3 rollouts"), ("Wordy", "returned 'ab', not 3 values")]
)
def test_a_batch_of_the_wrong_length_or_type_fails_whole(my_rewards: ModuleType, name: str, why: str) -> None:
    scores = isolated(getattr(my_rewards, name)()).batch(pairs(3))
    assert [score.outcome for score in scores] == ["failed"] * 3
    assert why in scores[0].reason


def test_the_deadline_of_a_batch_grows_with_it(my_rewards: ModuleType) -> None:
    scores = isolated(my_rewards.Slow(), seconds=0.1).batch(pairs(3))
    assert "deadline of 0.3 s" in scores[2].reason


def test_a_failure_is_tried_again_before_it_counts(my_rewards: ModuleType, tmp_path: Path) -> None:
    flaky = partial(my_rewards.second_time, note=str(tmp_path / "note"))
    assert [s.outcome for s in isolated(flaky, retries=0).batch(pairs(2))] == ["failed", "failed"]
    (tmp_path / "note").unlink()
    assert [s.outcome for s in isolated(flaky, retries=1).batch(pairs(2))] == ["scored", "scored"]
    assert sorted((tmp_path / "note").read_text().split()) == ["t0", "t0", "t1", "t1"]


def test_what_a_term_prints_and_reads_does_not_reach_the_protocol(my_rewards: ModuleType) -> None:
    assert [s.total for s in isolated(my_rewards.prints).batch(pairs(3))] == [1.0] * 3


def test_a_term_that_is_lost_on_the_first_rollouts_is_not_tried_on_the_rest(my_rewards: ModuleType) -> None:
    began = time.monotonic()
    scores = isolated(my_rewards.dies, workers=2).batch(pairs(200))
    assert {score.outcome for score in scores} == {"failed"}
    assert "ended with code 7" in scores[GIVE_UP - 1].reason
    assert f"was not tried: it failed on the first {GIVE_UP} rollouts" in scores[GIVE_UP].reason
    assert time.monotonic() - began < 30  # 200 processes would take longer


def test_a_module_that_cannot_be_imported_there_is_told_as_such(my_rewards: ModuleType, tmp_path: Path) -> None:
    term = isolated(my_rewards.short)
    (tmp_path / "elsewhere" / "my_rewards.py").write_text("raise ImportError('needs a license')")
    [score] = term.batch(pairs())
    assert "cannot be made in its own process" in score.reason
    assert "needs a license" in score.reason


@pytest.mark.parametrize("name", ["draws", "odd_hangs"])
def test_the_number_of_workers_does_not_change_a_score(my_rewards: ModuleType, name: str) -> None:
    results = [
        [
            (s.total, s.outcome)
            for s in isolated(getattr(my_rewards, name), workers=workers, seconds=0.5).batch(pairs(8))
        ]
        for workers in (1, 4)
    ]
    assert results[0] == results[1]
    assert len(set(results[0])) > 2


def test_workers_are_kept_between_calls_and_killed_with_their_owner(my_rewards: ModuleType) -> None:
    term = isolated(my_rewards.where, workers=1)
    first, again = (int(term.batch(pairs())[0].total) for _ in range(2))
    assert first == again
    term.close()
    assert gone(first)
    other = int(term.batch(pairs())[0].total)
    assert other != first
    del term
    assert gone(other)


def test_what_a_term_started_ends_with_it(my_rewards: ModuleType, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    isolated(partial(my_rewards.leaves_a_child, note=str(note)), seconds=0.5).batch(pairs())
    assert gone(int(note.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="by the kernel on Linux only")
def test_a_killed_parent_takes_even_a_frozen_worker_with_it(my_rewards: ModuleType, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    (tmp_path / "elsewhere" / "frozen.py").write_text(
        textwrap.dedent(f"""
        import ctypes, os
        from pathlib import Path
        def freeze(task, rollout):
            Path({str(note)!r}).write_text(str(os.getpid()))
            ctypes.PyDLL(None).sleep(60)
        """)
    )
    script = (
        "from components.rewards.isolated import Isolated; from tests.rewards.conftest import pairs; import frozen; "
        "Isolated(term=frozen.freeze, seconds=60).batch(pairs())"
    )
    path = os.pathsep.join([str(tmp_path / "elsewhere"), str(Path(__file__).parents[2])])
    parent = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path})
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(int(note.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the deadline is by the wall clock")
def test_a_deadline_does_not_run_while_the_machine_gives_the_process_no_core(my_rewards: ModuleType) -> None:
    busy = "while True: pass"
    term = isolated(partial(my_rewards.works, cpu_s=0.25), seconds=0.4, workers=1)
    term.batch(pairs())
    load = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        began = time.monotonic()
        [score] = term.batch(pairs())
        took = time.monotonic() - began
    finally:
        for process in load:
            process.kill()
            process.wait()
    assert score.outcome == "scored"
    if took <= 0.4:
        pytest.skip("the machine gave the process a core all the same: the wall clock would not have ended it either")


@pytest.mark.parametrize(
    ("figures", "why"), [({"seconds": 0}, "seconds"), ({"retries": -1}, "retries"), ({"workers": 0}, "workers")]
)
def test_figures_out_of_range_are_refused(my_rewards: ModuleType, figures: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        isolated(my_rewards.short, **figures)


def test_a_function_that_another_process_cannot_find_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"<lambda> cannot run in a process of its own(.|\n)*top level of a module"):
        isolated(lambda task, rollout: 1.0)


def test_a_mix_isolates_what_comes_from_outside_and_nothing_else(my_rewards: ModuleType) -> None:
    from components.rewards.format import think_then_answer

    terms = {"mine": my_rewards.where, "format": think_then_answer}
    mix = Mix(terms=terms, weights={"mine": 1.0, "format": 1.0})
    assert isinstance(mix.terms["mine"], Isolated)
    assert mix.terms["format"] is think_then_answer
    assert mix.score(pairs())[0].terms["mine"] != os.getpid()
    here = Mix(terms=terms, weights={"mine": 1.0, "format": 1.0}, isolate=False)
    assert here.score(pairs())[0].terms["mine"] == os.getpid()


def test_a_term_that_cannot_be_called_with_a_task_and_a_rollout_is_refused_at_the_start() -> None:
    def style(task: object, rollout: object, *, word: str) -> float:
        return float(bool(word))

    for term, why in ((style, "missing a required argument: 'word'"), (lambda task: 1.0, "too many positional")):
        with pytest.raises(
            ValueError, match=rf"reward.terms.mine: cannot be called .*{why}.*reward.terms.mine.ARGUMENT"
        ):
            Mix(terms={"mine": term}, weights={"mine": 1.0})
    Mix(terms={"mine": partial(style, word="so")}, weights={"mine": 1.0}, isolate=False)


def test_a_failure_names_the_term_and_its_function(my_rewards: ModuleType) -> None:
    mix = Mix(terms={"mine": my_rewards.raises}, weights={"mine": 1.0}, retries=0)
    assert "mine (my_rewards.raises) raised" in mix.score(pairs())[0].reason
