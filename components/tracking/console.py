"""The run as a person sees it: a live display on a terminal, one plain line an event elsewhere, a table at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from components.tracking.events import Event, numbers, stage_state
from components.tracking.table import console_table as console_table  # shown at the end of a run

_MARKS = {
    "done": ("✓", "green"),
    "reused": ("↺", "cyan"),
    "failed": ("✗", "red"),
    "interrupted": ("■", "yellow"),
    "skipped": ("–", "dim"),
}
# How a stage says what becomes of it; anything else it says is a remark.
_OPENINGS = {
    "reused": ("↺", "cyan"),
    "building": ("▸", "blue"),
    "resuming": ("▸", "blue"),
    "rebuilding": ("▸", "yellow"),
}
# What a finished stage is remembered by, the first few that it has.
_BRIEF = ("pass@1", "reward", "accuracy", "pass_rate", "kept", "tasks", "unsafe_refused", "benign_answered", "loss")
_PLAIN_EVERY_S = 10.0


class ConsoleView:
    """Listener that shows a run.

    Args:
        quiet: show failures and warnings only.
        console: where to write; a terminal gets the live display, anything else plain lines.
        live: force the one or the other.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        console: Console | None = None,
        file: TextIO | None = None,
        live: bool | None = None,
    ) -> None:
        self.console = console or Console(file=file, highlight=False)
        self.quiet = quiet
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._said: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._began = time.monotonic()
        on_terminal = self.console.is_terminal if live is None else live
        self._live = None
        if on_terminal and not quiet:
            self._live = Live(_Screen(self), console=self.console, refresh_per_second=2, transient=True)

    def __call__(self, event: Event) -> None:
        handle = getattr(self, f"_on_{event.get('event')}", None)
        if handle is not None:
            with self._lock:
                handle(event)

    def close(self) -> None:
        """Take the live display away; finished stages stay on the screen."""
        if self._live is not None and self._live.is_started:
            self._live.stop()

    def _on_run(self, event: Event) -> None:
        if event.get("state") == "started":
            self._began = time.monotonic()
            self._states = dict.fromkeys(map(str, event.get("stages", ())), "waiting")
            named = [str(event[key]) for key in ("pipeline", "run") if event.get(key)]
            seed = [f"seed {event['seed']}"] if "seed" in event else []
            self._print(Text(" · ".join(["r1flow", *named, *seed]), style="bold"))
            if self._live is not None:
                self._live.start()
        else:
            self.close()
            self._print(f"{event.get('state')} after {duration(time.monotonic() - self._began)}")

    def _on_stage(self, event: Event) -> None:
        name, state = str(event["stage"]), stage_state(event)
        self._states[name] = state
        if state == "waiting":
            return
        why = str(event.get("why") or "")
        if state == "running":
            self._running[name] = _Running(name)
            if why != self._said.get(name):
                self._print(_line("▸", "blue", name, why or "started"))
            return
        started = self._running.pop(name, None)
        if state not in _MARKS or (state == "reused" and why and why == self._said.get(name)):
            return
        mark, colour = _MARKS[state]
        wall = event.get("wall_s") or (time.monotonic() - started.began if started else None)
        took = duration(wall) if wall is not None and state in ("done", "failed", "interrupted") else state
        detail = why if state in ("failed", "skipped", "interrupted") else _brief(event.get("metrics") or {})
        self._print(_line(mark, colour, name, f"{took:>8}   {detail}".rstrip()), always=state == "failed")

    def _on_progress(self, event: Event) -> None:
        name = str(event["stage"])
        running = self._running.setdefault(name, _Running(name))
        running.update(int(event["done"]), int(event["total"]), event.get("shown") or {})
        now = time.monotonic()
        if self._live is None and now - running.printed >= _PLAIN_EVERY_S and running.done < running.total:
            running.printed = now
            self._print(_line(" ", "", name, running.text()))

    def _on_say(self, event: Event) -> None:
        warning, text = event.get("level") == "warning", str(event["text"])
        opening = next((mark for word, mark in _OPENINGS.items() if text.startswith(word)), ("·", "dim"))
        mark, colour = ("!", "yellow") if warning else opening
        name = str(event.get("stage") or "r1flow")
        self._said[name] = text
        self._print(_line(mark, colour, name, text), always=warning)

    def _on_finding(self, event: Event) -> None:
        colour = "red" if event.get("severity") == "error" else "yellow"
        self._print(_line("!", colour, str(event["stage"]), str(event["text"])), always=True)

    def _on_gate(self, event: Event) -> None:
        if event.get("passed"):  # else it is told as a finding
            self._print(_line("✓", "green", str(event["stage"]), str(event["text"])))

    def _print(self, what: RenderableType | _Line, always: bool = False) -> None:
        if self.quiet and not always:
            return
        if self._live is not None and isinstance(what, _Line):
            self.console.print(what.hanging())
        else:
            # Plain output is read by machines: one event is one line, however narrow they claim to be.
            self.console.print(what.text() if isinstance(what, _Line) else what, soft_wrap=self._live is None)


