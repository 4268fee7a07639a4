"""The smoke pipeline, cut down further, stage by stage in forked children that may be killed at any moment.

Nothing runs in the process of the tests itself: it has imported all that is needed, so that a child is there in
milliseconds, and whatever happens to one leaves the next as it was.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pkgutil
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

import components
from components.artifacts import ArtifactStore, Claim, load_directory, read_jsonl
from components.runtime import Out, StageArtifact
from flows.build import stage_specs
from flows.compose import compose
from flows.launch.worker import Job, call_stage
from flows.source import source_files
from flows.stage import StageSpec, run_stage, targets

LIMIT_S = 240.0  # far beyond what a stage takes here; the machine may be shared
TRAINING = ("base", "cold_start", "rl_1", "sft_2", "reward_model", "rl_2")
SAMPLING = ("profile", "rejection", "eval_base", "eval_cold_start", "eval_rl_1", "eval_sft_2", "eval_rl_2")
SMALL = (  # every stage has several checkpoints, or several chunks of samples, within a second or so
    *("pipeline=smoke", "launcher=inprocess", "orchestrator=inline", "tracking=none"),
    *("base.steps=8", "base.batch_size=4", "base.checkpoint_every=2", "base.log_every=1"),
    *("cold_start.batch_size=16", "cold_start.max_examples=96", "cold_start.checkpoint_every=2"),
    *("cold_start.log_every=1", "profile.checkpoint_every=1", "rejection.checkpoint_every=4"),
    *("rl_1.steps=5", "rl_1.quotas.reasoning=4", "rl_1.checkpoint_every=2"),
    *("sft_2.batch_size=16", "sft_2.max_examples=96", "sft_2.checkpoint_every=2", "sft_2.log_every=1"),
    *("reward_model.checkpoint_every=1", "reward_model.log_every=1"),
    *("rl_2.steps=4", "rl_2.checkpoint_every=1"),
    *(f"eval_{model}.checkpoint_every=8" for model in ("base", "cold_start", "rl_1", "sft_2", "rl_2")),
)
STAGES = (
    *("curate", "base", "cold_start", "profile", "rl_1", "rejection", "sft_2", "preferences", "reward_model", "rl_2"),
    *("eval_base", "eval_cold_start", "eval_rl_1", "eval_sft_2", "eval_rl_2", "report"),
)


def load_everything() -> None:
    """Import what a stage needs: each child would take ten seconds for it otherwise."""
    for module in pkgutil.walk_packages(components.__path__, "components."):
        if module.name != "components.tracking.mlflow":
            importlib.import_module(module.name)
    for name in (
        "pandas",
        "pyarrow.parquet",
        "dateutil.parser",
        "encodings.unicode_escape",
        "torch.profiler._cupti_monitor",
    ):
        importlib.import_module(name)
    # Naming a class of transformers loads its module.
    _ = (transformers.AutoModelForCausalLM, transformers.AutoTokenizer, transformers.LlamaForCausalLM)
    _ = (transformers.PreTrainedTokenizerFast, transformers.GenerationMixin)


@dataclass(frozen=True)
class Ended:
    """How a child ended: its wait status, what it returned, and what it raised."""

    status: int
    value: Any = None
    error: str = ""

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


def start(body: Callable[[], Any], note: Path) -> int:
    """Run ``body`` in a forked child that writes what it returns or raises to ``note``; its process number."""
    note.parent.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)
    if (pid := os.fork()) != 0:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with (note.parent / "output").open("a") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        try:
            found = {"value": body()}
        except Exception as error:
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        draft = note.with_suffix(".tmp")
        draft.write_text(json.dumps(found))
        draft.rename(note)
        code = 0
    finally:
        os._exit(code)


def ended(pid: int, note: Path) -> Ended:
    """Wait for a child of `start`."""
    deadline = time.monotonic() + LIMIT_S
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"a child took more than {LIMIT_S:.0f} s, see {note.parent / 'output'}")
        time.sleep(0.002)
    told = json.loads(note.read_text()) if note.exists() else {}
    return Ended(found[1], told.get("value"), told.get("error", ""))


def in_child(body: Callable[[], Any], note: Path) -> Ended:
    return ended(start(body, note), note)


@dataclass(frozen=True)
class Built:
    """What one call of `run_stage` came to; JSON-able.

    Attributes:
        digest: of the artifact's content.
        state: hashes of the last step checkpoint before the artifact was published: optimiser, curriculum, …
        metrics: rows of ``logs/metrics.jsonl`` without timings.
        said: what it told.
    """

    key: str
    digest: str
    cached: bool
    state: dict[str, str]
    metrics: list[dict[str, float]]
    said: list[str]
    wall_s: float


@dataclass
class Stage:
    """One stage of the plant and its finished artifact, built without a fault."""

    spec: StageSpec
    parents: Mapping[str, StageArtifact]
    reference: Built = field(init=False)
    artifact: StageArtifact = field(init=False)

    @property
    def name(self) -> str:
        return self.spec.name

    def build(self, root: Path, before: Callable[[Out], None] = lambda out: None) -> dict[str, Any]:
        """Make or find the artifact in the store at ``root``, as the driver does; fields of `Built`. For a child."""
        said: list[str] = []
        state: dict[str, str] = {}

        def launch(spec: StageSpec, parents: Any, claim: Claim, emit: Callable[..., None]) -> dict[str, Any]:
            out = Out(claim.draft, spec.name, spec.seed, emit=emit)
            before(out)
            metrics = call_stage(Job.of(spec, parents, claim.draft, allow=("components", "tests")), out)
            state.update(last_state(claim.draft))
            return metrics

        torch.set_num_threads(1)
        begin = time.monotonic()
        store = ArtifactStore(root)
        made = run_stage(self.spec, self.parents, store, launch, said.append)
        wall_s = time.monotonic() - begin
        return vars(Built(made.key, made.digest, made.cached, state, metrics_of(made.path), said, wall_s))

    def again(self, root: Path) -> Built:
        """The same command once more, undisturbed."""
        done = in_child(lambda: self.build(root), root / "note.json")
        assert done.value is not None, f"{self.name} in {root}: {done.error or done.status}"
        return Built(**done.value)

    def recovers(self, root: Path) -> Built:
        """After a fault: nothing half made is to be seen, and the same command ends as if there had been none."""
        self.visible(root)
        return self.ends_the_same(root)

    def ends_the_same(self, root: Path) -> Built:
        """The same command once more; its results must be those of the run without a fault."""
        found = self.again(root)
        assert found.digest == self.reference.digest, f"{self.name} in {root}: other results: {found}"
        assert found.metrics == self.reference.metrics, f"{self.name} in {root}: {found.metrics}"
        assert not found.state or found.state == self.reference.state, f"{self.name} in {root}: another last state"
        return found

    def visible(self, root: Path) -> bool:
        """Whether ``root`` shows an artifact, which then has to be whole."""
        path = ArtifactStore(root).path(self.name, self.reference.key)
        if not path.exists():
            return False
        load_directory(path, full=True)
        return True


class Plant:
    """All stages, each built once."""

    def __init__(self, root: Path, overrides: tuple[str, ...] = SMALL) -> None:
        load_everything()
        self.root = root
        self.specs = {spec.name: spec for spec in stage_specs(compose(list(overrides)))}
        for spec in self.specs.values():
            source_files(targets(spec))  # read once, here
        self._made: dict[str, Stage] = {}

    @cached_property
    def cache(self) -> Path:
        return self.root / "reference"

    def __getitem__(self, name: str) -> Stage:
        """The stage, built now if it was not asked for before, and what it needs with it."""
        if name not in self._made:
            spec = self.specs[name]
            stage = Stage(spec, {given: self[source].artifact for given, source in spec.inputs.items()})
            stage.reference = stage.again(self.cache)
            found = ArtifactStore(self.cache).find(name, stage.reference.key)
            assert found is not None
            stage.artifact = found
            self._made[name] = stage
        return self._made[name]


def last_state(draft: Path) -> dict[str, str]:
    """Hashes of the newest step checkpoint, by ``<step>/<file>``; nothing for a stage without."""
    steps = sorted((draft / "checkpoints").glob("step-*"))
    files = [file for file in sorted(steps[-1].iterdir()) if file.name != "manifest.json"] if steps else []
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def metrics_of(folder: Path) -> list[dict[str, float]]:
    file = folder / "logs" / "metrics.jsonl"
    rows = read_jsonl(file) if file.exists() else []
    return [{name: value for name, value in row.items() if not name.startswith("seconds_")} for row in rows]
