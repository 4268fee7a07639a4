"""The command in processes of its own, and what it leaves: files, records, processes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.compiled import cache_folder

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LIMIT_S = 600.0  # far beyond what anything takes; the machine may be shared
STAGES = (  # of pipeline=smoke
    *("curate", "base", "cold_start", "profile", "rl_1", "rejection", "sft_2", "preferences", "reward_model", "rl_2"),
    *("eval_base", "eval_cold_start", "eval_rl_1", "eval_sft_2", "eval_rl_2", "report"),
)
_USERS_OWN = ("PREFECT_", "MLFLOW_", "HF_", "R1FLOW_")


@dataclass(frozen=True)
class Workplace:
    """A user's machine in a directory: a home, a project to stand in, and the artifacts the command writes.

    Attributes:
        mark: in the environment of every process started here, so that none of them gets lost.
    """

    root: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        for folder in (self.root / "home", self.temporary):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.project.exists():
            shutil.copytree(HERE / "user", self.project, ignore=shutil.ignore_patterns("__pycache__"))

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def temporary(self) -> Path:
        """Too long a name for a socket in it, as on some clusters."""
        return self.root / "tmp" / ("long-" * 20)

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def network_log(self) -> Path:
        return self.root / "network.log"

    @property
    def prefect_url(self) -> str:
        server = json.loads((self.artifacts / "prefect" / "server.json").read_text())
        return f"http://127.0.0.1:{server['port']}"

    def ask_prefect(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """What the server says to a query: ``flow_runs`` or ``task_runs``."""
        url, kind = f"{self.prefect_url}/api/{path}/filter", {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind), timeout=30) as answer:
            return json.load(answer)

    def flow_state(self, run: str) -> str:
        [found] = self.ask_prefect("flow_runs", flow_runs={"name": {"any_": [run]}})
        return found["state_name"]

    def task_states(self, run: str) -> dict[str, str]:
        tasks = self.ask_prefect("task_runs", flow_runs={"name": {"any_": [run]}})
        return {task["name"]: task["state_name"] for task in tasks}

    def mlflow(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """Rows of MLflow's own store."""
        with sqlite3.connect(f"file:{self.artifacts}/mlflow/mlflow.db?mode=ro", uri=True) as store:
            return store.execute(query, values).fetchall()

    def environment(self, **more: str) -> dict[str, str]:
        """A fresh machine without network; nothing of the one the tests run on."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_USERS_OWN)}
        return {
            **kept,
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": os.pathsep.join([str(HERE / "offline"), str(ROOT)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "NUMBA_CACHE_DIR": str(cache_folder()),  # else every test would compile the loops of decoding anew
            "R1FLOW_TEST_NETWORK_LOG": str(self.network_log),
            "R1FLOW_TEST_MARK": self.mark,
            **more,
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start ``r1flow …`` with its output in ``output.txt``; ``run`` and ``plan`` write into `artifacts`."""
        with (self.root / "output.txt").open("w") as output:
            return subprocess.Popen(
                self._command(arguments),
                cwd=self.project,
                env=self.environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def r1flow(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``r1flow …`` to its end."""
        return subprocess.run(
            self._command(arguments),
            cwd=self.project,
            env=self.environment(**environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        command, *rest = arguments
        where = ["--config-dir", "conf"] if command in ("run", "plan") else ["--artifacts", str(self.artifacts)]
        where = [] if command == "envs" else where
        overrides = [f"artifacts={self.artifacts}"] if command in ("run", "plan") else []
        return [sys.executable, "-m", "flows.cli", command, *where, *rest, *overrides]

    def records(self) -> list[dict[str, Any]]:
        """Every run's record, oldest first."""
        found = [json.loads(file.read_text()) for file in self.artifacts.glob("runs/*/run.json")]
        return sorted(found, key=lambda record: (record["started"], record["ended"] or "9"))

    def states(self) -> dict[str, str]:
        """State of every stage in the latest run."""
        return {name: stage["state"] for name, stage in self.records()[-1]["stages"].items()}

    def artifact(self, stage: str) -> Path:
        """Where the latest run says that the stage's artifact lies."""
        return Path(self.records()[-1]["stages"][stage]["path"])

    def downstream(self, stage: str) -> list[str]:
        """Stages of the first run that depend on this one."""
        inputs = {name: set(entry["inputs"].values()) for name, entry in self.records()[0]["stages"].items()}
        found = {stage}
        while more := {name for name, sources in inputs.items() if sources & found} - found:
            found |= more
        return sorted(found - {stage})

    def events(self) -> list[dict[str, Any]]:
        """The latest run's events."""
        file = self.artifacts / "runs" / self.records()[-1]["id"] / "events.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def with_finished(self, source: Workplace, *stages: str) -> Workplace:
        """This workplace with copies of finished stages of another one."""
        for stage in stages:
            shutil.copytree(source.artifacts / "cache" / stage, self.artifacts / "cache" / stage)
        return self

    def processes(self) -> dict[int, str]:
        """Living processes that were started here, and their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or self.mark.encode() not in (entry / "environ").read_bytes():
                    continue
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:
                continue
        return found

    def servers(self) -> dict[int, str]:
        """Processes of the servers that are meant to stay."""
        groups = set()
        for file in self.artifacts.glob("*/server.json"):
            groups.add(json.loads(file.read_text())["pid"])
        return {pid: line for pid, line in self.processes().items() if _group(pid) in groups}

    def leftovers(self) -> dict[int, str]:
        servers = self.servers()
        return {pid: line for pid, line in self.processes().items() if pid not in servers}

    def kill_everything(self) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def becomes(wanted: Any, look: Callable[[], Any], limit_s: float = 120.0) -> Any:
    """What ``look`` gives once it is ``wanted``, or at last."""
    deadline = time.monotonic() + limit_s
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return seen


def files_below(folder: Path, but: tuple[str, ...] = ()) -> set[str]:
    """Every file below a folder, apart from directories of these names."""
    found = set()
    for path, directories, files in os.walk(folder):
        directories[:] = [name for name in directories if name not in but]
        found |= {os.path.relpath(os.path.join(path, name), folder) for name in files}
    return found


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def rollouts(artifact: Path) -> list[dict[str, Any]]:
    """All rollouts of an RL stage in order; how many files they lie in depends on where the stage was stopped."""
    from components.rollout.record import read_rows

    return [row for file in sorted((artifact / "rollouts").iterdir()) for row in read_rows(file)]
