"""Is RL what this model needs? The decision guide, with the run's own figures in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from components.evaluation.intervals import Estimate, share_estimate, wilson
from components.evaluation.summary import is_right, summarise

SOLVED, UNSOLVED = 0.95, 0.02  # pass@1 from which there is nothing to learn; pass@k up to which nothing can be
HEADROOM = 0.05  # pass@k - pass@1 below which sampling finds nothing to reinforce
SIGNAL = 0.10  # share of groups with right and wrong answers below which most of the sampling is wasted
FEW, WANTED = 1_000, 10_000  # tasks: fewer overfit, so many are wanted
AGREEMENT = 0.95  # of a verifier with references
FORM = 0.5  # format rate below which a model has not learned to answer

State = Literal["good", "warn", "no", "unknown"]


@dataclass(frozen=True)
class Evidence:
    """What is known before an RL stage.

    Attributes:
        stage, start: the RL stage and the stage whose model it starts from.
        rows: answers of that model on held-out prompts.
        profile: cell → pass_rate, pass_at_k, n, k, where there are no answers.
        tasks: prompts to train on.
        supervised: whether the model was fine-tuned on traces in this pipeline.
        verifier: what `rewards.trial.agreement` found.
        group_size: rollouts per prompt.
        seconds: of the RL stage and of the SFT before it, and where the figures come from.
    """

    stage: str
    start: str
    rows: Sequence[Mapping[str, Any]] | None = None
    profile: Mapping[str, Mapping[str, float]] | None = None
    tasks: int | None = None
    supervised: bool | None = None
    verifier: Mapping[str, Any] | None = None
    group_size: int = 8
    seconds: tuple[float, float, str] | None = None


@dataclass(frozen=True)
class Check:
    """One question of the guide: good, warn (go on, and know it), no (RL is not the remedy) or unknown."""

    name: str
    state: State
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Advice:
    """Answers and what follows from them. ``verdict`` is "rl", "not rl" or "unknown"."""

    stage: str
    verdict: Literal["rl", "not rl", "unknown"]
    conclusion: str
    checks: Sequence[Check] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def advise(evidence: Evidence) -> Advice:
    """Answer the guide's questions in the order in which they decide, and conclude in one line.

    A verifier that disagrees with references, nothing solved, everything solved, too few tasks, and no headroom each
    say that RL is not what is needed; what is missing or doubtful otherwise is told with the remedy.

    Source: the guide "do I need RL at all?" and §2.2 of arXiv:2501.12948 (RL needs a start that is sometimes right).
    """
    figures = _figures(evidence)
    checks = [
        _verifier(evidence),
        _headroom(evidence, figures),
        _data(evidence),
        _baseline(evidence, figures),
        _signal(evidence, figures),
        *_cost(evidence),
    ]
    if blocking := next((check for check in checks if check.state == "no"), None):
        conclusion = f"RL is not what you need here: {blocking.text}. Instead: {blocking.remedy}"
        return Advice(evidence.stage, "not rl", conclusion, checks)
    if figures is None:
        known = f"no evaluation or profile of {evidence.start} yet"
        conclusion = f"cannot tell: {known}. Fix: run the pipeline as far as that, then ask again"
        return Advice(evidence.stage, "unknown", conclusion, checks)
    doubts = [check for check in checks if check.state == "warn"]
    first = f"RL can help {evidence.start}: {checks[1].text}"
    if doubts:
        first += f". Mind: {'; '.join(check.text for check in doubts)}"
    return Advice(evidence.stage, "rl", first, checks)


@dataclass(frozen=True)
class _Figures:
    one: Estimate
    many: Estimate
    k: int
    form: Estimate | None
    mixed: Estimate | None
    group: int


def _figures(evidence: Evidence) -> _Figures | None:
    rows = [row for row in evidence.rows or () if row["kind"] == "reasoning" and row.get("sample", 0) >= 0]
    if rows:
        metrics = {name: Estimate(**value) for name, value in summarise(rows)["metrics"].items()}
        prompts: dict[str, list[bool]] = {}
        for row in rows:
            prompts.setdefault(row["task_id"], []).append(is_right(row))
        k = min(map(len, prompts.values()))
        group = min(k, evidence.group_size)
        mixed = [_mixed(len(found), sum(found), group) for found in prompts.values()]
        many = metrics.get(f"pass@{k}", metrics["pass@1"])
        spread = share_estimate(mixed, len(mixed)) if group > 1 else None
        return _Figures(metrics["pass@1"], many, k, metrics.get("format_rate"), spread, group)
    if not evidence.profile:
        return None
    cells = list(evidence.profile.values())
    n, k = int(sum(c["n"] for c in cells)), int(min(c["k"] for c in cells))

    def mean(key: str) -> Estimate:
        value = sum(c[key] * c["n"] for c in cells) / n
        low, high = wilson(value, n)
        return Estimate(value, min(low, value), max(high, value), n)

    return _Figures(mean("pass_rate"), mean("pass_at_k"), k, None, None, 0)


def _mixed(n: int, c: int, group: int) -> float:
    """Chance that ``group`` of n samples, c of them right, hold both right and wrong ones: unbiased, as pass@k is."""
    return 1 - (math.comb(c, group) + math.comb(n - c, group)) / math.comb(n, group)


def _verifier(evidence: Evidence) -> Check:
    found = evidence.verifier
    if found is None or found["right"] is None:
        why = "no task with a reference to try it on" if found is not None else "not tried"
        return Check("verifier", "unknown", f"the verifier is untested ({why})", "look at 50 of its verdicts yourself")
    wrong = "" if found["wrong"] is None else f", rejects {found['wrong']:.0%} of other tasks' answers"
    failed = f", fails on {found['failed']:.0%}" if found["failed"] else ""
    text = f"the verifier accepts {found['right']:.0%} of {found['n']} references{wrong}{failed}"
    bad = min(found["right"], 1.0 if found["wrong"] is None else found["wrong"], 1 - found["failed"]) < AGREEMENT
    if bad:
        shown = f" ({found['examples'][0]})" if found["examples"] else ""
        return Check("verifier", "no", text + shown, "a verifier that can be trusted; RL learns what it pays for")
    return Check("verifier", "good", text)


def _headroom(evidence: Evidence, figures: _Figures | None) -> Check:
    if figures is None:
        return Check("headroom", "unknown", "pass@1 and pass@k are not measured", f"evaluate {evidence.start}")
    one, many, k = figures.one, figures.many, figures.k
    text = f"pass@1 {percent(one)}, pass@{k} {percent(many)} on {one.n} prompts"
    if many.value <= UNSOLVED:
        remedy = "SFT on traces of such tasks, or easier levels: what is never right is never rewarded"
        return Check("headroom", "no", f"nothing is solved, {text}", remedy)
    if one.value >= SOLVED:
        return Check("headroom", "no", f"all is solved, {text}", "harder tasks, or leave the model as it is")
    if k < 2:
        return Check("headroom", "unknown", f"{text}: one sample shows no headroom", "samples=4 or more")
    if many.value - one.value <= HEADROOM:
        gap = f"{100 * (many.value - one.value):.1f} points"
        remedy = "SFT on new traces or other data: RL makes likely what sampling finds, and it finds no more"
        return Check("headroom", "no", f"there is no headroom, {text} ({gap} apart)", remedy)
    return Check("headroom", "good", text)


def _data(evidence: Evidence) -> Check:
    n = evidence.tasks
    if n is None:
        return Check("data", "unknown", "the number of tasks is not known", "curate the data first: r1flow run")
    if n < FEW:
        return Check(
            "data", "no", f"{n:,} tasks are too few (1,000 at least)", f"SFT, or more tasks ({WANTED:,} or more)"
        )
    if n < WANTED:
        return Check("data", "warn", f"{n:,} tasks, {WANTED:,} are wanted", "more tasks, or fewer steps")
    return Check("data", "good", f"{n:,} tasks")


def _baseline(evidence: Evidence, figures: _Figures | None) -> Check:
    form = figures.form if figures else None
    told = (
        f"{evidence.start} answers in form {percent(form)}" if form else f"the form of {evidence.start} is not measured"
    )
    if form and form.value < FORM:
        return Check("baseline", "warn", f"no SFT baseline: {told}", "a cold start: SFT on a few thousand traces first")
    if evidence.supervised:
        return Check("baseline", "good", f"it was fine-tuned on traces; {told}")
    if form:
        return Check("baseline", "good", told)
    return Check("baseline", "unknown", f"no SFT in this pipeline; {told}", "evaluate it, or put a cold start before")


def _signal(evidence: Evidence, figures: _Figures | None) -> Check:
    if figures is None or figures.mixed is None:
        return Check(
            "signal", "unknown", "the share of groups with signal is not measured", f"evaluate {evidence.start}"
        )
    least = "at least " if figures.group < evidence.group_size else ""
    text = f"{least}{percent(figures.mixed)} of groups of {evidence.group_size} hold right and wrong answers"
    if figures.mixed.value < SIGNAL:
        remedy = "a curriculum (curriculum=pass_rate), dynamic sampling (algorithm=dapo) or a larger group"
        return Check("signal", "warn", f"only {text.removeprefix(least)}", remedy)
    return Check("signal", "good", text)


def _cost(evidence: Evidence) -> Iterator[Check]:
    if evidence.seconds is None or evidence.seconds[1] <= 0:
        return
    rl, sft, source = evidence.seconds
    text = f"RL costs {rl / sft:.1f} times its SFT ({rl:.0f} s and {sft:.0f} s, {source})"
    yield Check("cost", "good" if rl <= 10 * sft else "warn", text, "" if rl <= 10 * sft else "fewer steps, or GRPO")


def percent(estimate: Estimate) -> str:
    """ "57 % [53, 61]"."""
    return f"{100 * estimate.value:.0f} % [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"
