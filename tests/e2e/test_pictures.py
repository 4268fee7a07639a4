"""Prefect's and MLflow's pages of a real sweep in a real browser; pictures go to ``R1FLOW_PICTURES`` if that is set."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Smoke
from tests.e2e.tools import STAGES, Workplace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE_MS = 240_000


class Album:
    """A browser page that reaches this machine only, and where its pictures go."""

    def __init__(self, page: Any, folder: Path) -> None:
        self.page, self.folder, self.outside = page, folder, []
        folder.mkdir(parents=True, exist_ok=True)
        page.set_default_timeout(PATIENCE_MS)
        page.route("**/*", self._reach)

    def _reach(self, route: Any) -> None:
        if route.request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            route.continue_()
        else:
            self.outside.append(route.request.url)
            route.abort()

    def open(self, url: str, *texts: str) -> None:
        self.page.goto(url, wait_until="commit")
        for text in texts:
            self.page.get_by_text(text).first.wait_for()

    def close_offers(self) -> None:
        """MLflow's assistant and its tips lie over the page."""
        for name in ("Got it", "Close"):
            found = self.page.get_by_role("button", name=name)
            if found.count():
                found.first.click()

    def take(self, name: str) -> None:
        self.page.wait_for_timeout(3000)  # animations
        self.page.screenshot(path=str(self.folder / f"{name}.png"))


@contextmanager
def album(folder: Path) -> Iterator[Album]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield Album(browser.new_page(viewport={"width": 1500, "height": 950}), folder)
        browser.close()


def test_the_pages_show_the_sweep_its_stages_and_sample_rollouts(
    smoke: Smoke, place: Workplace, tmp_path: Path
) -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    place.with_finished(smoke.place, *STAGES)
    done = place.r1flow("run", "-m", "pipeline=smoke", "sft_2.lr=0.001,0.003", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.r1flow("ui").returncode == 0
    folder = Path(os.environ.get("R1FLOW_PICTURES") or tmp_path / "pictures")
    with album(folder) as pictures:
        take_prefect(pictures, place.prefect_url, place.ask_prefect)
        take_mlflow(pictures, place.artifacts)
    assert place.r1flow("ui", "--stop").returncode == 0
    assert not pictures.outside
    assert len(list(folder.glob("*.png"))) >= 8


def take_prefect(pictures: Album, url: str, ask: Callable[..., Any]) -> None:
    """The run with its stages, its logs, a stage's figures."""
    run, *_ = sorted(ask("flow_runs"), key=lambda run: run["start_time"])
    pictures.open(f"{url}/runs", run["name"])
    pictures.take("prefect-runs")
    pictures.open(f"{url}/runs/flow-run/{run['id']}", run["name"], "Completed")
    pictures.take("prefect-run")
    pictures.page.get_by_text("Artifacts", exact=True).last.click()
    pictures.page.wait_for_timeout(5000)
    pictures.take("prefect-artifacts")
    figures = next(a for a in ask("artifacts") if a["key"] == "report-figures" and a["flow_run_id"] == run["id"])
    pictures.open(f"{url}/artifacts/artifact/{figures['id']}", "pass@1")
    pictures.take("prefect-figures")


def take_mlflow(pictures: Album, artifacts: Path) -> None:
    """The sweep with its arms, an RL stage's curves, sample rollouts, one of them opened."""
    import json

    port = json.loads((artifacts / "mlflow" / "server.json").read_text())["port"]
    base = f"http://127.0.0.1:{port}/#/experiments"
    with sqlite3.connect(f"file:{artifacts}/mlflow/mlflow.db?mode=ro", uri=True) as store:
        sweep, experiment = store.execute(
            "SELECT run_uuid, experiment_id FROM runs WHERE name LIKE 'sweep %' ORDER BY start_time DESC"
        ).fetchone()
        stage = "SELECT s.run_uuid FROM runs s JOIN tags t ON t.run_uuid = s.run_uuid WHERE s.name = 'rl_2' "
        [rl] = store.execute(f"{stage} AND t.key = 'r1flow.state' AND t.value = 'done'").fetchone()
    pictures.open(f"{base}/{experiment}/runs", "sweep ")
    pictures.close_offers()
    pictures.page.locator("button[data-component-id*=runnamecellrenderer]").first.click()  # opens the sweep
    pictures.page.get_by_text("lr=0.00").first.wait_for()
    pictures.take("mlflow-sweep")
    pictures.open(f"{base}/{experiment}/runs/{sweep}/artifacts", "table.md")
    pictures.page.get_by_text("table.md").first.click()
    pictures.page.get_by_text("Pareto fronts").first.wait_for()
    pictures.take("mlflow-sweep-summary")
    pictures.open(f"{base}/{experiment}/runs/{rl}", "rl_2", "Datasets")
    pictures.take("mlflow-stage")
    pictures.open(f"{base}/{experiment}/runs/{rl}/model-metrics", "reward")
    pictures.take("mlflow-curves")
    pictures.open(f"{base}/{experiment}/traces", "Input")
    pictures.close_offers()
    pictures.take("mlflow-rollouts")
    pictures.page.get_by_text("<think>").first.click()
    pictures.page.wait_for_timeout(5000)
    pictures.take("mlflow-rollout")
