"""What the doctor says: one named cause, with the figures it rests on and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning"]
_SHOWN = 600  # characters of a prompt or response that a sample keeps


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout that shows what a finding means. ``response`` keeps its beginning and its end."""

    step: int
    task_id: str
    prompt: str
    response: str
    reward: float
    truth: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One named problem of one stage.

    Attributes:
        name: of the cause, ``lower_case``; a stage has at most one finding of a name.
        step: of the stage, 0 where the finding is about the stage as a whole.
        severity: "error" if training on makes no sense, else "warning".
        evidence: one line with the figures.
        remedy: what to change, with the key to set where there is one.
        figures: the same figures for a program.
    """

    name: str
    stage: str
    step: int
    severity: Severity
    evidence: str
    remedy: str
    figures: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    @property
    def where(self) -> str:
        """``rl_1 step 40``, or the stage alone."""
        return f"{self.stage} step {self.step}" if self.step else self.stage

    def line(self) -> str:
        """The finding in one line, the stage left out."""
        at = f" (step {self.step})" if self.step else ""
        return f"{self.title}{at}: {self.evidence} Fix: {self.remedy}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Finding:
        return cls(**{**row, "samples": tuple(Sample(**sample) for sample in row.get("samples", ()))})


def samples(
    rows: Iterable[Mapping[str, Any]], truth: Callable[[Mapping[str, Any]], float | None], limit: int = 3
) -> tuple[Sample, ...]:
    """The first ``limit`` rollouts, of different tasks where there are enough."""
    rows = list(rows)
    seen: set[str] = set()
    fresh = [row for row in rows if row["task_id"] not in seen and not seen.add(row["task_id"])]
    rest = [row for row in rows if not any(row is other for other in fresh)] if len(fresh) < limit else []
    return tuple(
        Sample(
            int(row["step"]),
            str(row["task_id"]),
            _shortened(str(row["prompt"])),
            _shortened(str(row["response"])),
            float(row["total"]),
            truth(row),
        )
        for row in [*fresh, *rest][:limit]
    )


def _shortened(text: str) -> str:
    half = _SHOWN // 2
    return text if len(text) <= _SHOWN else f"{text[:half]} […] {text[-half:]}"
