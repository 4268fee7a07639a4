"""Settings that say where and how a stage runs leave its key and what comes out of it alone.

Equal to the bit where nothing is computed in another order; to rounding where sums are split otherwise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from components.artifacts import ArtifactStore
from components.environments.calculator import Calculator
from components.models.optim import AdamW, Muon
from components.models.tiny import Tiny
from components.rewards.accuracy import Accuracy
from components.rewards.format import think_then_answer
from components.rewards.language import consistency
from components.rollout.record import read_rows
from components.rollout.torch_engine import TorchEngine
from components.runtime import Inputs, Out, StageArtifact
from components.stages.base_model import base_model
from components.stages.evaluate import evaluate
from components.stages.preferences import preferences
from components.stages.profile import profile
from components.stages.reject import reject
from components.stages.reward_model import reward_model
from components.stages.rl import rl
from components.stages.sft import sft
from flows.launch import Context
from flows.launch.inprocess import InProcess
from flows.launch.torchrun import Torchrun
from flows.run_only import RUN_ONLY
from flows.signals import Stop
from flows.stage import run_stage, stage_key
from tests.invariants.conftest import ALLOW, RunStage, spec
from tests.invariants.parts import PlainDescent
from tests.invariants.test_data_parallel import rl_settings as one_step

ROOT = Path(__file__).parents[2]
Settings = Callable[..., dict[str, Any]]
TRIED = {
    "components.stages.rl.rl": {"checkpoint_every", "micro_batch_tokens"},
    "components.stages.sft.sft": {"checkpoint_every", "log_every", "micro_batch_tokens"},
    "components.stages.base_model.base_model": {"checkpoint_every", "log_every"},
    "components.stages.reward_model.reward_model": {"checkpoint_every", "log_every"},
    "components.stages.dpo.dpo": {"checkpoint_every", "log_every"},  # in tests/stages/test_dpo.py; the same loop
    "components.stages.profile.profile": {"checkpoint_every"},
    "components.stages.reject.reject": {"checkpoint_every"},
    "components.stages.evaluate.evaluate": {"checkpoint_every"},
    "components.stages.tree_search.tree_search": {"checkpoint_every"},  # in tests/stages/test_tree_search.py
    "components.rollout.torch_engine.TorchEngine": {"max_batch"},
    "components.rollout.vllm_engine.VllmEngine": {"concurrency"},  # requests at a time, each with a seed of its own
    "components.environments.sandbox.pool.Sandbox": {"workers"},  # in tests/environments/test_sandbox.py
    "components.rewards.math_verifier.MathVerifier": {"workers"},  # in tests/rewards/test_math.py
    "components.rewards.mix.Mix": {"workers"},  # in tests/stages/test_rl_rewards.py and tests/rewards/test_isolated.py
    "components.rewards.endpoint.Endpoint": {"concurrency"},  # in tests/rewards/test_judge.py
}


def targets(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "_target_" in value:
            yield value["_target_"]
        for item in value.values():
            yield from targets(item)
    elif isinstance(value, list):
        for item in value:
            yield from targets(item)


def test_every_run_only_setting_of_a_shipped_component_is_tried_here() -> None:
    found = {}
    for file in (ROOT / "conf").rglob("*.yaml"):
        for target in targets(yaml.safe_load(file.read_text())):
            module, _, name = target.rpartition(".")
            taken = RUN_ONLY & set(inspect.signature(getattr(importlib.import_module(module), name)).parameters)
            if taken and not target.startswith("flows.launch."):  # a launcher is no part of a key
                found[target] = taken
    assert found == TRIED


@pytest.mark.parametrize("name", sorted(RUN_ONLY))
def test_a_run_only_setting_is_no_part_of_a_key_at_any_depth(name: str) -> None:
    stage = spec("rl_1")
    settings = {**stage.settings, name: 7, "engine": {**stage.settings["engine"], name: "x"}}
    assert stage_key(dataclasses.replace(stage, settings=settings), {}, "") == stage_key(stage, {}, "")
    changed = {**settings, "group_size": 5}
    assert stage_key(dataclasses.replace(stage, settings=changed), {}, "") != stage_key(stage, {}, "")


def files(folder: Path) -> dict[str, str]:
    """Hashes of everything that goes into an artifact's digest."""
    parts = [(p, p.relative_to(folder)) for p in sorted(folder.rglob("*")) if p.is_file()]
    return {
        str(path): hashlib.sha256(file.read_bytes()).hexdigest()
        for file, path in parts
        if path.parts[0] not in ("logs", "checkpoints")
    }


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([t.flatten() for _, t in sorted(load_file(folder / "model" / "model.safetensors").items())])


def results(stage: Callable[..., Any], inputs: Inputs, root: Path, choices: list[dict[str, Any]]) -> list[Path]:
    """One folder for each choice of settings."""
    folders = []
    for number, choice in enumerate(choices):
        folder = root / str(number)
        folder.mkdir()
        stage(inputs, Out(folder, "stage", seed=3), **choice)
        folders.append(folder)
    return folders


