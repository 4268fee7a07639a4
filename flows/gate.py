"""The promotion gate during a run: each evaluated model against the one it would replace.

``gate: warn`` (of the run, or of one stage or its evaluation: ``rl_1.gate=stop``) names a stage whose model is no
better than that of the evaluated stage it comes after, or paid for it; ``stop`` also ends the run with exit code 1 and
keeps everything; ``off`` is silent. The verdict goes to the console, to run.json and, as a finding, to the tracker.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.evaluation.lineage import incumbent

if TYPE_CHECKING:
    from components.runtime import StageArtifact
    from flows.launch.events import Emit
    from flows.signals import Stop
    from flows.stage import StageSpec

MODES = ("warn", "stop", "off")
ANSWERS = "answers.parquet"
_JUDGE = "components.evaluation.gate.judge"


def gate_mode(value: Any) -> str:
    """One of `MODES`; None is warn, and yaml's ``off`` arrives as False. Raises ValueError."""
    mode = {None: "warn", False: "off"}.get(value, value) if value is None or isinstance(value, bool) else value
    if mode not in MODES:
        raise ValueError(f"expects {', '.join(MODES[:-1])} or {MODES[-1]}")
    return mode


class Gate:
    """Judges a model as soon as its own evaluation and that of its predecessor are there.

    It is called in the thread of the stage, before anything that depends on the evaluation starts. What was judged is
    remembered by content in ``memory``, so that a run that only reuses computes no test again. Nothing that goes wrong
    in here stops a run; it is said once.

    Args:
        specs: stages of the run. A stage that gives an evaluation is about its input ``model``; several of one model
            are told apart by their settings.
        mode: of the run.
        stop: is told to stop the run.
    """

    def __init__(
        self, specs: Sequence[StageSpec], memory: Path, mode: str | None, emit: Emit, stop: Stop | None = None
    ) -> None:
        from flows.wiring import kinds_given

        self._specs = {spec.name: spec for spec in specs}
        self._memory, self._mode, self._emit, self._stop = memory, gate_mode(mode), emit, stop
        self._lock = threading.Lock()
        self._done: dict[str, StageArtifact] = {}
        parents = {spec.name: spec.inputs for spec in specs}
        alike: dict[str, dict[str, str]] = {}
        for spec in specs:
            if "evaluation" in (kinds_given(spec.target) or ()) and "model" in spec.inputs:
                alike.setdefault(json.dumps(spec.settings, sort_keys=True), {})[spec.inputs["model"]] = spec.name
        self._pairs: list[tuple[str, str]] = []  # evaluations (before, after)
        for evaluations in alike.values():
            for model, evaluation in evaluations.items():
                if (before := incumbent(model, parents, evaluations)) is not None:
                    self._pairs.append((evaluations[before], evaluation))

    def __call__(self, spec: StageSpec, artifact: StageArtifact) -> None:
        """Hear of a finished stage; judge what can be judged now."""
        try:
            with self._lock:
                self._done[spec.name] = artifact
                ready = [pair for pair in self._pairs if spec.name in pair and all(name in self._done for name in pair)]
            for before, after in ready:
                self._judge(before, after)
        except Exception as error:
            text = f"the promotion gate cannot judge, the run goes on: {type(error).__name__}: {error}"
            self._emit({"event": "say", "stage": spec.name, "text": text, "level": "warning"})

    def mode(self, evaluation: str) -> str:
        """What is set for the model's stage, else for its evaluation, else for the run."""
        spec = self._specs[evaluation]
        return self._specs[spec.inputs["model"]].gate or spec.gate or self._mode

    def _judge(self, before: str, after: str) -> None:
        mode, stage = self.mode(after), self._specs[after].inputs["model"]
        if mode == "off":
            return
        verdict = self._verdict(before, after)
        common = {"stage": stage, "text": verdict["text"]}
        self._emit({"event": "gate", **common, "mode": mode, "passed": verdict["passed"], "verdict": verdict})
        if verdict["passed"]:
            return
        severity = "error" if mode == "stop" else "warning"
        finding = {"name": "gate", "severity": severity, "stage": stage, "step": 0, "title": verdict["decision"]}
        self._emit({"event": "finding", "step": 0, "name": "gate", "severity": severity, **common, "finding": finding})
        if mode == "stop" and self._stop is not None:
            text = f"the run ends here (gate=stop): {stage} did not pass; everything built so far is kept"
            self._emit({"event": "say", "stage": stage, "text": text, "level": "warning"})
            self._stop.refuse()

    def _verdict(self, before: str, after: str) -> Mapping[str, Any]:
        from flows.source import source_digest

        old, new = self._done[before], self._done[after]
        stage, against = self._specs[after].inputs["model"], self._specs[before].inputs["model"]
        made_of = [old.digest, new.digest, stage, against, source_digest([_JUDGE])]
        file = self._memory / f"{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:20]}.json"
        if file.is_file():
            return json.loads(file.read_text(encoding="utf-8"))
        from components.evaluation.gate import judge  # numpy, and pyarrow below: not paid where all is remembered
        from components.evaluation.page.sources import read_parquet

        rows = [read_parquet(artifact.path / ANSWERS) for artifact in (old, new)]
        address = (self._specs[after].seed, stage, against)
        verdict = judge(rows[0], rows[1], stage=stage, against=against, address=address).to_json()
        self._memory.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
        temporary.write_text(json.dumps(verdict, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, file)
        return verdict
