"""Garbage collection, pins and the rest of ``r1flow cache`` on real runs of the toy pipeline."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from pathlib import Path

import pytest

from components.artifacts import ArtifactStore
from components.artifacts.archive import write_archive
from components.runtime import StageArtifact
from flows.build import stage_specs
from flows.cache import age, garbage
from flows.cache.garbage import Rules, collect, find_garbage
from flows.cache.pins import Target, make_pins, read_pins, remove_pins, resolve
from flows.cli import main
from flows.compose import compose
from flows.errors import BadInput
from flows.run import run
from flows.runs import RunRecord, held, list_runs
from tests.flows.conftest import FIXTURES

DAY = 86_400


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three real runs: the second has another first stage, the third another second stage than the first run."""
    art = tmp_path_factory.mktemp("built") / "artifacts"
    for overrides in ([], ["first.steps=9"], ["second.steps=3"]):
        assert run([f"artifacts={art}", *overrides], FIXTURES / "conf", quiet=True) == 0
    return art


@pytest.fixture
def art(built: Path, tmp_path: Path, monkeypatch) -> Path:
    """A copy of the three runs, of one's own."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(built, tmp_path / "artifacts"))


@pytest.fixture
def names(art: Path) -> list[str]:
    return [record["id"] for record in list_runs(art)]


def have(art: Path) -> set[tuple[str, str]]:
    return {(row["stage"], row["key"]) for row in ArtifactStore(art / "cache").ls()}


def used(art: Path, name: str) -> set[tuple[str, str]]:
    [record] = [record for record in list_runs(art) if record["id"] == name]
    return {(stage, entry["key"]) for stage, entry in record["stages"].items()}


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_any_run_used_stays_and_what_none_did_goes(names: list[str], art: Path, conf: Path) -> None:
    first, second, third = names
    assert find_garbage(art, Rules()).items == []
    shutil.rmtree(art / "runs" / first)
    shutil.rmtree(art / "runs" / third)
    expected = have(art) - used(art, second)
    assert {stage for stage, _ in expected} == {"first", "second", "report"}  # numbers is shared
    before = snapshot(art)
    found = find_garbage(art, Rules())
    assert {(item.stage, item.key) for item in found.items} == expected
    assert snapshot(art) == before
    removed = collect(art, Rules())
    assert removed.size == found.size > 0
    assert have(art) == used(art, second)
    assert not (art / "cache" / ".trash").exists()
    assert run([f"artifacts={art}", "first.steps=9"], conf) == 0
    assert {stage["state"] for stage in list_runs(art)[-1]["stages"].values()} == {"reused"}


def test_the_last_runs_keep_what_they_share_with_older_ones(names: list[str], art: Path) -> None:
    collect(art, Rules(keep_last=2))
    assert have(art) == used(art, names[1]) | used(art, names[2])
    collect(art, Rules(keep_last=1))
    assert have(art) == used(art, names[2])
    collect(art, Rules(keep_last=0))
    assert have(art) == set()
    assert [record["id"] for record in list_runs(art)] == names  # records stay


def test_runs_and_artifacts_younger_than_the_age_stay(names: list[str], art: Path, monkeypatch) -> None:
    later = time.time() + 40 * DAY
    monkeypatch.setattr(garbage.time, "time", lambda: later)
    assert len(find_garbage(art, Rules(older_than_s=39 * DAY)).items) == len(have(art)) == 9
    assert find_garbage(art, Rules(older_than_s=41 * DAY)).items == []
    last = find_garbage(art, Rules(keep_last=1, older_than_s=39 * DAY)).items
    assert {(item.stage, item.key) for item in last} == have(art) - used(art, names[2])
    for name in names:
        shutil.rmtree(art / "runs" / name)
    assert find_garbage(art, Rules(older_than_s=41 * DAY)).items == []  # used by no run, but young
    assert len(find_garbage(art, Rules(older_than_s=39 * DAY)).items) == 9


def test_a_run_in_progress_keeps_what_it_used_and_anything_it_has_not_come_to(art: Path, conf: Path) -> None:
    of = {stage: sorted(key for name, key in have(art) if name == stage) for stage in ("first", "second", "report")}
    config = compose([], conf)
    record = RunRecord.start(art, config, stage_specs(config))
    [numbers] = [key for name, key in have(art) if name == "numbers"]
    done = {"event": "stage", "stage": "numbers", "state": "reused"}
    record({**done, "artifact": {"key": numbers, "path": "/x", "digest": "d"}})
    assert find_garbage(art, Rules(keep_last=0)).items == []  # whatever first, second, report reuse
    key = next(k for k in of["first"] if sum(built_from(art, "second", other, k) for other in of["second"]) == 1)
    record({**done, "stage": "first", "artifact": {"key": key, "path": "/x", "digest": "d"}})
    # Either of the second stages may still be reused, and these need either of the first ones.
    assert find_garbage(art, Rules(keep_last=0)).items == []
    for stage in ("second", "report"):
        mine = next(k for k in of[stage] if built_from(art, stage, k, key))
        record({**done, "stage": stage, "artifact": {"key": mine, "path": "/x", "digest": "d"}})
    collect(art, Rules(keep_last=0))
    assert have(art) == used(art, record.id)
    assert {key for stage, key in have(art) if stage == "first"} == {key}
    record.finish("done", 0)
    collect(art, Rules(keep_last=0))
    assert have(art) == set()


def built_from(art: Path, stage: str, key: str, first: str) -> bool:
    parents = ArtifactStore(art / "cache").manifest(stage, key)["parents"].values()
    return any(p["key"] == first or built_from(art, p["stage"], p["key"], first) for p in parents)


def test_a_killed_run_does_not_count_as_one_in_progress(art: Path, conf: Path) -> None:
    config = compose([], conf)
    record = RunRecord.start(art, config, stage_specs(config))
    record._lock.close()  # as the kernel does when the process dies
    assert len(find_garbage(art, Rules(keep_last=0)).items) == 9


def test_a_run_that_starts_waits_until_the_collection_is_over(art: Path, conf: Path) -> None:
    config, started = compose([], conf), threading.Event()

    def start() -> None:
        RunRecord.start(art, config, stage_specs(config)).finish("done", 0)
        started.set()

    with held(art, exclusive=True):
        thread = threading.Thread(target=start)
        thread.start()
        assert not started.wait(0.3)
        assert len(list_runs(art)) == 3
    thread.join(10)
    assert started.is_set()


def test_pinned_runs_and_artifacts_stay_with_what_they_were_built_from(names: list[str], art: Path) -> None:
    [key] = [key for stage, key in used(art, names[1]) if stage == "second"]
    make_pins(art, [Target(run=names[0]), Target(stage="second", key=key)])
    collect(art, Rules(keep_last=0))
    kept = {where for where in used(art, names[1]) if where[0] != "report"}
    assert have(art) == used(art, names[0]) | kept
    assert remove_pins(art, [Target(run=names[0])]) == [Target(run=names[0])]
    collect(art, Rules(keep_last=0))
    assert have(art) == kept


def test_what_a_process_works_on_is_left(art: Path) -> None:
    store = ArtifactStore(art / "cache")
    key = next(key for stage, key in have(art) if stage == "first")
    with store.claim("first", key):
        found = collect(art, Rules(keep_last=0))
    assert [(item.stage, item.key) for item in found.in_use] == [("first", key)]
    assert have(art) == {("first", key)}


def draft(store: ArtifactStore, stage: str, age_s: float = 0.0) -> Path:
    path = store.draft_path(stage, "k")
    (path / "checkpoints" / "step-000007").mkdir(parents=True)
    (path / "checkpoints" / "step-000007" / "state.json").write_text("{}")
    for entry in (path, *path.rglob("*")):
        os.utime(entry, (time.time() - age_s, time.time() - age_s))
    return path


def test_drafts_go_only_when_asked_for_and_untouched(art: Path, conf: Path) -> None:
    store = ArtifactStore(art / "cache")
    old, new, busy = draft(store, "first", 2 * DAY), draft(store, "second"), draft(store, "report", 2 * DAY)
    collect(art, Rules())
    assert old.exists()
    with store.claim("report", "k"):
        found = collect(art, Rules(partial=True))
    assert [item.stage for item in found.in_use] == ["report"]
    assert (old.exists(), new.exists(), busy.exists()) == (False, True, True)
    config = compose([], conf)
    record = RunRecord.start(art, config, stage_specs(config))
    collect(art, Rules(partial=True, older_than_s=0))
    assert (new.exists(), busy.exists()) == (True, True)  # the run may go on with them
    record.finish("failed", 1)
    collect(art, Rules(partial=True, older_than_s=0, keep_last=1))
    assert (new.exists(), busy.exists()) == (False, False)


def test_quarantine_and_what_a_killed_collection_left_can_be_cleaned(art: Path) -> None:
    store = ArtifactStore(art / "cache")
    path = next(path for path in (art / "cache" / "first").iterdir() if path.is_dir())
    (path / "weight.txt").write_text("other")
    assert store.verify([("first", path.name)])[0][2]
    (art / "cache" / ".trash" / "left").mkdir(parents=True)
    assert [item.kind for item in find_garbage(art, Rules()).items] == ["leftover"]
    collect(art, Rules())
    assert len(list((art / "cache" / ".quarantine" / "first").iterdir())) == 2
    collect(art, Rules(quarantine=True))
    assert list((art / "cache" / ".quarantine" / "first").iterdir()) == []
    assert not (art / "cache" / ".trash").exists()


@pytest.mark.parametrize("text", ["{", '{"schema": 99, "id": "x"}', ""])
def test_nothing_is_removed_while_a_runs_record_cannot_be_read(names: list[str], art: Path, text: str) -> None:
    (art / "runs" / names[0] / "run.json").write_text(text)
    before = have(art)
    with pytest.raises(BadInput, match=r"run\.json: can't be read, so what this run needs is not known"):
        collect(art, Rules())
    assert have(art) == before


def test_nothing_is_removed_while_the_pins_cannot_be_read(art: Path) -> None:
    (art / "pins.json").write_text("[]")
    with pytest.raises(BadInput, match=r"pins\.json: can't be read"):
        collect(art, Rules(keep_last=0))
    assert len(have(art)) == 9


@pytest.mark.parametrize("seed", range(6))
def test_in_a_random_store_exactly_what_can_be_reached_stays(tmp_path: Path, conf: Path, seed: int) -> None:
    rng, art = random.Random(seed), tmp_path / "artifacts"
    store = ArtifactStore(art / "cache")
    made: list[StageArtifact] = []
    for number in range(14):
        parents = {f"p{i}": p for i, p in enumerate(rng.sample(made, rng.randint(0, min(3, len(made)))))}
        with store.claim(f"s{number % 5}", f"k{number}") as claim:
            (claim.draft / "x").write_text(str(number))
            made.append(claim.commit(metrics={}, parents=parents, spec={}, wall_s=0))
    config = compose([], conf)
    roots = []
    for _ in range(3):
        record = RunRecord.start(art, config, [])
        for artifact in rng.sample(made, 2):
            record.content["stages"][artifact.stage] = {"state": "done", "key": artifact.key}
            roots.append((record.id, artifact))
        record.finish("done", 0)
    pinned = rng.choice(made)
    make_pins(art, [Target(stage=pinned.stage, key=pinned.key)])
    last = list_runs(art)[-1]
    reached: set[str] = set()
    todo = [pinned, *(next(a for a in made if a.key == e["key"]) for e in last["stages"].values())]
    while todo:
        artifact = todo.pop()
        reached.add(artifact.key)
        todo += [a for a in made if f"{a.stage}/{a.key}" in artifact.parents.values()]
    collect(art, Rules(keep_last=1))
    assert {key for _, key in have(art)} == reached


def test_names_on_the_command_line(names: list[str], art: Path) -> None:
    last = {where for where in used(art, names[2]) if where[0] == "second"}
    assert resolve(art, names[0]) == resolve(art, names[0].rpartition("-")[2]) == Target(run=names[0])
    assert {(resolve(art, "second").stage, resolve(art, "second").key)} == last  # of the latest run
    [key] = [key for stage, key in used(art, names[1]) if stage == "first"]
    assert resolve(art, f"first/{key[:9]}") == Target(stage="first", key=key)
    for name, told in (("frist", "did you mean first"), ("first/zz", "no such artifact"), ("20", "fits 3 runs")):
        with pytest.raises(BadInput, match=told):
            resolve(art, name)


@pytest.mark.parametrize(("text", "seconds"), [("30d", 30 * DAY), ("12h", 43_200), ("45m", 2700), ("2w", 14 * DAY)])
def test_ages(text: str, seconds: float) -> None:
    assert age(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "30", "-1d", "1.5h", "1y", "١d"])
def test_what_is_no_age_is_told(text: str) -> None:
    with pytest.raises(BadInput, match="is no age"):
        age(text)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ls", "--yes"], "--yes: is an option of gc, not of ls"),
        (["gc", "rl_1"], "gc: takes no name"),
        (["gc", "--keep-last", "-1"], "must not be negative"),
        (["gc", "--older-than", "soon"], "is no age"),
        (["export"], "export: takes a name"),
        (["export", "first", "-o", "x.zip"], "has none of the endings"),
        (["export", "nothing", "-o", "x.tar"], "neither a run nor a stage"),
        (["import", "nothing.tar"], "no such file"),
        (["pin", "nothing"], "neither a run nor a stage"),
        (["unpin"], "takes a name"),
        (["verify", "nothing"], "neither a run nor a stage"),
        (["verify", "../x"], "no such artifact"),
    ],
)
def test_bad_input_gives_2_and_one_line(art: Path, capsys, arguments: list[str], told: str) -> None:
    capsys.readouterr()
    assert main(["cache", "--artifacts", str(art), *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line
    assert "Fix: " in line


def test_each_subcommand_has_a_page_of_its_own_with_its_own_options(capsys) -> None:
    def told(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["cache", *arguments]) == 0
        return capsys.readouterr().out

    everything = told("--help")
    subs = ("ls", "verify", "gc", "pin", "unpin", "export", "import")
    pages = [told(what, "--help") for what in subs]
    assert len(set(pages)) == len(subs)
    for what, text in zip(subs, pages, strict=True):
        assert text.startswith(f"usage: r1flow cache {what} ")
        assert "--artifacts DIR" in text
        assert ("--keep-last N" in text, "--alone" in text) == (what == "gc", what == "export")
    assert "--keep-last N" in everything and "--alone" in everything and "gc: do it" in everything
    assert told("--artifacts", "x", "gc", "-h") == pages[2]


def test_the_commands_say_what_they_did(names: list[str], art: Path, capsys, monkeypatch) -> None:
    cache = ["cache", "--artifacts", str(art)]
    monkeypatch.setenv("COLUMNS", "200")

    def say(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main([*cache, *arguments]) == code
        return capsys.readouterr().out

    listed = say("ls")
    assert "9 artifacts, " in listed
    assert [listed.count(name) for name in names] == [3, 4, 4]
    assert "and 1 more" in listed
    assert say("pin", "second").endswith(": pinned\n")
    assert say("pin", "second").endswith(": pinned already\n")
    assert " · pinned" in say("ls", "second")
    assert "second/" in say("pin")
    dry = say("gc", "--keep-last", "0")
    assert "6 to remove" in dry and "3 artifacts stay" in dry and "Nothing was removed: --yes does it" in dry
    assert "used by older runs only" in dry
    assert "6 removed" in say("gc", "--keep-last", "0", "--yes")
    assert say("unpin", "second").endswith(": unpinned\n")
    assert not read_pins(art)
    assert "0 damaged" in say("verify")
    assert "1 artifacts, 0 damaged" in say("verify", "second")


def test_a_runs_archive_brings_its_record_to_another_place_and_everything_is_reused_there(
    names: list[str], art: Path, conf: Path, tmp_path: Path, capsys
) -> None:
    name, there = names[0], tmp_path / "there"
    assert main(["cache", "export", "--artifacts", str(art), name, "-o", "run.tar.gz"]) == 0
    assert main(["cache", "import", "--artifacts", str(there), "run.tar.gz"]) == 0
    assert "4 artifacts imported, 0 were here already; run " + name in capsys.readouterr().out
    [record] = list_runs(there)
    assert record["id"] == name
    assert all(Path(stage["path"]).is_dir() and str(there) in stage["path"] for stage in record["stages"].values())
    assert find_garbage(there, Rules()).items == []
    assert run([f"artifacts={there}"], conf) == 0
    assert {stage["state"] for stage in list_runs(there)[-1]["stages"].values()} == {"reused"}
    assert main(["cache", "import", "--artifacts", str(there), "run.tar.gz"]) == 0
    assert "0 artifacts imported, 4 were here already" in capsys.readouterr().out


def test_an_artifact_travels_with_what_it_was_built_from_and_is_pinned_there(art: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert main(["cache", "export", "--artifacts", str(art), "second", "-o", "second.tar"]) == 0
    assert main(["cache", "import", "--artifacts", str(there), "second.tar"]) == 0
    assert {stage for stage, _ in have(there)} == {"numbers", "first", "second"}
    assert [pin.stage for pin in read_pins(there)] == ["second"]
    assert find_garbage(there, Rules()).items == []
    assert main(["cache", "export", "--artifacts", str(art), "second", "--alone", "-o", "alone.tar"]) == 0
    alone = tmp_path / "alone"
    assert main(["cache", "import", "--artifacts", str(alone), "alone.tar"]) == 0
    assert {stage for stage, _ in have(alone)} == {"second"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: {**record, "id": "../../evil"},
        lambda record: {**record, "id": ".."},
        lambda record: {**record, "schema": 2},
        lambda record: {**record, "stages": 3},
        lambda record: {**record, "started": None},
        lambda record: {**record, "stages": {"../x": {"key": "../../.."}}},
    ],
)
def test_a_strangers_run_record_is_not_trusted(art: Path, tmp_path: Path, spoil) -> None:
    there = tmp_path / "there"
    [record, *_] = list_runs(art)
    store = ArtifactStore(art / "cache")
    write_archive(tmp_path / "bad.tar", [store.path(*where) for where in sorted(have(art))], spoil(record))
    before = {path for path in tmp_path.rglob("*") if there not in path.parents}
    assert main(["cache", "import", "--artifacts", str(there), "bad.tar"]) == 0
    assert {path for path in tmp_path.rglob("*") if there not in path.parents} - before <= {there}
    for file in there.glob("runs/*/run.json"):
        assert file.parent.name == record["id"]
        assert "path" not in str(json.loads(file.read_text())["stages"])
    assert find_garbage(there, Rules()).items == [] or list_runs(there)
