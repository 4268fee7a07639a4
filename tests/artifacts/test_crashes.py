"""Kills and disk errors at every moment of a commit: the artifact is there whole or not at all, and no work is lost."""

import errno
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from components.artifacts import ArtifactStore, Damaged, commit_directory, load_directory, write_jsonl

FILES = {"model/model.safetensors": "w" * 5000, "summary.json": "{}", "logs/metrics.jsonl": '{"step": 1}\n'}


def commit(store: ArtifactStore) -> None:
    with store.claim("rl", "k") as claim:
        if claim.existing() is not None:
            return
        for name, content in FILES.items():
            (claim.draft / name).parent.mkdir(parents=True, exist_ok=True)
            (claim.draft / name).write_text(content)
        claim.commit(metrics={}, parents={}, spec={}, wall_s=0)


def interrupted_draft(store: ArtifactStore) -> None:
    with store.claim("rl", "k") as claim:
        step = claim.draft / "checkpoints" / "step-000005"
        step.mkdir(parents=True)
        (step / "state.json").write_text("{}")


def in_child(body: Callable[[], None]) -> int:
    """Run body in a forked process; its wait status. Audit hooks and limits end with it."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def at_disk_operation(number: int, act: Callable[..., object]) -> None:
    """Call act, with the path if it has one, before the number-th open, mkdir, scandir, rename, unlink or fsync."""
    seen = 0

    def count(event: str, args: tuple = ()) -> None:
        nonlocal seen
        if event == "open" and ("site-packages" in str(args[0]) or str(args[0]).endswith((".py", ".pyc"))):
            return
        if event == "open" or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "fsync"):
            seen += 1
            if seen == number:
                act(*(str(arg) for arg in args[:1] if isinstance(arg, str | os.PathLike)))

    fsync = os.fsync
    sys.addaudithook(count)
    os.fsync = lambda fd: (count("fsync"), fsync(fd))[1]


def whole_or_absent(store: ArtifactStore) -> bool:
    path = store.path("rl", "k")
    if not path.exists():
        return False
    manifest = load_directory(path, full=True)
    assert sorted(manifest["files"]) == sorted(FILES)
    return True


def test_a_kill_at_any_disk_operation_of_a_commit_loses_nothing(tmp_path: Path):
    finished = killed = there = 0
    for number in range(1, 200):
        store = ArtifactStore(tmp_path / str(number))
        interrupted_draft(store)

        def body(store=store, number=number):
            at_disk_operation(number, lambda *path: os.kill(os.getpid(), signal.SIGKILL))
            commit(store)

        status = in_child(body)
        there += whole_or_absent(store)
        with store.claim("rl", "k") as claim:
            # Either finished now from what is on disk, or the checkpoint is there to go on from.
            assert claim.existing() is not None or claim.step == 5
        commit(store)
        assert whole_or_absent(store)
        if status == 0:
            finished += 1
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed += 1
    assert finished == 1
    assert killed > 30
    assert there > 1  # some of the kills came after the rename


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_error_at_any_operation_names_the_path_and_keeps_the_work(tmp_path: Path, code: int):
    named = 0
    for number in range(1, 200):
        store = ArtifactStore(tmp_path / str(number))
        interrupted_draft(store)
        said, failed = tmp_path / "said", tmp_path / "failed"
        for file in (said, failed):
            file.unlink(missing_ok=True)

        def body(store=store, number=number, said=said, failed=failed):
            def fail(*path: str):
                os.close(os.open(failed, os.O_CREAT))
                raise OSError(code, os.strerror(code), *path)  # as the kernel would: the name, but not of a descriptor

            at_disk_operation(number, fail)
            try:
                commit(store)
            except OSError as error:
                said.write_text(f"{error.errno} {error}")

        assert in_child(body) == 0
        whole_or_absent(store)
        with store.claim("rl", "k") as claim:
            assert claim.existing() is not None or claim.step == 5
        commit(store)
        assert whole_or_absent(store)
        if not failed.exists():
            break
        if said.exists():  # else it hit something optional, such as making a folder that is there
            assert said.read_text().startswith(f"{code} ")
            assert str(store.root) in said.read_text()
            named += 1
    assert named > 30


def test_random_kills_during_many_commits_leave_only_whole_artifacts(tmp_path: Path):
    store, draw, found = ArtifactStore(tmp_path), random.Random(0), 0
    for attempt in range(20):
        committed, report = os.pipe()
        if (pid := os.fork()) == 0:
            for i in range(10_000):
                with store.claim(f"s{attempt}", f"k{i}") as claim:
                    write_jsonl(claim.draft / "rows.jsonl", ({"row": row} for row in range(50)))
                    claim.commit(metrics={}, parents={}, spec={}, wall_s=0)
                os.write(report, b".")
            os._exit(0)
        os.read(committed, 1)
        time.sleep(draw.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(committed)
        os.close(report)
        checks = store.verify()
        assert [check for check in checks if check[2]] == []
        found = len(checks)
    assert found >= 20


def test_a_commit_over_an_old_directory_killed_anywhere_leaves_the_old_or_the_new_or_none(tmp_path: Path):
    for number in range(1, 100):
        folder = tmp_path / str(number)
        for content in ("old", "new"):
            (folder / "tmp").mkdir(parents=True)
            (folder / "tmp" / "x").write_text(content)
            if content == "old":
                commit_directory(folder / "tmp", folder / "step-000001", {})

        def body(folder=folder, number=number):
            at_disk_operation(number, lambda *path: os.kill(os.getpid(), signal.SIGKILL))
            commit_directory(folder / "tmp", folder / "step-000001", {})

        status = in_child(body)
        if (folder / "step-000001").exists():
            load_directory(folder / "step-000001", full=True)
        assert [p.name for p in folder.glob("step-*")] in ([], ["step-000001"])
        if status == 0:
            return
    pytest.fail("the commit never finished")


def test_a_full_disk_names_path_bytes_and_remedy_and_leaves_the_old_one(tmp_path: Path, monkeypatch):
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "x").write_text("12345")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"cannot flush .*draft/x \(5 bytes\): No space left.* bytes are free.*artifacts=PATH"
    ) as caught:
        commit_directory(tmp_path / "draft", tmp_path / "final", {})
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "final").exists()


def test_a_file_size_limit_names_path_and_bytes(tmp_path: Path):
    path = tmp_path / "rows.jsonl"

    def body() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            write_jsonl(path, ({"text": "x" * 1000} for _ in range(1000)))
        except OSError as error:
            (tmp_path / "said").write_text(str(error))

    assert in_child(body) == 0
    assert str(path) in (said := (tmp_path / "said").read_text())
    assert "ulimit -f" in said
    assert "bytes" in said


def test_an_unwritable_root_is_named_with_a_remedy(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(OSError, match=r"cannot lock .*/file/a/k\.lock"),
        ArtifactStore(tmp_path / "file").claim("a", "k"),
    ):
        pass


def test_a_half_written_draft_is_never_mistaken_for_an_artifact(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    with store.claim("a", "k") as claim:
        (claim.draft / "x").write_text("1")
    assert store.find("a", "k") is None
    assert store.ls() == []
    with pytest.raises(Damaged):
        store.manifest("a", "k")
