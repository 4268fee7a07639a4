"""The page of a sweep: from a summary and the records of its runs, as HTML and in a real browser."""

import json
import re

import pytest

from components.evaluation.page.arm_data import ArmRun, curves, differing_settings, lifts, over_seeds
from components.evaluation.page.sweep_view import short_labels
from flows.arms_page import write_page

SWEEP = "20260101-120000-amber"
ATTACK = "<img/src=x/onerror=alert(1)>"
ARMS = {"reward=plain": 0.5, "reward=strict": 0.6, f"reward={ATTACK}": 0.4}


def estimate(value, over="seeds"):
    return {"value": value, "low": value - 0.05, "high": value + 0.05, "n": 2, "over": over}


def paired(effect):
    ends = {"low": effect - 0.02, "high": effect + 0.02}
    return {"effect": effect, **ends, "p": 0.01, "p_holm": 0.01, "n": 2, "over": "seeds"}


def summary(lengths=(20.0, 30.0, 25.0)):
    labels = list(ARMS)
    arms = [
        {
            "label": label,
            "runs": 2,
            "seeds": ["0", "1"],
            "objective": None,
            "metrics": {"pass@1": estimate(value), "length": estimate(length)},
            "against": {} if label == labels[0] else {"pass@1": paired(value - 0.5), "length": paired(length - 20)},
        }
        for (label, value), length in zip(ARMS.items(), lengths, strict=True)
    ]
    places = {
        labels[0]: {"on_front": True, "odds": 0.9, "dominated_by": [], "level_with": []},
        labels[1]: {"on_front": True, "odds": 0.8, "dominated_by": [], "level_with": []},
        labels[2]: {"on_front": False, "odds": 0.1, "dominated_by": labels[:1], "level_with": []},
    }
    front = {"x": "pass@1", "y": "length", "better": {"pass@1": "more", "length": "less"}, "arms": places}
    front["level"] = len(set(lengths)) == 1
    return {"reference": labels[0], "arms": arms, "pareto": [front]}


