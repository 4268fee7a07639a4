"""The store's commands on a real run: moving it to another machine, cleaning up while another run is at work."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Smoke
from tests.e2e.tools import STAGES, Workplace, becomes

pytestmark = pytest.mark.timeout(900)


def quick(*overrides: str) -> tuple[str, ...]:
    return ("run", "pipeline=smoke", "orchestrator=inline", "tracking=none", *overrides)


def test_a_run_moves_to_another_machine_in_one_file(smoke: Smoke, place: Workplace) -> None:
    run, archive = smoke.place.records()[0]["id"], str(place.root / "run.tar.gz")
    exported = smoke.place.r1flow("cache", "export", run, "-o", archive)
    assert exported.returncode == 0, exported.stderr
    assert "16 artifacts in " in exported.stdout
    imported = place.r1flow("cache", "import", archive)
    assert imported.returncode == 0, imported.stderr
    assert f"16 artifacts imported, 0 were here already; run {run}" in imported.stdout
    assert "16 artifacts, 0 damaged" in place.r1flow("cache", "verify").stdout
    plan = place.r1flow("plan", "pipeline=smoke").stdout
    assert "16 stages, 0 to build, 16 reused" in plan
    assert "pass@1" in place.r1flow("report").stdout
    said = place.r1flow("chat", "rl_2", "--max-new-tokens", "8", stdin="1 + 2 = ?\n")
    assert (said.returncode, said.stderr) == (0, "")
    listed = place.r1flow("cache", "ls").stdout
    assert listed.count(run) == 16
    assert "nothing to remove; 16 artifacts stay" in place.r1flow("cache", "gc").stdout


def test_one_stage_moves_with_what_it_was_built_from(smoke: Smoke, place: Workplace) -> None:
    archive = str(place.root / "rl_1.tar")
    assert smoke.place.r1flow("cache", "export", "rl_1", "-o", archive).returncode == 0
    assert place.r1flow("cache", "import", archive).returncode == 0
    rows = place.r1flow("plan", "pipeline=smoke").stdout.splitlines()
    reused = {line.split()[0] for line in rows if " reused " in line and line.split()[0] in STAGES}
    assert reused == {"curate", "base", "cold_start", "profile", "rl_1"}


def test_cleaning_up_while_a_run_is_at_work_takes_nothing_that_it_needs(smoke: Smoke, place: Workplace) -> None:
    """The finished stages here belong to no run, until this one comes to them."""
    place.with_finished(smoke.place, *STAGES)
    process = place.start(*quick("rl_2.steps=5"))
    assert becomes(True, lambda: any(place.artifacts.glob("runs/*/run.json"))) is True
    collections = 0
    while process.poll() is None:
        done = place.r1flow("cache", "gc", "--yes", "--keep-last", "1", "--partial", "--older-than", "0s")
        assert done.returncode == 0, done.stderr
        collections += 1
    assert process.returncode == 0, (place.root / "output.txt").read_text()
    assert collections > 0
    built = {name for name, state in place.states().items() if state == "done"}
    assert built == {"rl_2", "eval_rl_2", "report"}
    last = place.r1flow("cache", "gc", "--yes").stdout  # the first run's rl_2 and what came of it, if still there
    assert "16 artifacts stay" in last
    assert len([path for path in place.artifacts.glob("cache/[!.]*/*") if path.is_dir()]) == 16
    again = place.r1flow(*quick("rl_2.steps=5"))
    assert again.returncode == 0
    assert set(place.states().values()) == {"reused"}
