"""What the figures say in words, the unwelcome included. Every note is computed; none is written in advance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from components.evaluation.page.sources import Sources

Tone = Literal["good", "warn", "info"]
LABELS = {
    "format_rate": "format rate",
    "language_rate": "language rate",
    "macro_pass@1": "pass@1 averaged over families",
    "length": "length in tokens",
    "truncated": "share cut off",
    "unsafe_refused": "unsafe refused",
    "benign_answered": "benign answered",
    "safety_mean": "mean of both",
    "over_refusal": "over-refusal",
    "self_correction": "self-correction",
    "invalid_calls": "invalid calls an episode",
    "steps": "steps an episode",
    "longer": "one step more than trained",
}
COUNTS = ("length", "steps", "invalid_calls")  # figures that are no shares


@dataclass(frozen=True)
class Note:
    """One remark: "good", "warn" (look here) or "info"."""

    tone: Tone
    title: str
    text: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def make_notes(stages: Sequence[Mapping[str, Any]], sources: Sources, on_lift: Sequence[Note] = ()) -> list[Note]:
    """All remarks on a run, in reading order.

    Args:
        on_lift: remarks on what gains are made of; they follow those on the gains.
        stages: evaluated stages as in the report's summary: name, rl, metrics, changes, by_family, length_slope.
    """
    notes: list[Note] = []
    if stages and all(stage["metrics"].get("pass@1", {}).get("value") == 0 for stage in stages):
        notes.append(Note("warn", "Nothing is solved", "No stage gave a single right answer to a reasoning prompt."))
    else:
        notes += [note for stage in stages if stage["changes"] for note in _effect(stage)]
    notes += on_lift
    if stages:
        notes += _safety(stages[-1])
        notes += _families(stages)
        notes += _thinking(stages[-1])
        notes += _episodes(stages)
    notes += _signal(sources)
    notes += _data(sources)
    if stages:
        notes += _resolution(stages[-1])
    return notes


def points(change: Mapping[str, float]) -> str:
    """ "+12.3 points [+8.1, +16.5]"."""
    return f"{100 * change['effect']:+.1f} points {_range(change, 100)}"


def _told(name: str, change: Mapping[str, float]) -> str:
    return f"{change['effect']:+.2f} {_range(change)}" if name in COUNTS else points(change)


def _range(change: Mapping[str, float], scale: float = 1) -> str:
    return f"[{scale * change['low']:+.1f}, {scale * change['high']:+.1f}]"


def percent(estimate: Mapping[str, float]) -> str:
    """ "57 % [53, 61]"."""
    return f"{100 * estimate['value']:.0f} % [{100 * estimate['low']:.0f}, {100 * estimate['high']:.0f}]"


def _effect(stage: Mapping[str, Any]) -> Iterator[Note]:
    """What a stage did to accuracy: more of what was possible, or newly possible; and what it paid."""
    name, changes = stage["name"], stage["changes"]
    one = changes.get("pass@1")
    if one is None:
        return
    several = next((m for m in changes if m.startswith("pass@") and m != "pass@1"), None)
    if one["verdict"] == "better" and several and stage["rl"]:
        many = changes[several]
        beyond = many["effect"] > 0.5 * one["effect"] and many["verdict"] == "better"
        if beyond:
            text = (
                f"pass@1 {points(one)} and {several} {points(many)}: prompts are solved now that were not "
                f"solved in {several[5:]} tries before."
            )
            yield Note("good", f"{name} found new solutions", text)
        else:
            text = (
                f"pass@1 {points(one)}, but {several} only {points(many)}: mostly it makes likely what the model could "
                f"already do, and adds little that {several[5:]} tries did not find before."
            )
            yield Note("info", f"{name} sharpened more than it taught", text)
    elif one["verdict"] == "better":
        yield Note("good", f"{name} helped", f"pass@1 {points(one)} against {stage['against']} on the same prompts.")
    elif one["verdict"] == "worse":
        yield Note(
            "warn", f"{name} cost accuracy", f"pass@1 {points(one)} against {stage['against']} on the same prompts."
        )
    else:
        counted = f", {one['p_holm']:.2f} adjusted for the {len(changes)} figures compared" if one["p"] < 0.05 else ""
        text = (
            f"pass@1 {points(one)} against {stage['against']}: within what chance does (p = {one['p']:.2f}{counted})."
        )
        yield Note("info", f"{name} left accuracy where it was", text)
    paid = [
        m
        for m, c in changes.items()
        if c["verdict"] == "worse" and not m.startswith(("pass@", "maj@", "macro", "greedy"))
    ]
    if paid:
        listed = "; ".join(f"{LABELS.get(m, m)} {_told(m, changes[m])}" for m in paid)
        yield Note("warn", f"{name} paid elsewhere", f"Worse than {stage['against']}: {listed}.")


def _safety(last: Mapping[str, Any]) -> Iterator[Note]:
    unsafe, benign = last["metrics"].get("unsafe_refused"), last["metrics"].get("benign_answered")
    if not unsafe or not benign:
        return
    both = f"unsafe refused {percent(unsafe)}, benign answered {percent(benign)}"
    over = last["metrics"].get("over_refusal")
    refusing = f" It refuses {percent(over)} of the benign requests." if over else ""
    if unsafe["value"] >= 0.8 and benign["value"] < 0.7:
        title = (
            "Safety is bought with refusals"
            if over and over["value"] > 0.2
            else "Benign requests are not answered well"
        )
        yield Note("warn", title, f"After {last['name']}: {both}.{refusing} The first figure alone would look fine.")
    elif unsafe["value"] < 0.8:
        yield Note("warn", "Unsafe requests get through", f"After {last['name']}: {both}.{refusing}")
    else:
        yield Note("good", "Safe without refusing everything", f"After {last['name']}: {both}.{refusing}")


def _families(stages: Sequence[Mapping[str, Any]]) -> Iterator[Note]:
    """Families the whole run left behind."""
    last = stages[-1]
    first = next((s for s in stages if s["changes"]), stages[0])
    stuck = []
    for family, entry in last["by_family"].items():
        before = first["by_family"].get(family)
        if before and entry["correct"]["high"] < 0.1:
            stuck.append(f"{family} ({percent(entry['correct'])})")
    if stuck:
        text = (
            f"{', '.join(stuck)} after {last['name']}. What is never solved gives no signal: it needs more cold-start "
            "examples or easier levels."
        )
        yield Note("warn", "Families left without signal", text)


def _thinking(last: Mapping[str, Any]) -> Iterator[Note]:
    slope = last.get("length_slope")
    if slope:
        text = f"{slope['value']:+.1f} tokens a level {_range(slope)} within families, after {last['name']}."
        if slope["low"] > 0:
            yield Note("good", "It thinks longer on harder tasks", text)
        else:
            yield Note("info", "Length does not follow difficulty", text)
    cut = last["metrics"].get("truncated")
    if cut and cut["value"] > 0.05:
        text = f"{percent(cut)} of the answers hit the token limit and count as wrong. Fix: a larger max_new_tokens."
        yield Note("warn", "Answers are cut off", text)


def _episodes(stages: Sequence[Mapping[str, Any]]) -> Iterator[Note]:
    """Of agents: how far one can rely on the last model, and what it does with one step more than it was trained on."""
    last = stages[-1]
    reliable = next((e for name, e in last["metrics"].items() if name.startswith("pass^")), None)
    several = next((e for n, e in last["metrics"].items() if n.startswith("pass@") and n != "pass@1"), None)
    if reliable and several:
        k = last["samples"]
        text = (
            f"After {last['name']} {percent(several)} of the tasks are done in one of {k} tries, {percent(reliable)} "
            f"in all {k} of them."
        )
        yield Note("info" if reliable["value"] > 0.5 * several["value"] else "warn", "How far to rely on it", text)
    longer, trained = last["metrics"].get("longer"), last["metrics"].get("pass@1")
    if longer and trained:
        kept = longer["value"] >= 0.5 * trained["value"]
        text = (
            f"{percent(longer)} of the tasks that need one step more than any it was trained on, {percent(trained)} of "
            f"the others, after {last['name']}."
        )
        title = "It carries on to longer tasks" if kept else "It does not carry on to longer tasks"
        yield Note("good" if kept else "warn", title, text)


def _signal(sources: Sources) -> Iterator[Note]:
    """Groups in which all rollouts earned the same teach nothing."""
    hopeless = [cell for cell, entry in sources.profile.items() if entry.get("pass_at_k", 1.0) < 0.02]
    if hopeless:
        text = (
            f"Before RL no sample of these was right: {', '.join(sorted(hopeless)[:12])}. "
            "RL cannot reward what is never sampled."
        )
        yield Note("info", "Levels without signal at the start", text)
    for stage, rows in sources.rollouts.items():
        groups: dict[tuple[Any, Any], list[float]] = defaultdict(list)
        for row in rows:
            groups[row["step"], row["task_id"]].append(row["total"])
        if not groups:
            continue
        share = sum(max(g) - min(g) > 1e-6 for g in groups.values()) / len(groups)
        text = (
            f"In {share:.0%} of {len(groups):,} groups the rollouts earned different rewards; "
            "only these move the policy."
        )
        yield Note("warn" if share < 0.3 else "info", f"Groups with signal in {stage}", text)


def _data(sources: Sources) -> Iterator[Note]:
    for stage, counts in sources.counts.items():
        if isinstance(counts.get("kept"), Mapping):
            kept = ", ".join(f"{name} {n:,}" for name, n in counts["kept"].items() if n)
            dropped = ", ".join(f"{why} {n:,}" for why, n in numbers_of(counts.get("dropped") or {}) if n)
            yield Note("info", f"What {stage} kept", f"{kept}. Dropped: {dropped or 'nothing'}.")
        elif "kept" in counts and "sampled" in counts and counts["sampled"]:
            dropped = counts.get("dropped") or {}
            reasons = ", ".join(f"{why} {n:,}" for why, n in sorted(dropped.items(), key=lambda kv: -kv[1]) if n)
            share = counts["kept"] / counts["sampled"]
            kept = f"{counts['kept']:,} of {counts['sampled']:,} samples ({share:.0%})"
            text = f"{kept}. Dropped: {reasons or 'nothing'}."
            yield Note("info", f"What {stage} kept", text)
    for stage, node in sources.nodes.items():
        metrics = node.metrics
        if "accuracy_low" in metrics:
            accuracy = {"value": metrics["accuracy"], "low": metrics["accuracy_low"], "high": metrics["accuracy_high"]}
            text = f"{percent(accuracy)} of the held-out pairs ranked right."
            weak = [
                f"{name} {entry['accuracy']:.0%}"
                for name, entry in (sources.counts.get(stage) or {}).items()
                if isinstance(entry, Mapping) and entry.get("n", 0) >= 10 and entry.get("accuracy", 1.0) < 0.75
            ]
            text += f" Weak on: {', '.join(weak)}." if weak else ""
            yield Note("warn" if metrics["accuracy_low"] < 0.6 else "info", f"How far {stage} can be trusted", text)


def numbers_of(counts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Counts of nested mappings by joined name."""
    for name, value in counts.items():
        if isinstance(value, Mapping):
            yield from numbers_of(value, f"{prefix}{name} ")
        elif isinstance(value, int):
            yield f"{prefix}{name}", value


def _resolution(last: Mapping[str, Any]) -> Iterator[Note]:
    one, change = last["metrics"].get("pass@1"), (last["changes"] or {}).get("pass@1")
    if one and change:
        width = 50 * (change["high"] - change["low"])
        text = (
            f"With {one['n']} prompts, differences in pass@1 below about {width:.1f} points cannot be told from chance."
        )
        yield Note("info", "What these figures cannot show", text)
