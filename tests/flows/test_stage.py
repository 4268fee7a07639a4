"""Keys change with what a stage is made of, nothing else; a stage is reused, resumed or built, and says why."""

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.artifacts import ArtifactStore
from components.runtime import Interrupted, StageArtifact
from flows.run_only import RUN_ONLY, key_settings
from flows.stage import StageSpec, explain, run_stage, stage_key, targets

BASE = StageArtifact(stage="base", key="b1", path=Path("/b"), digest="d1")
SPEC = StageSpec(
    name="rl_1",
    target="components.rng.derive",
    inputs={"policy": "base"},
    settings={
        "steps": 5,
        "algorithm": {"surrogate": {"_target_": "components.types.Task", "eps_high": 0.2}},
        "rewards": [{"_target_": "components.types.Score", "weight": 1.0}],
        "workers": 2,
        "engine": {"_target_": "components.types.Rollout", "max_batch": 64},
    },
    seed=0,
)


def with_settings(**changes: Any) -> StageSpec:
    return replace(SPEC, settings={**SPEC.settings, **changes})


def key(spec: StageSpec = SPEC, parent: StageArtifact = BASE, source: str = "s1") -> str:
    return stage_key(spec, {"policy": parent}, source)


class Launcher:
    """Writes one file; counts its calls; fails or stops when told to."""

    def __init__(self, content: str = "1", error: BaseException | None = None, checkpoint: int | None = None):
        self.content, self.error, self.checkpoint, self.calls = content, error, checkpoint, 0

    def __call__(self, spec: StageSpec, parents: Mapping[str, StageArtifact], claim, emit) -> dict[str, Any]:
        self.calls += 1
        if self.checkpoint is not None:
            (claim.draft / "checkpoints" / f"step-{self.checkpoint:06d}").mkdir(parents=True)
            (claim.draft / "checkpoints" / f"step-{self.checkpoint:06d}" / "state.json").write_text("{}")
        if self.error is not None:
            raise self.error
        (claim.draft / "x").write_text(self.content)
        emit({"event": "say", "stage": spec.name, "text": "half way"})
        emit({"event": "progress", "done": 1, "total": 2})
        return {"reward": 0.5}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path, run="run-7")


def run(store: ArtifactStore, spec: StageSpec = SPEC, launch: Any = None, parent: StageArtifact = BASE):
    said: list[str] = []
    artifact = run_stage(spec, {"policy": parent}, store, launch or Launcher(), said.append)
    return artifact, said


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        (key(with_settings(steps=6)), True),
        (key(with_settings(steps=5.0)), True),
        (key(with_settings(algorithm={"surrogate": {"_target_": "components.types.Task", "eps_high": 0.3}})), True),
        (key(with_settings(rewards=[])), True),
        (key(with_settings(new=None)), True),
        (key(replace(SPEC, seed=1)), True),
        (key(replace(SPEC, target="components.rng.stream")), True),
        (key(replace(SPEC, name="rl_2")), True),
        (key(parent=replace(BASE, digest="d2")), True),
        (stage_key(SPEC, {"other": BASE}, "s1"), True),
        (key(source="s2"), True),
        (key(with_settings(workers=8)), False),
        (key(with_settings(engine={"_target_": "components.types.Rollout", "max_batch": 8})), False),
        (key(with_settings(engine={"_target_": "components.types.Rollout", "max_tokens": 8})), True),
        (key(replace(SPEC, launcher={"nproc": 4})), False),
        (key(parent=replace(BASE, key="b2", path=Path("/elsewhere"), metrics={"a": 1}, cached=True)), False),
        (key(replace(SPEC, settings={name: SPEC.settings[name] for name in sorted(SPEC.settings)})), False),
        (key(with_settings(rewards=tuple(SPEC.settings["rewards"]))), False),
    ],
)
def test_the_key_changes_with_what_the_stage_is_made_of(other: str, changed: bool):
    assert (other != key()) is changed


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(RUN_ONLY)), st.integers() | st.text() | st.none(), st.lists(st.sampled_from("abc")))
def test_a_run_only_setting_of_a_component_stays_out_of_the_key_at_any_depth(name: str, value: object, path: list[str]):
    inner: dict[str, Any] = {"_target_": "components.types.Task", "lr": 1}
    outer: dict[str, Any] = {**inner, name: value}
    for part in path:
        inner, outer = {part: [inner]}, {part: [outer]}
    assert key(with_settings(x=inner)) == key(with_settings(x=outer))
    assert name not in str(key_settings(outer))