def make_sweep(artifacts, found=None):
    """A finished sweep of three arms with two seeds each, and its page."""
    listed = []
    for number, (arm, seed) in enumerate((arm, seed) for arm in ARMS for seed in (0, 1)):
        rl = artifacts / "cache" / "rl_1" / f"k{number}"
        (rl / "logs").mkdir(parents=True)
        steps = [{"step": s, "reward": ARMS[arm] + seed / 10, "length": 9.0 + s} for s in range(1, 31)]
        (rl / "logs" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
        report = artifacts / "cache" / "report" / f"k{number}"
        report.mkdir(parents=True)
        (report / "report.html").write_text("")
        style = {name: {"value": v} for name, v in (("change", 0.2), ("style", 0.15), ("skill", 0.05))}
        sharpening = {"known": {"effect": 0.12 + seed / 50}, "new": {"effect": 0.08}}
        stages = [{"stage": "rl_1", "parent": "base", "style": style, "sharpening": sharpening}]
        findings = [{"stage": "rl_1", "name": "length_drift"}] if number == 0 else []
        (report / "summary.json").write_text(json.dumps({"attribution": {"stages": stages}, "findings": findings}))
        record = {
            "schema": 1, "id": f"20260101-1200{number:02d}-run", "state": "done", "seed": seed,
            "sweep": f"{SWEEP}/{number}", "started": f"2026-01-01T12:00:{number:02d}",
            "stages": {
                "base": {"state": "done" if number == 0 else "reused", "path": "/nonexistent", "wall_s": 50.0},
                "rl_1": {"state": "done", "path": str(rl), "wall_s": 8.0, "settings": {"reward": {"name": arm}}},
                "report": {"state": "done", "path": str(report), "wall_s": 1.0, "settings": {}},
            },
        }  # fmt: skip
        (artifacts / "runs" / record["id"]).mkdir(parents=True)
        (artifacts / "runs" / record["id"] / "run.json").write_text(json.dumps(record))
        listed.append({"overrides": f"{arm} seed={seed}", "state": "done"})
    home = artifacts / "sweeps" / SWEEP
    home.mkdir(parents=True)
    (home / "sweep.json").write_text(json.dumps({"id": SWEEP, "runs": listed}))
    (home / "summary.json").write_text(json.dumps(found or summary()))
    return write_page(artifacts, SWEEP)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return make_sweep(tmp_path_factory.mktemp("artifacts"))


def section(page, name):
    return page.read_text(encoding="utf-8").partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_arms_stand_best_first_with_their_reference(page):
    arms = section(page, "arms")
    assert arms.index("strict") < arms.index("plain") < arms.index("&lt;img")
    assert re.search(r"plain</span> <em class=\"tag\">reference</em>", arms)
    assert '<span class="value">60.0</span>' in arms


def test_tests_are_shown_with_adjusted_p(page):
    tests = section(page, "tests")
    assert "Against reward=plain" in tests
    assert "+10.0 <span" in tests
    assert "p = .010" in tests


def test_the_front_is_drawn_and_a_flat_one_is_only_told(page, tmp_path):
    assert "<svg" in section(page, "fronts")
    assert "90 %" in section(page, "fronts")
    flat = section(make_sweep(tmp_path, summary(lengths=(20.0, 20.0, 20.0))), "fronts")
    assert "<svg" not in flat
    assert "No trade-off with length in tokens" in flat


def test_runs_link_to_their_reports_and_say_what_was_built(page):
    runs = section(page, "runs")
    assert 'href="../../cache/report/k0/report.html"' in runs
    assert (page.parent / "../../cache/report/k0/report.html").is_file()
    assert "rl_1: length drift" in runs
    assert "59 s" in runs and runs.count("9.0 s") == 5  # the first built what the others reuse


def test_labels_never_become_markup(page):
    html = page.read_text(encoding="utf-8")
    assert "<img" not in html
    assert "&lt;img" in html


def test_a_sweep_without_reports_has_no_page(tmp_path):
    assert write_page(tmp_path, SWEEP) is None
    home = tmp_path / "sweeps" / SWEEP
    home.mkdir(parents=True)
    arms = [{"label": "a", "runs": 1, "seeds": [], "metrics": {}, "against": {}}]
    (home / "summary.json").write_text(json.dumps({"reference": None, "arms": arms, "pareto": []}))
    assert write_page(tmp_path, SWEEP) is None


def arm_run(arm, path=None, settings=None):
    return ArmRun(arm, "0", "done", "r", {"rl": {"path": path and str(path), "settings": settings or {}}})


def test_settings_that_differ_are_found_however_deep():
    runs = [
        arm_run("a", settings={"lr": 1e-3, "reward": {"weights": {"format": 0.1}}, "steps": 4}),
        arm_run("b", settings={"lr": 1e-3, "reward": {"weights": {"format": 0.2}}, "steps": 4, "extra": None}),
    ]
    assert differing_settings(runs) == {
        "rl.reward.weights.format": {"a": "0.1", "b": "0.2"},
        "rl.extra": {"a": "", "b": "null"},
    }


def test_a_curve_over_seeds_keeps_the_steps_that_all_have():
    assert over_seeds([[(1, 0.0), (2, 2.0), (3, 4.0)], [(2, 4.0), (3, 4.0)]]) == ([2, 3], [3, 4], [2, 4], [4, 4])


def test_stages_that_all_arms_share_have_no_curves(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / "logs" / "metrics.jsonl").write_text('{"step": 1, "reward": 1.0}\n')
    assert curves([arm_run("a", tmp_path / "x"), arm_run("b", tmp_path / "x")]) == {}
    assert curves([arm_run("a", tmp_path / "x"), arm_run("b", tmp_path / "y")]) == {
        "rl": {"reward": {"a": [[(1.0, 1.0)]], "b": [[(1.0, 1.0)]]}}
    }


def test_labels_are_as_short_as_they_can_be():
    assert short_labels(["algorithm=grpo", "algorithm=dapo"]) == {"algorithm=grpo": "grpo", "algorithm=dapo": "dapo"}
    two = ["rl_1.reward.weights.format=0.1 algorithm=grpo", "rl_1.reward.weights.format=0.2 algorithm=grpo"]
    assert short_labels(two)[two[0]] == "format=0.1 algorithm=grpo"
    alike = ["a.lr=1", "b.lr=1"]
    assert short_labels(alike) == {"a.lr=1": "a.lr=1", "b.lr=1": "b.lr=1"}
    assert short_labels(["(no change)"]) == {"(no change)": "(no change)"}


def test_kinds_of_lift_are_means_over_the_runs_of_an_arm(tmp_path):
    make_sweep(tmp_path)
    runs = [
        ArmRun("a", str(n), "done", "", {"report": {"path": str(tmp_path / "cache" / "report" / f"k{n}")}})
        for n in (0, 1)
    ]
    assert lifts(runs) == {
        "a": {"change": 0.2, "style": 0.15, "skill": 0.05, "known": pytest.approx(0.13), "new": 0.08}
    }
    assert lifts([ArmRun("a", "0", "failed")]) == {}


@pytest.fixture
def opened(browser, page):
    """The page in a phone's and a desk's width; nothing else was asked for, and nothing failed."""
    contexts, asked, problems = [], [], []

    def open_it(width):
        context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
        contexts.append(context)
        tab = context.new_page()
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: problems.append(dialog.message))
        tab.goto(page.as_uri())
        return tab

    yield open_it
    for context in contexts:
        context.close()
    assert set(asked) <= {page.as_uri()}
    assert problems == []


def test_columns_sort_and_one_legend_switches_an_arm_off_in_all_charts(opened):
    tab = opened(1280)
    names = tab.locator("#arms tbody th .arm")
    assert names.first.inner_text().endswith("strict")
    tab.locator("#arms th[data-sort]", has_text="length").click()
    assert names.all_inner_texts()[0].endswith("strict")  # the longest
    tab.locator("#arms th[data-sort]", has_text="length").click()
    assert names.all_inner_texts()[0].endswith("plain")
    charts = tab.locator("#curves figure.chart")
    assert charts.count() == 2
    tab.locator("#curves .legend.shared button").first.click()
    assert [chart.locator('g[data-line="0"]').is_visible() for chart in charts.all()] == [False, False]
    assert [chart.locator('g[data-line="1"]').is_visible() for chart in charts.all()] == [True, True]


def test_it_is_readable_on_a_phone(opened):
    tab = opened(390)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator("#arms .value").first.is_visible()
    assert tab.locator("img").count() == 0
