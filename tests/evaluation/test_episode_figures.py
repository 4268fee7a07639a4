"""Figures of agents: reliability, steps, invalid calls, tasks longer than trained; by hand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from components.evaluation.metrics import pass_at_k, pass_hat_k
from components.evaluation.page.figures import columns, episodes
from components.evaluation.page.notes import make_notes
from components.evaluation.page.sources import Sources
from components.evaluation.page.view import render
from components.evaluation.summary import compare, summarise
from components.tracking.table import console_table


def row(task, correct, **more):
    base = {
        "task_id": task, "family": "follow", "level": 2, "kind": "reasoning", "response": "<think>a</think>",
        "correct": correct, "format_ok": True, "language": 1.0, "length": 10, "finish": "stop", "sample": 0,
        "steps": 2.0, "invalid_calls": 0.0, "tools": 2, "steps_needed": 2, "held_out": "", "prompt": "p", "gold": "1",
    }  # fmt: skip
    return base | more


ROWS = [
    *(row("a", c, invalid_calls=i) for c, i in ((1, 0.0), (1, 2.0), (1, 0.0), (0, 0.0))),
    *(row("b", c, tools=7, level=3, steps=4.0) for c in (1, 1, 1, 1)),
    *(row("c", c, level=10, steps=6.0, steps_needed=6, held_out="longer") for c in (1, 0, 0, 0)),
]


def test_all_of_k_tries_succeed_as_often_as_choosing_among_them_says():
    assert pass_hat_k(4, 3, 1) == 0.75
    assert pass_hat_k(4, 3, 2) == 0.5  # 3 of 6 pairs
    assert pass_hat_k(4, 3, 4) == 0.0
    assert pass_hat_k(4, 4, 4) == 1.0
    assert pass_hat_k(5, 2, 2) == pytest.approx(0.1)
    assert all(pass_hat_k(6, c, 3) <= c / 6 <= pass_at_k(6, c, 3) for c in range(7))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match=r"pass\^k needs"):
        pass_hat_k(n, c, k)


def test_figures_of_episodes_by_hand():
    value = {name: e["value"] for name, e in summarise(ROWS)["metrics"].items()}
    assert value["pass@1"] == pytest.approx((0.75 + 1) / 2)
    assert value["pass^4"] == 0.5
    assert value["pass@4"] == 1.0
    assert value["steps"] == 3.0
    assert value["invalid_calls"] == 0.25
    assert value["longer"] == 0.25
    assert value["length"] == 10


def test_tasks_longer_than_trained_count_in_no_figure_of_accuracy_length_steps_or_calls():
    short = [r for r in ROWS if r["held_out"] == ""]
    with_longer, without = summarise(ROWS), summarise(short)
    form = {"format_rate", "language_rate", "truncated"}  # of all responses
    assert {n: e for n, e in with_longer["metrics"].items() if n not in form | {"longer"}} == {
        n: e for n, e in without["metrics"].items() if n not in form
    }
    assert with_longer["by_level"] == without["by_level"]


def test_by_tools_offered_and_by_steps_needed():
    summary = summarise(ROWS)
    assert {n: e["correct"]["value"] for n, e in summary["by_tools"].items()} == {"2": 0.75, "7": 1.0}
    assert {n: e["invalid_calls"]["value"] for n, e in summary["by_tools"].items()} == {"2": 0.5, "7": 0.0}
    assert {n: e["correct"]["value"] for n, e in summary["by_steps"].items()} == {"2": 0.875, "6": 0.25}
    assert summary["by_steps"]["6"]["pass^4"]["value"] == 0.0


def test_answers_without_tools_have_none_of_these_figures():
    of_episodes = ("steps", "invalid_calls", "tools", "steps_needed")
    plain = [{name: value for name, value in r.items() if name not in of_episodes} for r in ROWS[:8]]
    summary = summarise(plain)
    assert "by_tools" not in summary and "by_steps" not in summary
    assert not {name for name in summary["metrics"] if name in ("steps", "invalid_calls", "longer") or "^" in name}


def test_fewer_invalid_calls_and_steps_are_better():
    before = [row(f"t{i}", 1, invalid_calls=1.0 + i % 2, steps=4.0 + i % 2) for i in range(30) for _ in range(2)]
    after = [row(f"t{i}", 1, invalid_calls=0.0, steps=3.0) for i in range(30) for _ in range(2)]
    changes = compare(before, after)
    assert (changes["invalid_calls"]["effect"], changes["steps"]["effect"]) == pytest.approx((-1.5, -1.5))
    assert changes["invalid_calls"]["verdict"] == changes["steps"]["verdict"] == "better"
    assert compare(after, before)["invalid_calls"]["verdict"] == "worse"


def stage(name, rows, changes=None):
    head = {"name": name, "evaluation": f"eval_{name}", "rl": False, "against": None, "changes": changes}
    return head | summarise(rows)


def test_the_page_and_the_console_show_them():
    stages = [stage("cold_start", ROWS), stage("rl_1", ROWS, compare(ROWS, ROWS))]
    assert columns(stages, ("pass@", "pass^", "steps")) == ["pass@4", "pass^4", "steps"]
    tables = episodes(stages)
    assert [(table["title"], table["numbers"]) for table in tables] == [
        ("tools offered", ["2", "7"]),
        ("steps needed", ["2", "6"]),
    ]
    page = render(Sources({}, []), stages, [], [], [], attribution={"stages": [], "controls": []}, title="t", seed=0)
    assert "Episodes with tools" in page and "pass^4" in page
    console = Console(width=200, file=io.StringIO())
    console.print(console_table({"stages": stages}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "pass^4" in text and "invalid" in text and "0.25" in text and "tokens" not in text


def test_notes_tell_how_far_to_rely_on_it_and_what_longer_tasks_did():
    stages = [stage("cold_start", ROWS), stage("rl_1", ROWS, compare(ROWS, ROWS))]
    titles = {note.title: note for note in make_notes(stages, Sources({}, []))}
    assert "in all 4 of them" in titles["How far to rely on it"].text
    assert titles["It does not carry on to longer tasks"].tone == "warn"
    better = [*ROWS[:8], *(row("c", 1, held_out="longer") for _ in range(4))]
    assert "It carries on to longer tasks" in {n.title for n in make_notes([stage("rl_1", better)], Sources({}, []))}
