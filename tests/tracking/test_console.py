import io

import pytest
from rich.console import Console

from components.tracking import console as module
from components.tracking.console import ConsoleView, console_table, duration

RUN = [
    {
        "event": "run",
        "state": "started",
        "run": "r-1",
        "pipeline": "r1",
        "seed": 0,
        "stages": ["curate", "base", "rl_1"],
    },
    {"event": "stage", "stage": "curate", "state": "reused", "metrics": {"tasks": 1200}},
    {"event": "stage", "stage": "base", "state": "running"},
    {"event": "progress", "stage": "base", "done": 1, "total": 10, "shown": {"loss": 2.5}},
    {"event": "stage", "stage": "base", "state": "done", "wall_s": 95.4, "metrics": {"loss": 0.67}},
    {"event": "say", "stage": "rl_1", "text": "gcd: no [bold]signal[/bold]", "level": "warning"},
    {"event": "stage", "stage": "rl_1", "state": "failed", "why": "reward raised", "wall_s": 1.0},
    {"event": "unknown", "stage": "x"},
    {"event": "run", "state": "failed"},
]


def shown(events, **options):
    out = io.StringIO()
    view = ConsoleView(console=Console(file=out, width=200, highlight=False), live=False, **options)
    for event in events:
        view(event)
    view.close()
    return out.getvalue()


def test_elsewhere_than_on_a_terminal_an_event_is_a_line():
    lines = shown(RUN).splitlines()
    assert lines[0] == "r1flow · r1 · r-1 · seed 0"
    assert lines[1].split() == ["↺", "curate", "reused", "tasks", "1,200"]
    assert lines[2].split() == ["▸", "base", "started"]
    assert lines[3].split() == ["✓", "base", "1:35", "loss", "0.670"]
    assert lines[4].split(maxsplit=2) == ["!", "rl_1", "gcd: no [bold]signal[/bold]"]
    assert lines[5].split() == ["✗", "rl_1", "1.0", "s", "reward", "raised"]
    assert lines[6].startswith("failed after")
    assert len(lines) == 7


def test_what_a_stage_said_of_itself_is_not_said_twice():
    lines = shown(
        [
            {"event": "say", "stage": "base", "text": "building: lr was 1e-3, now 2e-3"},
            {"event": "stage", "stage": "base", "state": "building", "why": "building: lr was 1e-3, now 2e-3"},
            {"event": "say", "stage": "curate", "text": "reused, built 2026-01-01 10:00"},
            {"event": "stage", "stage": "curate", "state": "reused", "why": "reused, built 2026-01-01 10:00"},
        ]
    ).splitlines()
    assert [line.split()[:2] for line in lines] == [["▸", "base"], ["↺", "curate"]]


def test_quiet_leaves_warnings_and_failures():
    lines = shown(RUN, quiet=True).splitlines()
    assert [line.split()[0] for line in lines] == ["!", "✗"]


def test_plain_progress_does_not_flood(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    view = ConsoleView(console=Console(file=out, width=200), live=False)
    for step in range(1, 101):
        clock[0] += 0.5
        view(
            {
                "event": "progress",
                "stage": "rl_1",
                "done": step,
                "total": 100,
                "shown": {"reward": 0.5, "tokens_per_s": 12345.0},
            }
        )
    lines = out.getvalue().splitlines()
    assert len(lines) == 4  # fifty seconds, one line each ten
    assert "reward 0.500" in lines[0]
    assert "12.3k" in lines[0]
    assert "tok/s" in lines[0]
    assert lines[0].rstrip().endswith("left")


def test_the_live_display_shows_who_works_and_who_waits():
    out = io.StringIO()
    terminal = Console(file=out, width=120, force_terminal=True)
    view = ConsoleView(console=terminal, live=True)
    for event in RUN[:4]:
        view(event)
    with terminal.capture() as capture:
        terminal.print(view._live.get_renderable())
    view.close()
    screen = capture.get()
    assert "base" in screen
    assert "1/10" in screen
    assert "1 of 3" in screen
    assert "↺ curate" in screen
    assert "· rl_1" in screen


def test_on_a_narrow_terminal_a_stage_at_work_is_one_line_and_a_long_remark_hangs_below_its_text(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    terminal = Console(file=out, width=80, force_terminal=True, color_system=None)
    view = ConsoleView(console=terminal, live=True)
    view({"event": "stage", "stage": "rl_1", "state": "running", "why": f"building: {'source x edited; ' * 8}"})
    shown = {"reward": 0.5, "accuracy": 0.25, "length": 20.0, "signal": 0.75, "tokens_per_s": 12345.0}
    for step in (1, 21):
        clock[0] += 10
        view({"event": "progress", "stage": "rl_1", "done": step, "total": 120, "shown": shown})
    with terminal.capture() as capture:
        terminal.print(view._live.get_renderable())
    view.close()
    [line, *_] = capture.get().splitlines()
    assert line.startswith("● rl_1 ━")
    assert "21/120  50 s left  reward 0.500" in line
    assert len(line) <= 80
    assert line.rstrip().endswith("…")
    said = out.getvalue().splitlines()
    assert said[0].startswith("▸ rl_1             building: source x edited;")
    assert len(said) > 1
    assert all(line.startswith(" " * 19) for line in said[1:])


def test_a_finding_is_one_line_even_when_quiet():
    finding = {"event": "finding", "stage": "rl_1", "step": 40, "name": "truncation", "severity": "warning"}
    lines = shown(
        [{**finding, "text": "truncation (step 40): 93% [bold] were cut off. Fix: raise it."}], quiet=True
    ).splitlines()
    assert lines == ["! rl_1             truncation (step 40): 93% [bold] were cut off. Fix: raise it."]


@pytest.mark.parametrize(("seconds", "text"), [(0.44, "0.4 s"), (12.2, "12 s"), (185, "3:05"), (3750, "1:02:30")])
def test_durations_read_naturally(seconds, text):
    assert duration(seconds) == text


def test_the_table_shows_intervals_and_what_changed():
    estimate = {"value": 0.3, "low": 0.25, "high": 0.35, "n": 100}
    better = {**estimate, "value": 0.6, "low": 0.55, "high": 0.65}
    summary = {
        "stages": [
            {"name": "base", "metrics": {"pass@1": estimate, "pass@4": estimate}, "changes": None},
            {
                "name": "rl_1",
                "metrics": {"pass@1": better, "pass@4": estimate},
                "changes": {"pass@1": {"verdict": "better", "p_holm": 0.004, "effect": 0.3}},
            },
        ]
    }
    out = io.StringIO()
    Console(file=out, width=100).print(console_table(summary))
    text = out.getvalue()
    assert "60.0 ▲**" in text
    assert "55–65" in text
    assert "pass@4" in text
    assert "unsafe" not in text
