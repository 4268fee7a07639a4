"""Archives: what goes in comes out byte for byte, and nothing that a stranger could put into one gets any further."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from components.artifacts import ArtifactStore, Damaged
from components.artifacts.archive import INDEX, BadArchive, compression_of, write_archive
from components.artifacts.transfer import receive
from components.runtime import StageArtifact

FILES = {"model/weights.safetensors": b"\x00\x01" * 70_000, "model/config.json": b"{}", "logs/worker-0.log": b""}


def build(store: ArtifactStore, stage: str, key: str, parents: dict[str, StageArtifact] | None = None) -> StageArtifact:
    with store.claim(stage, key) as claim:
        for name, data in FILES.items():
            (claim.draft / name).parent.mkdir(parents=True, exist_ok=True)
            (claim.draft / name).write_bytes(data + stage.encode())
        return claim.commit(metrics={"loss": 1}, parents=parents or {}, spec={"settings": {}}, wall_s=1)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "here")


@pytest.fixture
def other(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "there")


@pytest.fixture
def paths(store: ArtifactStore) -> list[Path]:
    base = build(store, "base", "k1")
    return [base.path, build(store, "sft", "k2", {"model": base}).path]


def files(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz"])
def test_what_goes_in_comes_out(
    store: ArtifactStore, other: ArtifactStore, paths: list[Path], tmp_path: Path, ending: str
) -> None:
    write_archive(tmp_path / f"a{ending}", paths, {"id": "r"})
    got = receive(tmp_path / f"a{ending}", other)
    assert (got.imported, got.present, got.run) == ([("base", "k1"), ("sft", "k2")], [], {"id": "r"})
    assert files(other.root) == files(store.root)
    assert [problem for *_, problem in other.verify()] == ["", ""]


def test_the_same_artifacts_give_the_same_bytes(paths: list[Path], tmp_path: Path) -> None:
    for name in ("a.tar.gz", "b.tar.gz"):
        write_archive(tmp_path / name, paths)
        for path in paths[0].rglob("*"):
            os.utime(path, (1, 1))
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_what_is_there_already_is_left_alone_and_what_is_damaged_there_is_replaced(
    store: ArtifactStore, other: ArtifactStore, paths: list[Path], tmp_path: Path
) -> None:
    write_archive(tmp_path / "a.tar", paths)
    receive(tmp_path / "a.tar", other)
    whole = other.path("base", "k1")
    before = {path: path.stat().st_ino for path in whole.rglob("*")}
    (other.path("sft", "k2") / "model" / "config.json").unlink()
    got = receive(tmp_path / "a.tar", other)
    assert (got.imported, got.present) == ([("sft", "k2")], [("base", "k1")])
    assert {path: path.stat().st_ino for path in whole.rglob("*")} == before
    assert [problem for *_, problem in other.verify()] == ["", ""]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes() + b"x"),
        lambda file: file.write_bytes(b"x" * file.stat().st_size),
        lambda file: file.unlink(),
    ],
    ids=["shorter", "longer", "other", "missing"],
)
def test_a_damaged_artifact_is_not_exported(paths: list[Path], tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    spoil(paths[1] / "model" / "weights.safetensors")
    with pytest.raises(Damaged, match=r"model/weights\.safetensors"):
        write_archive(tmp_path / "a.tar", paths)
    assert not list(tmp_path.glob("*.tar")) + list(tmp_path.glob(".*"))


def test_an_archive_is_not_written_over_a_file(paths: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_text("mine")
    with pytest.raises(FileExistsError):
        write_archive(tmp_path / "a.tar", paths)
    assert (tmp_path / "a.tar").read_text() == "mine"


def test_an_ending_that_says_nothing_is_refused() -> None:
    assert compression_of(Path("x/a.tar.gz")) == "gzip"
    with pytest.raises(ValueError, match=r"a\.zip has none of the endings \.tar, "):
        compression_of(Path("a.zip"))


# --- archives of a stranger -------------------------------------------------------------------------------------------

Member = tuple[tarfile.TarInfo, bytes]


def members(path: Path) -> list[Member]:
    with tarfile.open(path) as tar:
        found = [(member, tar.extractfile(member)) for member in tar]
        return [(member, content.read()) for member, content in found if content is not None]


def rewrite(source: Path, target: Path, change: Callable[[list[Member]], list[Member]]) -> Path:
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        for member, data in change(members(source)):
            if member.isreg():
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return target


def added(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "", at: int = 2) -> Callable:
    """A member more, by default after the first artifact's manifest."""

    def change(found: list[Member]) -> list[Member]:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        return [*found[:at], (member, data), *found[at:]]

    return change