def test_checkpoints_leave_rl_as_it_is(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    often, seldom = results(rl, inputs, tmp_path, [rl_settings(checkpoint_every=n) for n in (1, 1000)])
    assert not torch.equal(weights(often), weights(inputs["model"].path))
    assert files(often) == files(seldom)


def test_the_engine_batch_leaves_rl_as_it_is(inputs: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    """Twenty-four rollouts a step, at most 3, 10 or all of them at a time."""
    choices = [rl_settings(engine=partial(TorchEngine, max_batch=n)) for n in (3, 10, 256)]
    few, some, all_at_once = results(rl, inputs, tmp_path, choices)
    if torch.backends.mkl.is_available():
        assert files(few) == files(some) == files(all_at_once)
    first = [read_rows(folder / "rollouts" / "step-000001.parquet") for folder in (few, some, all_at_once)]
    assert first[0] == first[1] == first[2]


def test_the_size_of_micro_batches_changes_rl_by_rounding_only(
    inputs: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    choices = [rl_settings(optimizer=PlainDescent, lr=0.3, steps=1, micro_batch_tokens=n) for n in (1, 200, 100_000)]
    *split, whole = results(rl, inputs, tmp_path, choices)
    moved = (weights(whole) - weights(inputs["model"].path)).abs().max()
    assert moved > 1e-3
    for folder in split:
        assert (weights(folder) - weights(whole)).abs().max() < 1e-4 * moved
        assert files(folder)["rollouts/step-000001.parquet"] == files(whole)["rollouts/step-000001.parquet"]


def test_logs_and_checkpoints_leave_what_is_trained_as_it_is(inputs: Inputs, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    preferences(inputs, Out(pairs, "preferences", seed=3), pairs=32, test_pairs_per_prompt=1)
    inputs = {**inputs, "preferences": StageArtifact("preferences", "k", pairs, "d")}
    tiny = Tiny(hidden_size=32, layers=1, heads=2, kv_heads=1, mlp=64)
    stages = {
        "sft": (sft, {"files": {"data": ["cold_start.jsonl"]}, "optimizer": Muon, "epochs": 1, "max_examples": 64}),
        "base": (base_model, {"model": tiny, "optimizer": Muon, "steps": 5, "batch_size": 4}),
        "reward_model": (reward_model, {"optimizer": AdamW, "epochs": 1, "batch_size": 8}),
    }
    for name, (stage, settings) in stages.items():
        (tmp_path / name).mkdir()
        choices = [{**settings, "log_every": a, "checkpoint_every": b} for a, b in ((1, 2), (50, 1000))]
        often, seldom = results(stage, inputs, tmp_path / name, choices)
        assert files(often) == files(seldom), name


def test_how_many_prompts_are_drawn_at_once_leaves_what_is_sampled_as_it_is(inputs: Inputs, tmp_path: Path) -> None:
    shared = {"engine": TorchEngine, "environment": Calculator(), "samples": 2, "max_new_tokens": 12}
    judges = {"accuracy": Accuracy(), "language": consistency}
    stages = {
        "profile": (profile, {"accuracy": Accuracy()}),
        "reject": (reject, {**judges, "prompts": 20}),
        "evaluate": (evaluate, {**judges, "format": think_then_answer}),
    }
    for name, (stage, settings) in stages.items():
        (tmp_path / name).mkdir()
        choices = [{**settings, **shared, "checkpoint_every": n} for n in (3, 1000)]
        few, all_at_once = results(stage, inputs, tmp_path / name, choices)
        drawn = [len(list((folder / "checkpoints").rglob("*.json"))) for folder in (few, all_at_once)]
        assert drawn[0] > 2 * drawn[1]
        if torch.backends.mkl.is_available():
            assert files(few) == files(all_at_once), name


def test_threads_change_rl_by_rounding_only(run: RunStage, inputs: Inputs, tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "profile.json").write_text("{}")
    parents = {**inputs, "profile": StageArtifact("profile", "k", profile, "d")}
    stage = spec("rl_1", **one_step("grpo"))
    one = run(stage, parents, 1)
    two = run(stage, parents, 1, threads=2)
    assert one.key == two.key
    moved = (weights(one.path) - weights(inputs["model"].path)).abs().max()
    assert (weights(one.path) - weights(two.path)).abs().max() < 1e-4 * moved


SMALL = {"rl_1": {**one_step("grpo"), "steps": 3}, "cold_start": {"max_examples": 64}}
SELDOM = {"checkpoint_every": 1000, "log_every": 50}
OFTEN = {"checkpoint_every": 1, "log_every": 1}


def accepts(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that the stage has."""
    module, _, function = spec(name).target.rpartition(".")
    known = inspect.signature(getattr(importlib.import_module(module), function)).parameters
    return {key: value for key, value in settings.items() if key in known}


@pytest.mark.parametrize("name", ["rl_1", "cold_start"])
def test_the_digest_of_a_stage_is_the_same_under_other_run_only_settings(
    name: str, inputs: Inputs, tmp_path: Path
) -> None:
    """Logging, checkpoints, the engine's batch, the launcher, its device: the stage's children stay valid."""
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "profile.json").write_text("{}")
    parents = {**inputs, "profile": StageArtifact("profile", "k", profile, "d")}
    built = []
    for number, (more, batch, launcher) in enumerate(
        ((SELDOM, 256, Torchrun(processes=1, device="cpu")), (OFTEN, 5, InProcess()))
    ):
        settings = {**SMALL[name], **accepts(name, more)}
        if "engine" in spec(name).settings:
            settings["engine"] = {**spec(name).settings["engine"], "max_batch": batch}
        stage = spec(name, **settings)
        context = Context(lambda event: None, Stop(), ALLOW)
        artifact = run_stage(
            stage,
            {key: parents[key] for key in stage.inputs},
            ArtifactStore(tmp_path / f"store-{number}"),
            lambda spec, given, claim, emit, launcher=launcher, context=context: launcher(spec, given, claim, context),
            lambda text: None,
        )
        built.append(artifact)
    first, second = built
    assert (first.key, first.digest) == (second.key, second.digest)
    assert first.metrics == second.metrics
    assert not torch.equal(weights(first.path), weights(inputs["model"].path))  # it learned something