@pytest.mark.parametrize("name", sorted(RUN_ONLY - {"api_key"}))
def test_a_term_or_a_quota_that_is_called_like_a_run_only_setting_is_part_of_the_key(name: str):
    for place in ("weights", "quotas"):
        mix = {"_target_": "components.types.Task", place: {name: 1.0, "accuracy": 1.0}}
        other = {"_target_": "components.types.Task", place: {name: 0.5, "accuracy": 1.0}}
        assert key(with_settings(reward=mix)) != key(with_settings(reward=other))
        assert name in str(key_settings(mix))


def test_a_component_of_the_users_own_has_the_run_only_settings_that_its_module_declares(tmp_path: Path, monkeypatch):
    (tmp_path / "own_declared.py").write_text("RUN_ONLY = ('gpus',)\ndef reward(): ...\n")
    (tmp_path / "own_plain.py").write_text("def reward(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    declared = {"_target_": "own_declared.reward", "gpus": 2, "workers": 3}
    assert key_settings(declared) == {"_target_": "own_declared.reward", "workers": 3}
    plain = {"_target_": "own_plain.reward", "gpus": 2, "workers": 3, "progress": 0.5}
    assert key_settings(plain) == plain
    assert key_settings({"workers": 3, "x": 1}, "own_plain.reward") == {"workers": 3, "x": 1}


def test_a_setting_json_cannot_hold_is_named():
    with pytest.raises(ValueError, match=r"rl_1\.algorithm\.beta is nan"):
        key(with_settings(algorithm={"beta": float("nan")}))


def test_the_code_of_a_stage_is_its_function_and_every_node_that_is_not_run_only():
    spec = with_settings(
        engine={"_target_": "components.types.Rollout", "logging": {"_target_": "my.logger"}},
        a=[{"b": {"_target_": "components.types.Group"}}],
    )
    assert targets(spec) == [
        "components.rng.derive",
        "components.types.Group",
        "components.types.Rollout",
        "components.types.Score",
        "components.types.Task",
    ]


def test_a_stage_is_built_once_then_reused_and_says_from_when_and_which_run(store: ArtifactStore):
    launch = Launcher()
    built, said = run(store, launch=launch)
    assert (built.cached, built.metrics, said) == (False, {"reward": 0.5}, ["building: never built", "half way"])
    again, said = run(store, with_settings(workers=16), launch)
    assert again == replace(built, cached=True)
    assert launch.calls == 1
    assert len(said) == 1
    assert said[0].startswith("reused, built 2")
    assert said[0].endswith(" by run run-7")


def test_a_parent_rebuilt_to_equal_content_keeps_its_children(store: ArtifactStore):
    launch = Launcher()
    run(store, launch=launch)
    artifact, _ = run(store, launch=launch, parent=replace(BASE, key="b9"))
    assert artifact.cached


def test_a_stage_with_other_inputs_than_declared_is_refused(store: ArtifactStore):
    with pytest.raises(ValueError, match=r"stage rl_1 takes the inputs \['policy'\], got \[\]"):
        run_stage(SPEC, {}, store, Launcher(), print)


def test_a_failing_stage_leaves_no_artifact_and_the_next_run_builds(store: ArtifactStore):
    with pytest.raises(RuntimeError, match="boom"):
        run(store, launch=Launcher(error=RuntimeError("boom")))
    assert store.ls() == []
    assert run(store)[1][0] == "building: never built"


def test_an_interrupted_stage_says_what_is_kept_and_the_next_run_resumes_there(store: ArtifactStore):
    said: list[str] = []
    with pytest.raises(Interrupted):
        run_stage(SPEC, {"policy": BASE}, store, Launcher(error=Interrupted(), checkpoint=9), said.append)
    assert said[-1] == "stopped; step 9 is kept, the same command goes on there"
    assert explain(SPEC, {"policy": BASE}, store) == "interrupted at step 9"
    artifact, said = run(store)
    assert said[0] == "resuming at step 9"
    assert store.manifest("rl_1", artifact.key)["resumed_at"] == 9


def test_a_damaged_artifact_is_named_and_rebuilt(store: ArtifactStore):
    first, _ = run(store)
    (first.path / "x").write_text("longer")
    artifact, said = run(store)
    assert said[0].startswith("rebuilding, the artifact was damaged: x: 6 bytes, the manifest says 1 (moved to ")
    assert artifact.digest == first.digest


def test_a_full_disk_in_the_stage_is_reported_with_the_draft_and_the_space_left(store: ArtifactStore):
    with pytest.raises(OSError, match="No space left") as caught:
        run(store, launch=Launcher(error=OSError(errno.ENOSPC, "No space left on device", "x")))
    assert "rl_1" in caught.value.__notes__[0]
    assert "are free" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("spec", "parent", "why"),
    [
        (with_settings(steps=6), BASE, "steps: 5 → 6"),
        (with_settings(steps=5.0), BASE, "steps: 5 → 5.0"),
        (
            with_settings(algorithm={"surrogate": {"_target_": "components.types.Task", "eps_high": 0.3}}),
            BASE,
            "algorithm.surrogate.eps_high: 0.2 → 0.3",
        ),
        (
            with_settings(rewards=[{"_target_": "components.types.Score", "weight": 0.5}]),
            BASE,
            "rewards[0].weight: 1.0 → 0.5",
        ),
        (with_settings(beta=None), BASE, "beta: unset → None"),
        (replace(SPEC, settings={k: v for k, v in SPEC.settings.items() if k != "steps"}), BASE, "steps: 5 → unset"),
        (replace(SPEC, seed=3), BASE, "seed: 0 → 3"),
        (SPEC, replace(BASE, key="b2", digest="d2"), "input policy changed (base/b1 → base/b2)"),
        (SPEC, None, "input policy is to be built"),
        (with_settings(steps=6), None, "steps: 5 → 6; input policy is to be built"),
        (replace(SPEC, target="components.rng.stream"), BASE, "target: components.rng.derive → components.rng.stream"),
        (SPEC, BASE, "reused"),
        (replace(SPEC, name="rl_9"), BASE, "never built"),
    ],
)
def test_explain_names_what_changed(store: ArtifactStore, spec: StageSpec, parent: StageArtifact | None, why: str):
    run(store)
    assert explain(spec, {"policy": parent}, store) == why


