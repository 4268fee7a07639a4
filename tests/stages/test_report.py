import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from synthetic_run import MODELS, make_run

from components.runtime import Out, Peers
from components.stages.report import report

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._script = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = (dict(attrs), [])

    def handle_data(self, data):
        if self._script is not None:
            self._script[1].append(data)

    def handle_endtag(self, tag):
        if tag == "script" and self._script is not None:
            self.scripts.append((self._script[0], "".join(self._script[1])))
            self._script = None


def written(root, inputs, **settings):
    out = Out(root / "out", "report", 0)
    metrics = report(inputs, out, **settings)
    return (
        metrics,
        (root / "out" / "report.html").read_text(encoding="utf-8"),
        json.loads((root / "out" / "summary.json").read_text()),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    return root, *written(root, make_run(root, note=ATTACK))


def test_the_page_asks_nothing_of_the_network(made):
    _, _, html, _ = made
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "action", "data", "srcset"):
            assert not attributes.get(name) or attributes[name].startswith("#"), (tag, attributes)
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_what_a_model_wrote_never_becomes_markup(made):
    _, _, html, _ = made
    page = Page(html)
    assert len(page.scripts) == 2  # the records and the page's own
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "49" not in re.findall(r"onerror=alert\(2\)&gt;(.{0,4})", html)
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in html


