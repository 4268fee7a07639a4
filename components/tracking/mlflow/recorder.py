"""Events → MLflow's runs. Recording an event again changes nothing that counts: after a failure all are tried again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.tracking.environment import environment
from components.tracking.events import flatten, numbers, stage_state
from components.tracking.faults import knows
from components.tracking.mlflow.store import PROCESS, close_abandoned, connect, find_experiment, locked
from components.tracking.names import metric_name, param_value
from components.tracking.processes import process_mark
from components.tracking.samples import choose_samples

_STATUS = {"done": "FINISHED", "reused": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "skipped": "KILLED"}
_SMALL_FILES, _SMALL_BYTES = (".html", ".json", ".md", ".csv", ".svg", ".png"), 10_000_000
_LONGEST_NAME = 250
_PARENT, _SWEEP = "mlflow.parentRunId", "r1flow.sweep"
_TABLES = "mlflow.loggedArtifacts"  # tag by which MLflow's pages find tables


class Recorder:
    """Writes events to the store.

    Args:
        memo: MLflow's run id of the parent, those of the stages by name, the names of their curves, and the event the
            run started with.
        samples, register_models: see `MlflowTracker`.
    """

    def __init__(
        self,
        directory: Path,
        experiment: str | None,
        memo: dict[str, Any],
        *,
        samples: int = 0,
        register_models: bool = False,
    ) -> None:
        self.directory, self.name, self.memo = directory, experiment, memo
        self.samples, self.register_models = samples, register_models
        for key in ("children", "traced", "curves"):
            self.memo.setdefault(key, {})
        self.client, self.experiment_id = None, ""
        self._buffer: dict[str, list[Any]] = {}
        if "start" in memo:
            self._start(memo["start"])

    def record(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "run" and event.get("state") in ("started", "running"):
            self._start(event)
        elif event["event"] == "run":
            self._end(event)
        elif event["event"] == "stage":
            self._stage(event)
        elif event["event"] == "metrics":
            run_id, values = self._child(event), event.get("values") or {}
            known = self.memo["curves"].setdefault(run_id, [])
            known += [name for name in values if name not in known]
            self._measure(run_id, values, int(event["step"]), int(event["time"]))
        elif event["event"] == "finding":
            key, run_id = f"r1flow.finding.{event['name']}", self._child(event)
            self._store.set_tag(run_id, key, param_value(key, event["text"]))
            self._store.set_tag(self.memo["parent"], key, f"{event['stage']} step {event['step']}")
        elif event["event"] == "sweep":
            self._enter_experiment(event)
            run_id = self._sweep_run(str(event["run"]), event)
            if event.get("state") != "running":
                self._sweep_ended(run_id, event)

    def flush(self) -> None:
        """Write buffered metrics, a thousand at a time (the most MLflow takes)."""
        for run_id, metrics in self._buffer.items():
            while metrics:
                self._store.log_batch(run_id, metrics=metrics[:1000])
                del metrics[:1000]

    @property
    def _store(self) -> Any:
        if self.client is None:
            self.client = connect(self.directory)
        return self.client

    @property
    def _lineage(self) -> Any:
        from components.tracking.mlflow import lineage  # imports mlflow, see `connect`

        return lineage

    # --- a run of the pipeline

    def _start(self, event: Mapping[str, Any]) -> None:
        self._enter_experiment(event)
        self.memo["start"] = dict(event)
        if "parent" in self.memo:
            if knows(self._store, self.memo["parent"]):
                return
            self.memo["children"] = {}  # the store was begun anew
        close_abandoned(self._store)
        sweep = str(event.get("sweep") or "").rpartition("/")[0]
        tags = {"r1flow.run": event.get("run", ""), _SWEEP: event.get("sweep", ""), PROCESS: process_mark()}
        tags |= {"r1flow.directory": event.get("directory", ""), "mlflow.source.git.commit": event.get("git", "")}
        tags |= {"mlflow.source.name": "r1flow run", _PARENT: self._sweep_run(sweep, event) if sweep else ""}
        known = {key: str(value) for key, value in tags.items() if value}
        name = str(event.get("arm") or event.get("run"))[:_LONGEST_NAME]
        self.memo["parent"] = self._store.create_run(self.experiment_id, int(event["time"]), known, name).info.run_id
        shown = {key: event[key] for key in ("pipeline", "seed", "choices", "overrides") if event.get(key) is not None}
        self._log_params(self.memo["parent"], shown)
        self._store.log_dict(self.memo["parent"], environment(), "environment.json")
        if event.get("config"):
            self._store.log_text(self.memo["parent"], str(event["config"]), "config.yaml")

    def _end(self, event: Mapping[str, Any]) -> None:
        self.flush()
        status, at = _STATUS.get(str(event.get("state")), "FAILED"), int(event["time"])
        for run_id in [*self.memo["children"].values(), self.memo["parent"]]:
            if run_id and self._store.get_run(run_id).info.status == "RUNNING":
                self._store.set_terminated(run_id, status if run_id == self.memo["parent"] else "KILLED", at)

    def _enter_experiment(self, event: Mapping[str, Any]) -> None:
        name = self.name or f"r1flow-{event.get('pipeline', 'run')}"
        self.experiment_id = find_experiment(self._store, self.directory, name)

    # --- a stage

    def _child(self, event: Mapping[str, Any]) -> str:
        """The stage's run, made when it is first heard of."""
        stage = str(event["stage"])
        if stage not in self.memo["children"]:
            tags = {_PARENT: self.memo["parent"], "r1flow.stage": stage, PROCESS: process_mark()}
            run = self._store.create_run(self.experiment_id, int(event["time"]), tags, stage)
            self.memo["children"][stage] = run.info.run_id
            settings = self.memo["start"].get("params") or {}
            if stage in settings:
                self._log_params(run.info.run_id, settings[stage])
        return self.memo["children"][stage]

    def _stage(self, event: Mapping[str, Any]) -> None:
        state = stage_state(event)
        if state == "waiting":
            return
        run_id = self._child(event)
        artifact = event.get("artifact") or {}
        folder = Path(artifact["path"]) if artifact.get("path") else None
        tags = {
            "r1flow.state": state,
            "r1flow.why": event.get("why"),
            **{f"r1flow.{k}": v for k, v in artifact.items()},
        }
        if folder is not None and (facts := folder / "logs" / "facts.json").is_file():
            tags |= {f"r1flow.{name}": value for name, value in json.loads(facts.read_text("utf-8")).items()}
        self._tag(run_id, {key: param_value(key, value) for key, value in tags.items() if value})
        if state not in _STATUS:
            return
        at = int(event["time"])
        last = {"wall_s": event.get("wall_s"), **(event.get("metrics") or {})}
        steps = self.memo["curves"].get(run_id, ())  # a figure with a curve has its last value there
        self._measure(run_id, {name: value for name, value in last.items() if name not in steps}, 0, at)
        if folder is not None:
            self._keep_files(run_id, folder, event.get("metrics") or {}, at)
            self._lineage.log_inputs(self._store, run_id, folder)
            if state == "done":  # a reused stage's samples and model were recorded when it was built
                self._log_samples(str(event["stage"]), run_id, folder, at)
                self._register(str(event["stage"]), run_id, folder, artifact)
        self.flush()
        self._store.set_terminated(run_id, _STATUS[state], at)

    def _keep_files(self, run_id: str, folder: Path, metrics: Mapping[str, Any], at: int) -> None:
        """Small files a person reads. Of the report also on the parent, with its figures, so that runs compare."""
        files = [f for f in sorted(folder.iterdir()) if f.suffix in _SMALL_FILES and f.stat().st_size < _SMALL_BYTES]
        is_report = any(file.name == "report.html" for file in files)
        for target in [run_id, *([self.memo["parent"]] if is_report else [])]:
            for file in files:
                self._store.log_artifact(target, str(file))
        if is_report:
            self._measure(self.memo["parent"], metrics, 0, at)
            if (summary := folder / "summary.json").is_file():
                self._log_table(self.memo["parent"], "evaluation.json", _evaluation(json.loads(summary.read_text())))

    def _log_samples(self, stage: str, run_id: str, folder: Path, at: int) -> None:
        from components.tracking.mlflow.traces import log_sample  # imports mlflow

        done = self.memo["traced"].setdefault(stage, [])
        for sample in choose_samples(folder, self.samples):
            if sample.name not in done:
                log_sample(self._store, self.experiment_id, run_id, stage, sample, at)
                done.append(sample.name)

    def _register(self, stage: str, run_id: str, folder: Path, artifact: Mapping[str, Any]) -> None:
        done, start = self.memo.setdefault("registered", []), self.memo["start"]
        if self.register_models and (folder / "model").is_dir() and stage not in done:
            tags = {**{key: str(value) for key, value in artifact.items()}, "run": str(start.get("run", ""))}
            name = f"{start.get('pipeline', 'run')}.{stage}"
            self._lineage.register_model(self._store, name, run_id, folder / "model", tags)
            done.append(stage)

    # --- a sweep

    def _sweep_run(self, sweep: str, event: Mapping[str, Any]) -> str:
        """The run above those of a sweep, made by the first of them, at work again while any of them is."""
        with locked(self.directory / ".create.lock"):
            query = f"tags.`r1flow.sweep.id` = '{sweep}'"
            found = self._store.search_runs([self.experiment_id], query, max_results=1)
            owner = str(event.get("sweep_process") or "")
            if not found:
                tags = {"r1flow.sweep.id": sweep, PROCESS: owner, "mlflow.source.name": "r1flow run -m"}
                known = {key: value for key, value in tags.items() if value}
                made = self._store.create_run(self.experiment_id, int(event["time"]), known, f"sweep {sweep}")
                return made.info.run_id
            run_id = found[0].info.run_id
            if owner and found[0].data.tags.get(PROCESS) != owner:
                self._store.set_tag(run_id, PROCESS, owner)
                self._store.update_run(run_id, "RUNNING")
            return run_id

    def _sweep_ended(self, run_id: str, event: Mapping[str, Any]) -> None:
        at = int(event["time"])
        for file in event.get("files", ()):
            if Path(file).is_file():
                self._store.log_artifact(run_id, str(file))
        if event.get("table"):
            self._log_table(run_id, "arms.json", event["table"])
        self._measure(run_id, event.get("metrics") or {}, 0, at)
        self._log_params(run_id, event.get("params") or {})
        self.flush()
        self._store.set_terminated(run_id, _STATUS.get(str(event.get("state")), "FAILED"), at)

    # --- pieces

    def _log_table(self, run_id: str, file: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table in the form of `mlflow.log_table`, which adds rows where it is called again; this replaces them."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        self._store.log_dict(
            run_id, {"columns": columns, "data": [[row.get(c) for c in columns] for row in rows]}, file
        )
        self._store.set_tag(run_id, _TABLES, json.dumps([{"path": file, "type": "table"}]))

    def _measure(self, run_id: str, values: Mapping[str, Any], step: int, at: int) -> None:
        from mlflow.entities import Metric  # heavy, see `connect`

        buffer = self._buffer.setdefault(run_id, [])
        buffer += [Metric(metric_name(name), value, at, step) for name, value in numbers(values).items()]

    def _tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags together: each write of SQLite's waits for the disk."""
        from mlflow.entities import RunTag  # heavy, see `connect`

        self._store.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def _log_params(self, run_id: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param  # heavy, see `connect`

        flat = {metric_name(key): param_value(key, value) for key, value in flatten(values)}
        params = [Param(key, value) for key, value in flat.items()]
        for start in range(0, len(params), 100):
            self._store.log_batch(run_id, params=params[start : start + 100])


def _evaluation(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A report's evaluations as rows: stage, metric, estimate, and the change from the stage before."""
    rows = []
    for stage in summary.get("stages", ()):
        for metric, estimate in stage["metrics"].items():
            change = (stage.get("changes") or {}).get(metric) or {}
            tested = {
                "change": change.get("effect"),
                "p (Holm)": change.get("p_holm"),
                "verdict": change.get("verdict"),
            }
            rows.append({"stage": stage["name"], "metric": metric, **estimate, **tested})
    return rows