def test_explain_compares_with_the_nearest_earlier_artifact(store: ArtifactStore):
    run(store, with_settings(steps=100, temperature=0.7))
    run(store, replace(SPEC, seed=1))
    run(store, with_settings(steps=7, temperature=0.1, top_p=0.9))
    assert explain(with_settings(steps=101, temperature=0.7), {"policy": BASE}, store) == "steps: 100 → 101"


def test_explain_keeps_to_one_line(store: ArtifactStore):
    run(store, with_settings(text="a" * 200))
    line = explain(with_settings(text="b" * 200, p=1, q=2, r=3, s=4), {"policy": BASE}, store)
    assert line.endswith("(and 2 more)")
    assert "\n" not in line
    assert len(line) < 200


@pytest.fixture
def own_reward(tmp_path: Path, monkeypatch) -> Path:
    """A reward of the user's own, in a package of two files."""
    package = tmp_path / "code" / "my_rewards"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "score.py").write_text("from my_rewards import parts\ndef score(): return parts.one()\n")
    (package / "parts.py").write_text("def one(): return 1\n")
    monkeypatch.syspath_prepend(str(package.parent))
    return package


OWN = with_settings(reward={"_target_": "my_rewards.score.score"})


def ignoring_code(store: ArtifactStore, spec: StageSpec = OWN, parent: StageArtifact = BASE):
    said: list[tuple[str, dict[str, Any]]] = []
    launch = Launcher("2")

    def say(text: str, **more: Any) -> None:
        said.append((text, more))

    return run_stage(spec, {"policy": parent}, store, launch, say, ignore_code=True), said, launch.calls


