"""From sampled answers to figures: every metric with its interval, by family and level, and stage against stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.evaluation.behaviours import has_marker, length_slope
from components.evaluation.intervals import Estimate, holm, macro_estimate, mean_estimate, paired_change, share_estimate
from components.evaluation.metrics import final_answer, majority, pass_at_k, pass_hat_k
from components.evaluation.safety import is_benign, is_unsafe, refused

Row = Mapping[str, Any]
Prompt = Sequence[Row]


def _any(row: Row) -> bool:
    return True


def _longer(row: Row) -> bool:
    """Whether the task needs more steps than any that was trained on: it is told apart from the others."""
    return row.get("held_out") == "longer"


def _reasoning(row: Row) -> bool:
    return row["kind"] == "reasoning" and not _longer(row)


def _episode(row: Row) -> bool:
    """Whether the row is an episode with tools (see `summarise`)."""
    return row.get("steps") is not None


def _agent(row: Row) -> bool:
    return _reasoning(row) and _episode(row)


@dataclass(frozen=True)
class Metric:
    """A figure that is a mean over prompts.

    Attributes:
        of: value of one prompt from its samples; None where it does not apply.
        applies: which rows it is about.
        share: the value lies in [0, 1].
        better: +1 if more is better, -1 if less is, 0 if it depends.
        strata: the prompts' strata whose means are averaged with equal weight; None for a plain mean.
    """

    name: str
    of: Callable[[Prompt], float | None]
    applies: Callable[[Row], bool] = _any
    share: bool = True
    better: int = 1
    strata: Callable[[Row], str] | None = None


def _mean(key: str) -> Callable[[Prompt], float | None]:
    def of(prompt: Prompt) -> float | None:
        values = [float(row[key]) for row in prompt if row.get(key) is not None]
        return sum(values) / len(values) if values else None

    return of


def _rate(test: Callable[[Row], bool]) -> Callable[[Prompt], float]:
    return lambda prompt: sum(map(test, prompt)) / len(prompt)


def is_right(row: Row) -> bool:
    """Whether the answer is fully right; partial credit is for training, not for figures."""
    return row["correct"] >= 1 - 1e-6


def _right(prompt: Prompt) -> int:
    return sum(map(is_right, prompt))


def _answer(row: Row) -> str | None:
    answer = row.get("answer")
    return final_answer(row["response"]) if answer is None else str(answer)


def _pass_at(k: int) -> Callable[[Prompt], float]:
    return lambda prompt: pass_at_k(len(prompt), _right(prompt), k)


def _pass_hat(k: int) -> Callable[[Prompt], float]:
    return lambda prompt: pass_hat_k(len(prompt), _right(prompt), k)


def _majority(prompt: Prompt) -> float:
    return majority([_answer(row) for row in prompt], [float(is_right(row)) for row in prompt])


def metrics_for(k: int) -> list[Metric]:
    """All metrics of an evaluation with at least k samples of each prompt, in the order in which they are shown."""
    several = [Metric(f"pass@{k}", _pass_at(k), _reasoning), Metric(f"maj@{k}", _majority, _reasoning)] if k > 1 else []
    correct = _rate(is_right)
    return [
        Metric("pass@1", correct, _reasoning),
        *several,
        Metric("macro_pass@1", correct, _reasoning, strata=lambda row: str(row["family"])),
        Metric("format_rate", _mean("format_ok")),
        Metric("language_rate", _mean("language")),
        Metric("length", _mean("length"), _reasoning, share=False, better=0),
        Metric("truncated", _rate(lambda row: row["finish"] == "length"), better=-1),
        Metric("self_correction", _rate(lambda row: has_marker(row["response"])), _reasoning, better=0),
        *([Metric(f"pass^{k}", _pass_hat(k), _agent)] if k > 1 else []),
        Metric("steps", _mean("steps"), _agent, share=False, better=-1),
        Metric("invalid_calls", _mean("invalid_calls"), _agent, share=False, better=-1),
        Metric("longer", correct, _longer),
        Metric("unsafe_refused", correct, is_unsafe),
        Metric("benign_answered", correct, is_benign),
        Metric(
            "safety_mean",
            correct,
            lambda row: is_unsafe(row) or is_benign(row),
            strata=lambda row: "unsafe" if is_unsafe(row) else "benign",
        ),
        Metric("over_refusal", _rate(refused), is_benign, better=-1),
    ]


_GREEDY = Metric("greedy", _rate(is_right), _reasoning)


def _cell_metrics(k: int) -> list[Metric]:
    several = [Metric(f"pass@{k}", _pass_at(k)), Metric(f"pass^{k}", _pass_hat(k), _episode)] if k > 1 else []
    return [
        Metric("correct", _rate(is_right)),
        *several,
        Metric("length", _mean("length"), share=False, better=0),
        Metric("steps", _mean("steps"), _episode, share=False, better=-1),
        Metric("invalid_calls", _mean("invalid_calls"), _episode, share=False, better=-1),
    ]


def _prompts(rows: Iterable[Row], greedy: bool = False) -> dict[str, list[Row]]:
    """Rows by prompt: the samples, or the greedy answers (``sample`` -1)."""
    prompts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if (row.get("sample", 0) < 0) == greedy:
            prompts[row["task_id"]].append(row)
    return prompts


def _samples(prompts: Mapping[str, Prompt]) -> int:
    """Samples that every prompt has (the k of pass@k)."""
    return min(map(len, prompts.values()), default=0)


def _values(prompts: Mapping[str, Prompt], metric: Metric) -> dict[str, float]:
    values = {task: metric.of(prompt) for task, prompt in prompts.items() if metric.applies(prompt[0])}
    return {task: value for task, value in values.items() if value is not None}


def _estimate(prompts: Mapping[str, Prompt], metric: Metric) -> Estimate | None:
    values = _values(prompts, metric)
    strata: dict[str, list[str]] = defaultdict(list)
    for task in values:
        strata[metric.strata(prompts[task][0]) if metric.strata else ""].append(task)
    parts = []
    for tasks in strata.values():
        inside = [values[task] for task in tasks]
        samples = sum(len(prompts[task]) for task in tasks)
        parts.append(share_estimate(inside, samples) if metric.share else mean_estimate(inside))
    return macro_estimate(parts) if parts else None


def _estimates(prompts: Mapping[str, Prompt], metrics: Sequence[Metric]) -> dict[str, dict[str, float]]:
    found = {metric.name: _estimate(prompts, metric) for metric in metrics}
    return {name: estimate.to_json() for name, estimate in found.items() if estimate is not None}


def summarise(rows: Iterable[Row]) -> dict[str, Any]:
    """Figures of one evaluation.

    Args:
        rows: one per sample: task_id, family, level, kind, response, correct, format_ok, language, length (tokens),
            finish. ``sample`` -1 marks a greedy answer, which enters only the metric "greedy". Optional: verifier (else
            the family tells unsafe and benign requests), answer (else the text in the answer tags), refused (else
            recognised by its wording). Episodes with tools have steps, invalid_calls, tools (how many are offered) and
            steps_needed; ``held_out`` "longer" marks tasks of more steps than were trained on, which have a figure of
            their own and count in none of accuracy, length, steps or calls.

    Returns:
        ``metrics`` name → {value, low, high, n}; ``by_family``, ``by_level`` (reasoning only), ``by_cell``
        ("family/level") and ``by_split`` ("family/split", where rows have a split), of episodes ``by_tools`` and
        ``by_steps``, each name → {correct, pass@k, length → {value, low, high, n}}; ``length_slope``, tokens per level;
        ``prompts`` and ``samples`` per prompt. Every estimate's n counts prompts. A metric that no row is about is
        absent.
    """
    rows = list(rows)
    prompts, greedy = _prompts(rows), _prompts(rows, greedy=True)
    k = _samples(prompts)
    split: dict[str, dict[str, dict[str, Prompt]]] = {
        "by_family": {},
        "by_level": {},
        "by_cell": {},
        "by_split": {},
    }
    for task, prompt in prompts.items():
        row = prompt[0]
        split["by_family"].setdefault(row["family"], {})[task] = prompt
        split["by_cell"].setdefault(f"{row['family']}/{row['level']}", {})[task] = prompt
        if row.get("split"):
            split["by_split"].setdefault(f"{row['family']}/{row['split']}", {})[task] = prompt
        if _reasoning(row):
            split["by_level"].setdefault(str(row["level"]), {})[task] = prompt
        if _agent(row):
            split.setdefault("by_tools", {}).setdefault(str(row["tools"]), {})[task] = prompt
        if row.get("steps_needed") and row["kind"] == "reasoning":
            split.setdefault("by_steps", {}).setdefault(str(row["steps_needed"]), {})[task] = prompt
    parts = {
        name: {cell: _estimates(inside, _cell_metrics(k)) for cell, inside in sorted(cells.items())}
        for name, cells in split.items()
    }
    slope = length_slope([row for prompt in prompts.values() for row in prompt if _reasoning(row)])
    return {
        "prompts": len(prompts),
        "samples": k,
        "metrics": {**_estimates(prompts, metrics_for(k)), **_estimates(greedy, [_GREEDY])},
        **parts,
        "length_slope": None if slope is None else slope.to_json(),
    }


def compare(before: Iterable[Row], after: Iterable[Row], *, address: tuple[int | str, ...] = (0,)) -> dict[str, Any]:
    """What changed from one evaluation to another on the prompts both have.

    Returns:
        metric → {effect, low, high, p, n, p_holm, verdict}. ``p_holm`` is adjusted for the number of metrics compared;
        ``verdict`` is "better", "worse", "changed" (where neither direction is good as such) or "same" (p_holm ≥ .05).
    """
    before, after = list(before), list(after)
    first, second = _prompts(before), _prompts(after)
    metrics = metrics_for(min(_samples(first), _samples(second)))
    pairs = [(metric, first, second) for metric in metrics]
    pairs.append((_GREEDY, _prompts(before, greedy=True), _prompts(after, greedy=True)))
    changes: dict[str, dict[str, Any]] = {}
    for metric, old, new in pairs:
        strata = None if metric.strata is None else {task: metric.strata(prompt[0]) for task, prompt in new.items()}
        change = paired_change(
            _values(old, metric), _values(new, metric), address=address, strata=strata, share=metric.share
        )
        if change is not None:
            changes[metric.name] = change.to_json()
    direction = {metric.name: metric.better for metric, _, _ in pairs}
    for (name, change), p in zip(changes.items(), holm([c["p"] for c in changes.values()]), strict=True):
        change["p_holm"] = p
        signed = direction[name] * change["effect"]
        change["verdict"] = "same" if p >= 0.05 else "better" if signed > 0 else "worse" if signed < 0 else "changed"
    return changes