def edited(ending: str, edit: Callable[[bytes], bytes]) -> Callable:
    return lambda found: [(m, edit(data) if m.name.endswith(ending) else data) for m, data in found]


def forged_digest(data: bytes) -> bytes:
    """A manifest that claims another content, sealed as if it were true."""
    from components.artifacts.directory import _seal

    manifest = json.loads(data)
    manifest["digest"] = "0" * 64
    manifest["seal"] = _seal(manifest)
    return json.dumps(manifest).encode()


HOSTILE = {
    "up": (added("base/k1/../../../../evil"), "no name of a file"),
    "up at once": (added("../evil"), "no name of a file"),
    "absolute": (added("/tmp/evil"), "no name of a file"),
    "dots": (added("base/../k1/x"), "no name of a file"),
    "backslash": (added("base/k1/..\\evil"), "no name of a file"),
    "stage up": (added("../x/y"), "no name of a file"),
    "hidden stage": (added(".quarantine/k1/x", at=99), "not in the index"),
    "no manifest first": (lambda found: [found[0], *found[2:]], r"does not begin with a manifest\.json"),
    "symlink": (added("base/k1/link", kind=tarfile.SYMTYPE, link="/etc/passwd"), "only plain files"),
    "hard link": (added("base/k1/link", kind=tarfile.LNKTYPE, link="/etc/passwd"), "only plain files"),
    "device": (added("base/k1/null", kind=tarfile.CHRTYPE), "only plain files"),
    "pipe": (added("base/k1/pipe", kind=tarfile.FIFOTYPE), "only plain files"),
    "folder": (added("base/k1/folder", kind=tarfile.DIRTYPE), "only plain files"),
    "not listed": (added("base/k1/extra"), "not in the manifest"),
    "twice": (lambda found: [*found, found[2]], "twice in the archive"),
    "the same file again": (lambda found: [*found[:3], found[2], *found[3:]], "twice, or not in the manifest"),
    "another artifact": (added("rl/k9/manifest.json", at=99), "not in the index"),
    "other bytes": (edited("weights.safetensors", lambda d: b"x" * len(d)), "does not have the sha256"),
    "fewer bytes": (edited("weights.safetensors", lambda d: d[:-1]), "bytes, the manifest says"),
    "a missing file": (lambda found: [m for m in found if "config" not in m[0].name], r"config\.json: missing"),
    "a missing artifact": (lambda found: [m for m in found if "sft" not in m[0].name], "sft/k2 is missing"),
    "no index": (lambda found: found[1:], "does not begin with r1flow-archive.json"),
    "another schema": (edited(INDEX, lambda d: d.replace(b"archive/1", b"archive/2")), "schema"),
    "an index of nonsense": (edited(INDEX, lambda d: b'{"schema": "r1flow-archive/1", "artifacts": [3]}'), "describe"),
    "an edited manifest": (edited("manifest.json", lambda d: d.replace(b'"loss": 1', b'"loss": 0')), "sealed"),
    "a forged manifest": (edited("manifest.json", forged_digest), "not the one the index describes"),
    "a name that leads out": (
        lambda found: [(m, d.replace(b'"stage": "base"', b'"stage": "../x"')) for m, d in found],
        "manifest|index|usable",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_an_archive_must_not_hold_is_refused_and_leaves_nothing(
    other: ArtifactStore, paths: list[Path], tmp_path: Path, case: str
) -> None:
    change, told = HOSTILE[case]
    write_archive(tmp_path / "good.tar", paths)
    bad = rewrite(tmp_path / "good.tar", tmp_path / "bad.tar", change)
    before = {str(path) for path in tmp_path.rglob("*")}
    with pytest.raises(BadArchive, match=told) as caught:
        receive(bad, other)
    assert str(bad) in str(caught.value)
    new = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if str(path) not in before}
    assert {name.split("/")[0] for name in new} <= {"there"}
    assert other.ls() == []
    assert not [path for path in other.root.rglob("*") if path.is_symlink()]
    assert not list((other.root / ".incoming").glob("*"))


def test_a_forged_digest_is_refused_although_index_and_seal_agree(
    other: ArtifactStore, paths: list[Path], tmp_path: Path
) -> None:
    write_archive(tmp_path / "good.tar", paths)

    def change(found: list[Member]) -> list[Member]:
        manifest = json.loads(forged_digest(found[1][1]))
        index = json.loads(found[0][1])
        index["artifacts"][0] |= {"digest": manifest["digest"], "seal": manifest["seal"]}
        return [(found[0][0], json.dumps(index).encode()), (found[1][0], json.dumps(manifest).encode()), *found[2:]]

    with pytest.raises(BadArchive, match="not the one the index describes"):
        receive(rewrite(tmp_path / "good.tar", tmp_path / "bad.tar", change), other)
    assert other.ls() == []


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_an_archive_that_is_cut_off_anywhere_gives_one_line_and_no_half_artifact(
    other: ArtifactStore, paths: list[Path], tmp_path: Path, ending: str
) -> None:
    write_archive(tmp_path / f"good{ending}", paths)
    data = (tmp_path / f"good{ending}").read_bytes()
    last = 0
    for part in range(1, 20):
        cut = tmp_path / f"cut{ending}"
        cut.write_bytes(data[: len(data) * part // 20])
        if ending == ".tar" and len(data) * part // 20 >= len(data) - 20_480:
            break  # only the padding is gone
        with pytest.raises(BadArchive):
            receive(cut, other)
        assert other.ls() == []
        assert not list((other.root / ".incoming").glob("*"))
        last = part
    assert last > 10


def test_a_file_of_another_kind_is_refused(other: ArtifactStore, tmp_path: Path) -> None:
    for data in (b"", b"hello", gzip.compress(b"hello"), b"\x28\xb5\x2f\xfd0000", os.urandom(4096)):
        (tmp_path / "x.tar").write_bytes(data)
        with pytest.raises(BadArchive, match=r"x\.tar"):
            receive(tmp_path / "x.tar", other)


def test_an_archive_larger_than_the_disk_is_refused_before_anything_is_written(
    other: ArtifactStore, paths: list[Path], tmp_path: Path
) -> None:
    write_archive(tmp_path / "good.tar", paths)
    huge = edited(INDEX, lambda data: data.replace(b'"size": ', b'"size": 9999999999'))
    with pytest.raises(BadArchive, match=r"needs [\d,]{20,} bytes"):
        receive(rewrite(tmp_path / "good.tar", tmp_path / "bad.tar", huge), other)
    assert not other.root.exists() or not list(other.root.glob(".incoming/*"))


def test_verification_names_every_damaged_file_of_every_artifact(store: ArtifactStore, paths: list[Path]) -> None:
    (paths[0] / "model" / "config.json").write_text("{ ")
    (paths[0] / "model" / "weights.safetensors").write_bytes(b"x" * (len(FILES["model/weights.safetensors"]) + 4))
    (paths[1] / "model" / "config.json").unlink()
    (paths[1] / "extra").write_text("")
    (first, second) = [problem for *_, problem in store.verify()]
    assert "model/config.json" in first and "model/weights.safetensors: content" in first and "moved to" in first
    assert "model/config.json: missing" in second and "extra: not in the manifest" in second
    assert store.verify() == []


def test_verification_hashes_from_the_bytes_also_what_this_process_has_hashed_before(
    store: ArtifactStore, paths: list[Path]
) -> None:
    assert [problem for *_, problem in store.verify()] == ["", ""]
    file = paths[0] / "model" / "weights.safetensors"
    info, data = file.stat(), file.read_bytes()
    file.write_bytes(b"y" + data[1:])
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert hashlib.sha256(file.read_bytes()).hexdigest() != hashlib.sha256(data).hexdigest()
    assert "weights.safetensors" in store.verify([("base", "k1")])[0][2]
