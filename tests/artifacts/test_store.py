"""Publishing, finding, verifying: what is not whole is never used, and nothing is lost on the way."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest

from components.artifacts import ArtifactStore, Damaged, UnknownSchema, commit_directory, load_directory, read_jsonl
from components.runtime import StageArtifact

WEIGHTS, TEXT = "model/model.safetensors", "tasks/train.jsonl"


def build(store: ArtifactStore, stage: str = "base", key: str = "k1", *, log: str = "0.1 s", **parents: StageArtifact):
    with store.claim(stage, key) as claim:
        assert claim.existing() is None
        for name, content in {WEIGHTS: "w" * 1000, TEXT: '{"a": 1}\n', "logs/timing.txt": log, "empty": ""}.items():
            (claim.draft / name).parent.mkdir(parents=True, exist_ok=True)
            (claim.draft / name).write_text(content)
        step = claim.draft / "checkpoints" / "step-000007"
        step.mkdir(parents=True)
        (step / "state.json").write_text("{}")
        return claim.commit(metrics={"loss": 0.5}, parents=parents, spec={"settings": {"lr": 1e-3}}, wall_s=1.25)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "cache", run="run-1")


def test_a_committed_artifact_is_found_again_with_its_metrics_and_parents(store: ArtifactStore):
    parent = build(store, "curate", "k0")
    built = build(store, data=parent)
    found = store.find("base", "k1")
    assert found is not None
    assert not built.cached
    assert found == StageArtifact(**{**vars(built), "cached": True})
    assert found.metrics == {"loss": 0.5}
    assert found.parents == {"data": "curate/k0"}
    assert (found.path / TEXT).read_text() == '{"a": 1}\n'


def test_the_manifest_says_what_the_artifact_is_made_of_and_holds(store: ArtifactStore):
    parent = build(store, "curate", "k0")
    build(store, data=parent)
    manifest = store.manifest("base", "k1")
    assert sorted(manifest["files"]) == ["empty", "logs/timing.txt", WEIGHTS, TEXT]
    # sha256 of the empty string
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert manifest["files"]["empty"] == {"sha256": empty, "size": 0}
    assert manifest["parents"]["data"] == {"stage": "curate", "key": "k0", "digest": parent.digest}
    assert (manifest["spec"], manifest["run"], manifest["wall_s"]) == ({"settings": {"lr": 1e-3}}, "run-1", 1.25)
    assert "python" in manifest["versions"]


def test_checkpoints_are_dropped_and_no_draft_stays(store: ArtifactStore):
    built = build(store)
    assert not (built.path / "checkpoints").exists()
    assert not store.draft_path("base", "k1").exists()
    assert store.drafts() == []


def test_logs_do_not_enter_the_content_digest_but_everything_else_does(store: ArtifactStore, tmp_path: Path):
    other = build(ArtifactStore(tmp_path / "other"), log="9.9 s")
    assert build(store).digest == other.digest
    renamed = tmp_path / "renamed"
    shutil.copytree(other.path, renamed)
    (renamed / "manifest.json").unlink()
    (renamed / "empty").rename(renamed / "void")
    assert commit_directory(renamed, tmp_path / "final", {})["digest"] != other.digest


def test_a_metric_that_is_not_a_number_becomes_none_and_costs_nothing(store: ArtifactStore):
    with store.claim("a", "k") as claim:
        claim.draft.joinpath("x").write_text("1")
        built = claim.commit(metrics={"kl": math.nan, "by": {"gcd": (1, math.inf)}}, parents={}, spec={}, wall_s=0)
    found = store.find("a", "k")
    assert found is not None
    assert built.metrics == found.metrics == {"kl": None, "by": {"gcd": [1, None]}}


def test_a_metric_without_json_form_is_named_and_the_draft_stays(store: ArtifactStore):
    with store.claim("a", "k") as claim:
        (claim.draft / "checkpoints" / "step-000002").mkdir(parents=True)
        with pytest.raises(TypeError, match=r"metrics\.loss\.fn is a builtin"):
            claim.commit(metrics={"loss": {"fn": len}}, parents={}, spec={}, wall_s=0)
        assert claim.step == 2


def truncate(path: Path) -> str:
    (path / TEXT).write_text("{")
    return f"{TEXT}: 1 bytes, the manifest says 9"


def empty(path: Path) -> str:
    (path / WEIGHTS).write_text("")
    return f"{WEIGHTS}: 0 bytes, the manifest says 1,000"


def flip(path: Path) -> str:
    (path / WEIGHTS).write_text("w" * 500 + "v" + "w" * 499)
    return f"{WEIGHTS}: content does not have the sha256"


def remove(path: Path) -> str:
    (path / TEXT).unlink()
    return f"{TEXT}: missing"


def add(path: Path) -> str:
    (path / "model" / "extra.bin").write_text("x")
    return "model/extra.bin: not in the manifest"


def link(path: Path) -> str:
    (path / TEXT).unlink()
    (path / TEXT).symlink_to("/etc/hostname")
    return f"{TEXT}: neither a regular file nor a folder"


def remove_manifest(path: Path) -> str:
    (path / "manifest.json").unlink()
    return "manifest.json: missing"


def truncate_manifest(path: Path) -> str:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text[: len(text) // 2])
    return "manifest.json: not JSON"


def edit_metrics(path: Path) -> str:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"loss": 0.5', '"loss": 0.1'))
    return "manifest.json: its content does not have the sha256 it was sealed with"


def foreign_manifest(path: Path) -> str:
    (path / "manifest.json").write_text('{"name": "my web app"}')
    return "manifest.json: not a manifest of r1flow (schema None)"


def file_for_folder(path: Path) -> str:
    shutil.rmtree(path)
    path.write_text("x")
    return "is not a folder"


def folder_for_manifest(path: Path) -> str:
    (path / "manifest.json").unlink()
    (path / "manifest.json").mkdir()
    return "manifest.json: is a folder, not a file"


DAMAGES = [truncate, empty, flip, remove, add, link, remove_manifest, truncate_manifest, edit_metrics, foreign_manifest]
DAMAGES += [file_for_folder, folder_for_manifest]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_artifact_is_named_set_aside_and_rebuilt(store: ArtifactStore, damage):
    first = build(store)
    problem = damage(first.path)
    with store.claim("base", "k1") as claim:
        assert claim.existing() is None
        assert problem in claim.set_aside
    assert problem in (store.quarantined("base", "k1") or "")
    assert (store.root / ".quarantine" / "base" / "k1.001").exists()  # kept for a look, not deleted
    assert build(store).digest == first.digest
    assert store.find("base", "k1") is not None


@pytest.mark.parametrize("damage", DAMAGES)
def test_finding_without_a_claim_sets_a_damaged_artifact_aside_too(store: ArtifactStore, damage):
    damage(build(store).path)
    assert store.find("base", "k1") is None
    assert not store.path("base", "k1").exists()


def test_a_flipped_byte_in_a_small_file_is_found_at_every_reuse(store: ArtifactStore):
    (build(store).path / TEXT).write_text('{"a": 2}\n')
    assert store.find("base", "k1") is None


def test_a_flipped_byte_in_large_data_is_found_by_full_verification(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("components.artifacts.directory._SMALL", 4)
    built = build(store)
    (built.path / TEXT).write_text('{"a": 2}\n')
    assert store.find("base", "k1") is not None  # quick: sizes, and hashes of *.safetensors only
    with pytest.raises(Damaged, match=f"{TEXT}: content"):
        ArtifactStore(store.root, always_hash=("*.jsonl",)).load("base", "k1")
    build(store, "base", "k2")
    (problem, good) = store.verify()
    assert problem[:2] == ("base", "k1")
    assert TEXT in problem[2]
    assert "moved to" in problem[2]
    assert good == ("base", "k2", "")
    assert store.find("base", "k1") is None


def test_full_verification_reads_the_bytes_even_if_size_and_time_are_as_before(store: ArtifactStore):
    path = build(store).path
    os.utime(path / WEIGHTS, ns=(10**18, 10**18))
    load_directory(path, full=True)
    flip(path)
    os.utime(path / WEIGHTS, ns=(10**18, 10**18))
    with pytest.raises(Damaged, match=f"{WEIGHTS}: content"):
        load_directory(path, full=True)


def test_a_damaged_artifact_that_someone_works_on_is_left_in_place(store: ArtifactStore):
    truncate(build(store).path)
    with store.claim("base", "k1"):
        assert store.find("base", "k1") is None
        assert store.path("base", "k1").exists()
        assert "in use" in store.verify()[0][2]


def test_an_artifact_copied_under_another_key_is_not_believed(store: ArtifactStore):
    shutil.copytree(build(store).path, store.path("base", "k2"))
    assert store.find("base", "k2") is None
    assert "belongs to base/k1" in (store.quarantined("base", "k2") or "")


def test_two_damaged_artifacts_of_one_key_are_both_kept(store: ArtifactStore):
    for _ in range(2):
        truncate(build(store).path)
        assert store.find("base", "k1") is None
    assert sorted(p.name for p in (store.root / ".quarantine/base").iterdir() if p.is_dir()) == ["k1.001", "k1.002"]


def test_a_manifest_of_a_newer_version_is_an_error_and_is_not_touched(store: ArtifactStore):
    path = build(store).path / "manifest.json"
    path.write_text(path.read_text().replace('"r1flow/1"', '"r1flow/2"'))
    with pytest.raises(UnknownSchema, match=r"written by a newer r1flow \(schema r1flow/2.*Upgrade"):
        store.find("base", "k1")
    assert "newer" in store.ls()[0]["problem"]
    assert "newer" in store.verify()[0][2]
    assert path.exists()


@pytest.mark.parametrize(
    "content", ["[]", "3", "null", "", "{" * 100_000, '{"schema": "r1flow/1", "files": 3}', "\0\0"]
)
def test_any_nonsense_in_place_of_a_manifest_is_damage(tmp_path: Path, content: str):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(Damaged, match=r"manifest\.json: "):
        load_directory(tmp_path, full=False)


def test_ls_gives_artifacts_oldest_first_and_names_unreadable_ones(store: ArtifactStore):
    build(store, "curate", "k0")
    remove_manifest(build(store, "base", "k1").path)
    rows = {row["stage"]: row for row in store.ls()}
    assert rows["curate"]["size"] == 1000 + 9 + 5
    assert rows["curate"]["problem"] == ""
    assert "manifest.json: missing" in rows["base"]["problem"]
    assert [row["stage"] for row in store.ls("curate")] == ["curate"]


@pytest.mark.parametrize("name", ["..", ".", "", ".hidden", "a/b", "a" * 81, "ä", "a b", "a\n"])
def test_names_that_could_leave_the_root_or_hide_are_refused(store: ArtifactStore, name: str):
    with pytest.raises(ValueError, match="not usable as a directory name"):
        store.find(name, "k")
    with pytest.raises(ValueError, match="not usable as a directory name"), store.claim("a", name):
        pass


def test_a_key_that_looks_like_a_draft_is_refused(store: ArtifactStore):
    with pytest.raises(ValueError, match="must not end in"):
        store.find("a", "k.partial")


def test_a_draft_without_checkpoints_starts_empty_and_one_with_them_is_kept(store: ArtifactStore):
    with store.claim("a", "k") as claim:
        (claim.draft / "rollouts.jsonl").write_text("half")
    with store.claim("a", "k") as claim:
        assert list(claim.draft.iterdir()) == []
        (claim.draft / "checkpoints" / "step-000012").mkdir(parents=True)
        (claim.draft / "checkpoints" / "step-000009").mkdir(parents=True)
        (claim.draft / "rollouts.jsonl").write_text("half")
    assert store.drafts() == [{"stage": "a", "key": "k", "path": store.draft_path("a", "k"), "step": 12}]
    with store.claim("a", "k") as claim:
        assert (claim.draft / "rollouts.jsonl").read_text() == "half"
        assert claim.commit(metrics={}, parents={}, spec={}, wall_s=0).path.is_dir()
    assert store.manifest("a", "k")["resumed_at"] == 12


def test_a_symbolic_link_or_a_manifest_of_its_own_cannot_be_published(tmp_path: Path):
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="the store's own"):
        commit_directory(draft, tmp_path / "final", {})
    (draft / "manifest.json").unlink()
    (draft / "link").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="link: neither a regular file"):
        commit_directory(draft, tmp_path / "final", {})
    assert not (tmp_path / "final").exists()


def test_committing_over_an_existing_directory_replaces_it(tmp_path: Path):
    for content in ("old", "new"):
        (tmp_path / "tmp").mkdir()
        (tmp_path / "tmp" / "x").write_text(content)
        commit_directory(tmp_path / "tmp", tmp_path / "step-000001", {"step": 1})
    assert load_directory(tmp_path / "step-000001", full=True)["step"] == 1
    assert (tmp_path / "step-000001" / "x").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_the_root_may_be_a_link_to_another_disk(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    build(ArtifactStore(tmp_path / "cache"))
    assert ArtifactStore(tmp_path / "disk").find("base", "k1") is not None
    assert json.loads((tmp_path / "disk/base/k1/manifest.json").read_text())["stage"] == "base"
    assert read_jsonl(tmp_path / "disk/base/k1" / TEXT) == [{"a": 1}]


def test_verification_goes_on_after_artifacts_of_odd_kinds(store: ArtifactStore):
    for key in ("k1", "k2", "k3", "k4"):
        build(store, key=key)
    file_for_folder(store.path("base", "k1"))
    folder_for_manifest(store.path("base", "k2"))
    flip(store.path("base", "k3"))
    lock = store.lock_path("base", "k3")
    lock.unlink()
    lock.mkdir()
    assert [bool(row["problem"]) for row in store.ls()] == [True, True, False, False]
    problems = [problem for _, _, problem in store.verify()]
    assert problems[0].startswith("is not a folder (moved to ")
    assert problems[1].startswith("manifest.json: is a folder, not a file (moved to ")
    assert problems[2].endswith(
        "(left where it is: cannot lock " + f"{lock}: Is a directory. Something else stands in its place: remove that)"
    )
    assert problems[3] == ""
    assert store.find("base", "k3") is None
    with pytest.raises(IsADirectoryError, match="remove that"), store.claim("base", "k3"):
        pass
