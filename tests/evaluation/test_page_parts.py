"""The page's parts: explorer records, costs, axes, scatter, what a lift consists of; against figures by hand."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.evaluation.page.axis import Axis
from components.evaluation.page.charts import Series, legend_keys, line_chart
from components.evaluation.page.cost import Cost, cost_of, current_run, reused_from, total
from components.evaluation.page.drawn import curriculum_map, drawn_charts
from components.evaluation.page.explorer import explorer, weights_of
from components.evaluation.page.figures import markers
from components.evaluation.page.lift_view import lift_notes, lift_section, pass_curve
from components.evaluation.page.ran import counted
from components.evaluation.page.scatter import Point, scatter
from components.evaluation.page.sources import Evaluation, Node, Sources


def node(stage, path=None, cached=None, **manifest):
    return Node(stage, path, manifest.pop("parents", {}), manifest, cached)  # type: ignore[arg-type]


def rollout(step, task, total, **more):
    row = {
        "step": step, "task_id": task, "family": "gcd", "level": 1, "kind": "reasoning", "prompt": "p", "length": 4,
        "response": f"<think>{step}</think>", "total": total, "term.accuracy": float(total >= 1), "finish": "stop",
    }  # fmt: skip
    return row | more


def answer(task, sample, right, **more):
    row = {
        "task_id": task, "sample": sample, "family": "gcd", "level": 1, "kind": "reasoning", "correct": float(right),
        "response": "<think>a</think><answer>1</answer>", "length": 5, "finish": "stop", "format_ok": 1.0,
        "language": 1.0, "prompt": "p", "gold": "1",
    }  # fmt: skip
    return row | more


def test_the_explorer_takes_groups_over_all_steps_with_their_best_and_worst():
    rows = [rollout(s, f"t{s}", i / 7) for s in range(1, 101) for i in range(8)]
    records = explorer(Sources({"rl": node("rl")}, [], rollouts={"rl": rows}), 40, 0)
    groups = {}
    for record in records:
        groups.setdefault(record["step"], []).append(record["reward"])
    assert len(groups) == 10
    assert all(len(rewards) == 4 and {0.0, 1.0} <= set(rewards) for rewards in groups.values())
    assert min(groups) <= 10 < 91 <= max(groups)
    assert records[0]["group"] == [round(i / 7, 3) for i in range(8)]


def test_the_explorer_prefers_groups_that_taught_something():
    flat = [rollout(s, f"flat{i}", 1.0) for s in range(1, 41) for i in range(5) for _ in range(4)]
    telling = [rollout(s, "telling", float(i)) for s in range(1, 41) for i in range(4)]
    records = explorer(Sources({"rl": node("rl")}, [], rollouts={"rl": flat + telling}), 16, 0)
    assert {record["task"] for record in records} == {"telling"}


def test_long_responses_are_shortened_until_the_page_stays_small():
    rows = [rollout(s, f"t{s}", float(i), response="x" * 50_000) for s in range(1, 201) for i in range(4)]
    records = explorer(Sources({"rl": node("rl")}, [], rollouts={"rl": rows}), 480, 0)
    assert len(records) == 480
    characters = sum(len(record["response"]) for record in records)
    assert 500_000 < characters < 1_600_000
    assert "characters left out" in records[0]["response"]


def test_weights_are_those_of_the_kind_of_task():
    routes = {"reasoning": {"weights": {"accuracy": 1}}, "general": {"weights": {"rule": 0.5}}}
    by_kind = node("rl", spec={"settings": {"reward": {"_target_": "components.rewards.mix.ByKind", "kinds": routes}}})
    assert weights_of(by_kind, {"kind": "general"}) == {"rule": 0.5}
    assert weights_of(by_kind, {"kind": "other"}) == {}
    by_family = node("rl", spec={"settings": {"reward": {"by": "family", "routes": {"gcd": {"weights": {"a": 2}}}}}})
    assert weights_of(by_family, {"kind": "reasoning", "family": "gcd"}) == {"a": 2.0}
    assert weights_of(node("rl", spec={"settings": {"reward": {"_target_": "mine.reward"}}}), {}) == {}
    assert weights_of(None, {}) == {}


def test_costs_are_summed_over_processes_and_files(tmp_path):
    (tmp_path / "logs").mkdir()
    workers = [{"cpu_s": 1.5, "peak_rss_mb": 100.0}, {"cpu_s": 2.0, "peak_rss_mb": 300.0}]
    (tmp_path / "logs" / "workers.json").write_text(json.dumps({"workers": workers}))
    (tmp_path / "rollouts").mkdir()
    for i in (1, 2):
        pq.write_table(pa.table({"length": [10, 20 * i]}), tmp_path / "rollouts" / f"{i}.parquet")
    found = cost_of(node("rl", tmp_path, wall_s=3.0))
    assert found == Cost(3.0, 3.5, 300.0, 80)
    assert total([found, Cost(1.0)], "wall_s") == 4.0
    assert total([Cost(), Cost()], "cpu_s") is None
    assert (counted(950), counted(12_340), counted(4.56e6), counted(None)) == ("950", "12.3 k", "4.56 M", "–")


def test_what_an_earlier_run_built_is_told_from_what_this_one_built():
    old = node("curate", cached=True, run="monday", created="2026-01-01T10:00:00Z")
    hidden = node("base", run="monday", created="2026-01-01T11:00:00Z")
    new = node("rl", cached=False, run="tuesday", created="2026-01-02T10:00:00Z")
    run = current_run({"curate": old, "base": hidden, "rl": new})
    assert run == "tuesday"
    assert [reused_from(n, run) for n in (old, hidden, new)] == ["monday", "monday", None]
    assert reused_from(node("x", cached=True), None) == ""
    assert reused_from(node("x"), None) is None


def test_an_axis_in_doublings_puts_equal_ratios_at_equal_distances():
    axis = Axis(1, 16, 0, 400, doubling=True)
    assert [axis.at(k) for k in (1, 2, 4, 8, 16)] == pytest.approx([0, 100, 200, 300, 400])
    assert axis.ticks() == [1, 2, 4, 8, 16]


def test_every_tick_of_a_chart_is_labelled():
    chart = str(line_chart([Series("a", [0, 1, 2, 3], [1, 2, 3, 4])], title="t", x_label="level"))
    assert all(f'text-anchor="middle">{level}</text>' in chart for level in range(4))


def test_a_charts_figures_on_hover_belong_to_their_steps():
    lines = [Series("long", [1, 2, 3], [0.1, 0.2, 0.3]), Series("late", [2, 3], [5, 6])]
    chart = str(line_chart(lines, title="t"))
    hover = json.loads(chart.partition('data-hover="')[2].partition('"')[0].replace("&quot;", '"'))
    assert [s["y"] for s in hover["series"]] == [["0.1", "0.2", "0.3"], [None, "5", "6"]]


def test_a_legend_escapes_names_and_keeps_the_keys_of_its_lines():
    keys = str(legend_keys([Series("<b>", [], [], key=7)]))
    assert 'data-line="7"' in keys
    assert "<b>" not in keys


def test_points_on_the_front_are_filled_and_all_names_escaped():
    points = [
        Point("<i>best", "1", (10, 9, 11), (0.9, 0.8, 1.0), True),
        Point("worst", "2", (20, 19, 21), (0.5, 0.4, 0.6), False),
    ]
    chart = str(scatter(points, title="<t>", x_label="<x>", y_label="y", share_y=True))
    assert "<i>best" not in chart and "<t>" not in chart and "<x>" not in chart
    assert chart.count("hollow") == 1
    assert "worst: y 50.0 %, &lt;x&gt; 20, dominated" in chart
    assert str(scatter([], title="t", x_label="x", y_label="y")) == ""


def test_curves_from_rollouts_count_steps_from_the_first_to_the_last():
    rows = [rollout(s, f"t{s}", 1.0, level=s % 2) for s in range(1, 51)]
    assert "gcd/0, steps 49–50: 100% of 1" in str(curriculum_map(rows))
    titles = "".join(map(str, drawn_charts(rows)))
    assert "Pass rate by level" in titles
    assert "Self-correction" not in titles  # nothing to see


def test_self_correction_is_told_with_its_accuracy():
    doubting = "<think>3. wait, no</think><answer>4</answer>"
    rows = [answer("a", 0, True, response=doubting), answer("b", 0, False), answer("c", 0, True), answer("d", 0, True)]
    [found] = markers([Evaluation("e", "rl", rows)])
    assert (found["reconsider"], found["check"]) == (0.25, 0.0)
    assert (found["right_with"], found["right_without"]) == (1.0, pytest.approx(2 / 3))
    assert markers([Evaluation("e", "rl", rows[1:])]) == []


def test_pass_at_k_is_drawn_for_doublings_up_to_the_samples():
    rows = [answer("a", i, i < 1) for i in range(6)] + [answer("b", i, False) for i in range(6)]
    curve = pass_curve(rows)
    assert list(curve) == [1, 2, 4, 6]
    assert [curve[k]["value"] for k in (1, 2, 6)] == pytest.approx([1 / 12, 1 / 6, 1 / 2])
    assert pass_curve([]) == {}


def estimate(value):
    return {"value": value, "low": value - 0.02, "high": value + 0.02}


def change(effect, p=0.001):
    return {"effect": effect, "low": effect - 0.02, "high": effect + 0.02, "p": p, "n": 100}


def attributed(style, skill, known, new, controls=()):
    parts = {"k": 4, "tries": 2, "unsolved": 0.5, "known": change(known), "new": change(new), "new_share": None}
    sharpening = {**parts, "pass@1": change(known + new), "pass@4": change(new)}
    styles = {"brief": {"share": [0.7, 0.1], "accuracy": [0.2, 0.3]}}
    written = {"change": estimate(style + skill), "style": estimate(style), "skill": estimate(skill), "styles": styles}
    stage = {"stage": "rl_1", "parent": "cold_start", "sharpening": sharpening, "style": written}
    return {
        "stages": [stage],
        "chain": [{"stage": "rl_1", "change": change(0.4), "share": 0.8}],
        "controls": list(controls),
    }


def test_the_bars_of_a_lift_share_one_scale_and_one_zero():
    section = lift_section(attributed(0.3, 0.1, 0.5, -0.1), [], {})
    [row] = section["rows"]
    (known, new), (style, skill) = row["bars"]
    assert section["zero"] == pytest.approx(100 * 0.1 / 0.6)
    assert (new["left"], new["width"]) == pytest.approx((0, 100 / 6))
    assert (known["left"], known["width"]) == pytest.approx((section["zero"], 500 / 6))
    assert style["left"] + style["width"] == pytest.approx(skill["left"])
    assert (row["share"], row["total"]["value"]) == (0.8, pytest.approx(0.4))


def better(stage, rl=True):
    return {"name": stage, "rl": rl, "against": "cold_start", "changes": {"pass@1": {"verdict": "better"}}}


@pytest.mark.parametrize(
    ("style", "skill", "says"),
    [
        (0.3, 0.05, "changed the style more than the skill"),
        (0.05, 0.3, "gained skill more than style"),
        (0.2, 0.2, "gained by both style and skill"),
    ],
)
def test_style_is_told_from_skill_in_words(style, skill, says):
    [note] = lift_notes(attributed(style, skill, 0.3, 0.1), [better("rl_1")])
    assert note.title == f"rl_1 {says}"
    assert "“brief”: 70% → 10% of the answers" in note.text
    assert lift_notes(attributed(style, skill, 0.3, 0.1), [better("rl_1", rl=False)]) == []


def test_a_control_with_the_same_start_is_told_with_what_it_does_not_explain():
    control = {"start": "cold_start", "stage": "rl_1", "control": "more_sft", "owned": 0.75}
    control |= {"treatment": change(0.4), "control_change": change(0.1), "difference": change(0.3)}
    found = attributed(0.3, 0.1, 0.3, 0.1, [control])
    notes = {note.title: note.text for note in lift_notes(found, [])}
    assert "more_sft does not explain 75%" in notes["From cold_start, rl_1 gained more"]
    nodes = {"rl_1": node("rl_1", wall_s=60.0), "more_sft": node("more_sft", wall_s=58.0)}
    assert lift_section(found, [], nodes)["controls"][0]["wall_s"] == [60.0, 58.0]