class _Running:
    """Progress of a stage that is at work."""

    def __init__(self, name: str) -> None:
        self.name, self.began = name, time.monotonic()
        self.done = self.total = self.first = 0
        self.first_at = self.began
        self.shown: Mapping[str, Any] = {}
        self.printed = self.began

    def update(self, done: int, total: int, shown: Mapping[str, Any]) -> None:
        if total != self.total or done < self.done:  # a stage may count several things, one after the other
            self.first, self.first_at = done, time.monotonic()
        self.done, self.total, self.shown = done, total, shown

    def left_s(self) -> float | None:
        """Seconds to go at the pace seen so far; None before there is a pace."""
        moved, spent = self.done - self.first, time.monotonic() - self.first_at
        return (self.total - self.done) * spent / moved if moved > 0 and spent > 1 else None

    def text(self, *, left_first: bool = False) -> str:
        """Steps, figures and time left; the latter first where the end may be cut off."""
        left = self.left_s()
        shown = [f"{_label(key)} {_number(key, value)}" for key, value in self.shown.items()]
        steps = f"{self.done:,}/{self.total:,}" if self.total else ""
        to_go = f"{duration(left)} left" if left is not None else ""
        parts = [steps, to_go, *shown] if left_first else [steps, *shown, to_go]
        return "  ".join(part for part in parts if part)


class _Screen:
    """The live part: stages at work with their bars, then the whole pipeline, each stage with its state."""

    def __init__(self, view: ConsoleView) -> None:
        self.view = view

    def __rich__(self) -> RenderableType:
        whole, running = self.view.console.width, list(self.view._running.values())
        bar, name = 10 if whole < 100 else 24, max([len(stage.name) for stage in running], default=0)
        table = Table.grid(padding=(0, 1, 0, 0))
        for width in (1, name, bar, 7, max(10, whole - name - bar - 13)):
            table.add_column(no_wrap=True, width=width, overflow="ellipsis")
        for stage in running:
            done = ProgressBar(total=max(1, stage.total), completed=stage.done, width=bar, pulse=stage.total == 0)
            spent = Text(duration(time.monotonic() - stage.began), justify="right")
            text = Text(stage.text(left_first=True))
            table.add_row(Text("●", style="blue"), Text(stage.name, style="bold"), done, spent, text)
        return Group(table, *self._pipeline(whole))

    def _pipeline(self, width: int) -> list[Text]:
        """Time, and every stage with its state, in lines of this width."""
        states = dict(self.view._states)
        ended = sum(state in _MARKS for state in states.values())
        parts = [(f"  {duration(time.monotonic() - self.view._began)} · {ended} of {len(states)}", "dim")]
        for name, state in states.items():
            mark, colour = _MARKS.get(state, ("●", "blue") if name in self.view._running else ("·", "dim"))
            parts.append((f"  {mark} {name}", colour))
        lines = [Text()]
        for text, style in parts:
            if len(lines[-1]) + len(text) > width:
                lines.append(Text())
            lines[-1].append(text, style=style)
        return lines


@dataclass(frozen=True)
class _Line:
    """Mark, stage and text of one event."""

    mark: str
    colour: str
    name: str
    what: str

    def text(self) -> Text:
        style = "bold" if self.colour != "dim" else "dim"
        return Text.assemble((f"{self.mark} ", self.colour), (f"{self.name:<16} ", style), self.what)

    def hanging(self) -> Table:
        """For a terminal: what does not fit goes on below the text."""
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, min_width=16)
        table.add_column(overflow="fold", ratio=1)
        style = "bold" if self.colour != "dim" else "dim"
        table.add_row(Text(self.mark or " ", style=self.colour), Text(self.name, style=style), Text(self.what))
        return table


def _line(mark: str, colour: str, name: str, text: str) -> _Line:
    return _Line(mark, colour, name, text)


def _brief(metrics: Mapping[str, Any]) -> str:
    found = numbers(metrics)
    return "  ".join(f"{_label(key)} {_number(key, found[key])}" for key in [k for k in _BRIEF if k in found][:3])


def _label(key: str) -> str:
    return "tok/s" if key == "tokens_per_s" else key.replace("_", " ")


def _number(key: str, value: Any) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    if key == "tokens_per_s":
        return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"
    whole = float(value).is_integer() and (abs(value) >= 2 or key in ("kept", "tasks"))
    return f"{value:,.0f}" if whole else f"{value:.3f}"


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3:05``, ``1:02:30``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