def test_only_the_pages_own_script_may_run(made):
    _, _, html, _ = made
    page = Page(html)
    policy = next(
        a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    code = page.scripts[-1][1]
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_the_explorer_holds_responses_word_for_word(made):
    _, _, html, _ = made
    attributes, text = Page(html).scripts[0]
    assert attributes["type"] == "application/json"
    records = json.loads(text)
    assert {r["stage"] for r in records} == set(MODELS)
    assert {r["source"] for r in records} == {"evaluation", "training"}
    assert all(r["response"].endswith(ATTACK) for r in records)
    training = [r for r in records if r["source"] == "training"]
    assert all({"accuracy", "format"} <= r["terms"].keys() for r in training)


def test_every_stage_that_ran_is_shown_with_its_time(made):
    _, _, html, _ = made
    for stage in ("curate", "preferences", "rejection", "eval_rl_2"):
        assert re.search(rf'<span class="name">{stage}\b', html), stage
    assert "1 min 38 s" in html


def test_what_was_reused_is_told_from_what_was_built_and_all_costs_are_told(made):
    _, _, html, _ = made
    section = html.partition('<section id="pipeline">')[2].partition("</section>")[0]
    assert "14 stages built" in section
    assert "1 reused" in section
    assert re.search(r'<span class="name">curate<em>reused</em></span>', section)
    assert "CPU 45 s" in section  # of rl_1, and of rl_2
    assert "CPU 1 min 30 s" in section
    assert "20.5 k tok" in section  # 40 steps × 8 prompts × 4 rollouts × 16 tokens


def test_a_stages_lift_is_taken_apart_and_judged(made):
    _, _, html, summary = made
    kinds = {entry["stage"]: entry for entry in summary["attribution"]["stages"]}
    assert kinds["rl_1"]["sharpening"]["pass@1"]["effect"] == pytest.approx(
        summary["stages"][2]["changes"]["pass@1"]["effect"]
    )
    section = html.partition('<section id="lift">')[2].partition("</section>")[0]
    assert section.count('<article class="lift">') == len(kinds) == 4
    assert "pass@k over k" in section
    verdicts = {verdict["stage"]: verdict["decision"] for verdict in summary["gate"]}
    assert verdicts["rl_1"] == "paid"  # more accurate, but it refuses less of what it should
    assert "<b>rl_1: paid.</b>" in html


def test_every_curve_of_an_rl_stage_is_there(made):
    _, _, html, _ = made
    section = html.partition('<section id="training">')[2].partition("</section>")[0]
    wanted = ("Reward", "Accuracy of the rollouts", "Reward by term (unweighted)", "Reward by family", "Entropy (nats)")
    wanted += ("Response length (tokens)", "KL divergence (nats)", "Clip fraction (share of tokens)")
    wanted += ("Groups with signal", "Pass rate by level", "Mean level drawn, by family", "Gradient norm")
    wanted += ("Curriculum: what was drawn, and its pass rate",)
    for title in wanted:
        assert section.count(f"<figcaption>{title}</figcaption>") == 2, title  # rl_1 and rl_2


def test_a_page_of_long_responses_stays_below_three_megabytes(tmp_path):
    _, html, _ = written(tmp_path, make_run(tmp_path, prompts=48, samples=2, note=" and so on" * 400))
    assert html.count("characters left out") > 100
    assert len(html.encode()) < 3_000_000


def test_the_summary_compares_each_stage_with_the_one_before(made):
    _, metrics, _, summary = made
    stages = summary["stages"]
    assert [s["name"] for s in stages] == list(MODELS)
    assert [s["against"] for s in stages] == [None, *list(MODELS)[:-1]]
    assert [s["rl"] for s in stages] == [False, False, True, False, True]
    assert stages[0]["changes"] is None
    assert stages[2]["changes"]["pass@1"]["verdict"] == "better"
    assert metrics["rl_1/pass@1"] == stages[2]["metrics"]["pass@1"]["value"]


def test_notes_name_what_got_worse_and_what_the_figures_cannot_show(made):
    *_, summary = made
    titles = {note["title"]: note["text"] for note in summary["notes"]}
    assert "unsafe refused" in titles["rl_1 paid elsewhere"]
    assert titles["Levels without signal at the start"].count("/3") == 2
    assert "20%" in titles["What rejection kept"]
    assert "What these figures cannot show" in titles


def test_the_same_inputs_give_the_same_page(made, tmp_path):
    root, _, html, summary = made
    again = written(tmp_path, make_run(root, note=ATTACK))
    assert again[1] == html
    assert again[2] == summary


def test_a_single_evaluation_is_enough(tmp_path):
    inputs = {"eval_base": make_run(tmp_path)["eval_base"]}
    metrics, html, summary = written(tmp_path, inputs)
    assert list({name.split("/")[0] for name in metrics}) == ["base"]
    assert 'id="results"' in html
    assert len(summary["stages"]) == 1


def test_a_pipeline_without_evaluations_still_gets_its_page(tmp_path):
    run = make_run(tmp_path)
    metrics, html, summary = written(tmp_path, {"rl_1": run["rl_1"]})
    assert metrics == {}
    assert 'id="training"' in html
    assert 'id="results"' not in html
    assert summary["stages"] == []


def test_inputs_without_a_manifest_are_shown_by_name(tmp_path):
    run = make_run(tmp_path)
    (run["eval_rl_1"].path / "manifest.json").unlink()
    _, html, summary = written(tmp_path, {"eval_rl_1": run["eval_rl_1"]})
    assert summary["stages"][0]["name"] == "rl_1"
    assert "eval_rl_1" in html


def test_only_the_main_process_writes(tmp_path):
    out = Out(tmp_path / "out", "report", 0, peers=Peers(rank=1, world_size=2))
    assert report(make_run(tmp_path), out) == {}
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_runs_the_explorer_and_no_attack(made, tmp_path):
    root, *_ = made
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    command += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path}", "--dump-dom"]
    shown = subprocess.run(
        [*command, f"file://{root}/out/report.html"], capture_output=True, text=True, timeout=60
    ).stdout
    count = re.search(r'<p class="count" role="status">(\d+) of (\d+)</p>', shown)
    assert count is not None
    assert count[1] == count[2]
    assert shown.count('<details class="record">') == 20
    assert "<img" not in shown


def test_the_doctors_findings_are_in_the_page_with_evidence_remedy_and_samples(tmp_path):
    inputs = make_run(tmp_path, note=ATTACK)
    log = tmp_path / "rl_1" / "k" / "logs" / "metrics.jsonl"
    rows = [json.loads(line) | {"truncated": 0.9} for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, html, summary = written(tmp_path, inputs)
    assert [(f["stage"], f["name"]) for f in summary["findings"]] == [("rl_1", "truncation")]
    section = html.partition('<section id="doctor">')[2].partition("</section>")[0]
    assert "<b>rl_1 step 5: truncation.</b> 90% of the rollouts of the last 5 steps were cut off" in section
    assert "raise rl_1.max_new_tokens" in section
    assert "<img" not in section


def test_a_healthy_run_has_a_section_that_says_so(made):
    _, _, html, summary = made
    assert summary["findings"] == []
    assert "Nothing, in base, cold_start" in html.partition('<section id="doctor">')[2].partition("</section>")[0]