def test_who_ignores_code_reuses_what_differs_in_source_files_alone_and_is_told(store: ArtifactStore, own_reward: Path):
    first, _ = run(store, OWN)
    (own_reward / "parts.py").write_text("def one(): return 2\n")
    artifact, said, calls = ignoring_code(store)
    assert (artifact.key, artifact.cached, calls) == (first.key, True, 0)
    edited = "source my_rewards/parts.py edited"
    text = f"reused although its code changed since (cache.code=ignore): {edited}"
    assert said == [(text, {"level": "warning", "code_ignored": [edited]})]
    assert ignoring_code(store)[1] == said  # each time
    assert not run(store, OWN)[0].cached  # and only who asks for it


def test_ignoring_code_is_no_reason_to_ignore_a_setting_a_seed_a_parent_or_damage(
    store: ArtifactStore, own_reward: Path
):
    first, _ = run(store, OWN)
    (own_reward / "parts.py").write_text("def one(): return 2\n")
    for spec, parent in (
        (replace(OWN, settings={**OWN.settings, "steps": 6}), BASE),
        (replace(OWN, seed=1), BASE),
        (OWN, replace(BASE, digest="d2")),
    ):
        assert not ignoring_code(store, spec, parent)[0].cached
    (first.path / "x").write_text("longer")
    assert not ignoring_code(store)[0].cached


def test_the_artifact_of_the_present_code_goes_before_one_of_other_code(store: ArtifactStore, own_reward: Path):
    run(store, OWN)
    (own_reward / "parts.py").write_text("def one(): return 2\n")
    second, _ = run(store, OWN)
    artifact, said, _ = ignoring_code(store)
    assert artifact.key == second.key
    assert said[0][0].startswith("reused, built")


def test_explain_says_that_the_artifact_was_damaged_or_removed(store: ArtifactStore):
    first, _ = run(store)
    (first.path / "x").unlink()
    assert explain(SPEC, {"policy": BASE}, store) == "the finished one was damaged: x: missing"


def test_explain_names_the_source_file_that_changed(store: ArtifactStore, own_reward: Path):
    run(store, OWN)
    (own_reward / "parts.py").write_text("# one\ndef one():\n    '''One.'''\n    return 1\n")
    assert explain(OWN, {"policy": BASE}, store) == "reused"
    (own_reward / "parts.py").write_text("def one(): return 2\n")
    assert explain(OWN, {"policy": BASE}, store) == "source my_rewards/parts.py edited"


@pytest.mark.parametrize(
    ("stale", "parent", "why"),
    [
        (replace(OWN, settings={**OWN.settings, "steps": 6}), BASE, "steps: 5 → 6"),
        (replace(OWN, seed=3), BASE, "seed: 0 → 3"),
        (OWN, replace(BASE, key="b2", digest="d2"), "input policy changed (base/b1 → base/b2)"),
        (OWN, BASE, "source my_rewards/parts.py edited"),
    ],
    ids=["setting", "seed", "parent", "source"],
)
def test_a_run_says_which_setting_seed_parent_or_source_file_made_a_stage_stale(
    store: ArtifactStore, own_reward: Path, stale: StageSpec, parent: StageArtifact, why: str
):
    run(store, OWN)
    if why.startswith("source"):
        (own_reward / "parts.py").write_text("def one(): return 2\n")
    assert run(store, stale, parent=parent)[1][0] == f"building: {why}"


def test_manifests_hold_no_run_only_setting(store: ArtifactStore):
    artifact, _ = run(store, with_settings(judge={"api_key": "sk-very-secret", "model": "m"}))
    text = (artifact.path / "manifest.json").read_text()
    assert "sk-very-secret" not in text
    assert '"model": "m"' in text
