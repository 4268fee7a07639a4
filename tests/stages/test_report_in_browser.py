"""The report in a real browser: what it loads, what its explorer finds, what a keyboard and a phone can do."""

import json
import re

import pytest
from synthetic_run import make_run

from components.runtime import Out
from components.stages.report import report

ATTACK = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Path of a report whose responses all end in an attack, and its explorer's records."""
    root = tmp_path_factory.mktemp("browser")
    report(make_run(root, prompts=60, note=ATTACK), Out(root / "out", "report", 0))
    path = root / "out" / "report.html"
    text = path.read_text(encoding="utf-8")
    return path, json.loads(re.search(r'<script type="application/json" id="records">(.*?)</script>', text, re.S)[1])


@pytest.fixture
def opened(browser, made):
    """Opens the report with the given viewport and theme; at the end nothing else was asked for and nothing failed."""
    contexts, asked, problems = [], [], []

    def open_it(viewport=DESK, theme="light", scripts=True):
        context = browser.new_context(
            viewport=viewport, color_scheme=theme, java_script_enabled=scripts, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()

        def on_request(route):
            asked.append(route.request.url)
            route.continue_() if route.request.url == made[0].as_uri() else route.abort()

        page.route("**/*", on_request)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.goto(made[0].as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert set(asked) <= {made[0].as_uri()}
    assert problems == []


def found(page):
    """How many records the explorer says it shows."""
    text = page.locator("#explorer .count").inner_text()
    return 0 if text.startswith("Nothing") else int(text.split(" of ")[0])


def test_the_page_asks_for_nothing_but_itself(opened):
    page = opened()
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    assert page.locator("#explorer details.record").count() == 20
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0


def test_filters_show_what_they_name(opened, made):
    page, records = opened(), made[1]
    assert found(page) == len(records)
    page.select_option("[name=stage]", "rl_1 (training)")
    rl_1 = [r for r in records if r["source"] == "training" and r["stage"] == "rl_1"]
    assert found(page) == len(rl_1) > 20
    page.fill("[name=step_from]", "10")
    page.fill("[name=step_to]", "20")
    between = [r for r in rl_1 if 10 <= r["step"] <= 20]
    assert 0 < found(page) == len(between) < len(rl_1)
    page.fill("[name=reward_from]", "0.5")
    rewarded = [r for r in between if r["reward"] >= 0.5]
    assert 0 < found(page) == len(rewarded) < len(between)
    page.click("#explorer button[type=reset]")
    page.wait_for_function(f"document.querySelector('.count').textContent.startsWith('{len(records)} ')")
    page.select_option("[name=family]", "gcd")
    page.select_option("[name=right]", "no")
    assert found(page) == sum(r["family"] == "gcd" and r["right"] is False for r in records) > 0


def test_a_task_is_followed_through_all_stages(opened, made):
    page, records = opened(), made[1]
    page.fill("[name=task]", "unsafe-4")
    assert found(page) == sum("unsafe-4" in r["task"] for r in records) >= 5
    page.locator("details.record summary").first.click()
    page.get_by_role("button", name="this task everywhere").click()
    assert page.locator("[name=task]").input_value() == "unsafe-4"


def test_search_finds_words_in_prompts_and_responses_and_marks_them(opened, made):
    page, records = opened(), made[1]
    page.fill("[name=text]", "wait check")
    matching = [r for r in records if all(w in (r["prompt"] + "\n" + r["response"]).lower() for w in ("wait", "check"))]
    assert 0 < found(page) == len(matching) < len(records)
    page.locator("details.record summary").first.click()
    page.locator("details.record pre mark").first.wait_for()
    assert set(page.locator("details.record pre mark").all_inner_texts()) >= {"wait", "check"}
    page.fill("[name=text]", "no such words anywhere")
    assert found(page) == 0
    assert page.locator("details.record").count() == 0


def test_a_rollout_opens_to_its_terms_and_its_group(opened, made):
    page = opened()
    page.select_option("[name=stage]", "rl_1 (training)")
    page.select_option("[name=order]", "reward-down")
    record = page.locator("details.record").first
    record.locator("summary").click()
    record.locator("table.terms").wait_for()
    rows = [row.inner_text().split("\t") for row in record.locator("table.terms tbody tr").all()]
    assert rows[0] == ["accuracy", "1", "1", "1.000"]
    assert rows[1] == ["format", "1", "0.1", "0.100"]
    assert [cell.strip() for cell in rows[-1] if cell.strip()] == ["reward", "1.100"]
    best = max(r["reward"] for r in made[1] if "reward" in r)
    assert best == 1.1
    assert "of its 4 rollouts" in record.locator(".group").inner_text()
    assert record.locator("pre .answer").count() == 1
    record.get_by_role("button", name="its group").click()
    assert 2 <= found(page) <= 4


def test_show_more_brings_the_next_twenty(opened, made):
    page = opened()
    page.click("#explorer .next")
    assert page.locator("details.record").count() == 40


def test_what_a_model_wrote_shows_as_text(opened):
    page = opened()
    page.fill("[name=text]", "hacked")
    for i in range(3):
        page.locator("details.record summary").nth(i).click()
    shown = page.locator("details.record pre").first.inner_text()
    assert shown.endswith(ATTACK)
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
    assert ATTACK in page.locator("#samples pre").first.inner_text()


def test_the_theme_follows_the_system_until_it_is_switched(opened):
    def background(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = opened(theme="light"), opened(theme="dark")
    bright, dim = background(light), background(dark)
    assert bright != dim
    dark.click("button.theme")  # system → light
    assert background(dark) == bright
    dark.reload()
    assert background(dark) == bright
    dark.click("button.theme")
    assert background(dark) == dim
    light.click("button.theme")
    light.click("button.theme")
    assert background(light) == dim


def test_a_phone_shows_everything_without_scrolling_sideways(opened):
    page = opened(viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for fold in page.locator("details.fold > summary").all():
        if fold.is_visible():
            fold.click()
    page.locator("details.record summary").first.click()
    page.locator("details.record .body").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_keyboard_is_enough(opened):
    page = opened()
    chart = page.locator("#training figure.chart svg").first
    chart.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    tip = page.locator("#training figure.chart .tip").first
    assert tip.inner_text().startswith("step 2\n")
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    page.keyboard.press("/")
    page.keyboard.type("gcd")
    assert page.locator("[name=text]").input_value() == "gcd"
    page.fill("[name=text]", "")
    page.locator("details.record summary").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("details.record").nth(1).locator(".body").wait_for()


def test_the_legend_switches_a_line_off_and_on(opened):
    page = opened()
    chart = page.locator("figure.chart", has=page.locator(".legend button")).first
    line = chart.locator('g[data-line="1"]')
    key = chart.locator('.legend button[data-line="1"]')
    key.click()
    assert not line.is_visible()
    assert key.get_attribute("aria-pressed") == "false"
    key.click()
    assert line.is_visible()


def test_without_scripts_all_but_the_explorer_is_there(opened):
    page = opened(scripts=False)
    assert page.locator("#results table").first.is_visible()
    assert page.locator("#training svg").first.is_visible()
    assert page.locator("#explorer noscript").count() == 1
