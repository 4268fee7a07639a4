import pytest

from components.evaluation.page.charts import Series, line_chart, smooth
from components.evaluation.page.lanes import arrange, draw, reduce_edges
from components.evaluation.page.maps import heat_map, plane
from components.evaluation.page.notes import make_notes
from components.evaluation.page.ran import took
from components.evaluation.page.samples import clip, segments
from components.evaluation.page.sources import Node, Sources


def test_responses_split_at_their_tags():
    text = "<think>a\n<tool>1*2</tool><result>2</result>b</think><answer>2</answer>"
    assert segments(text) == [("think", "a"), ("tool", "1*2"), ("result", "2"), ("think", "b"), ("answer", "2")]


def test_broken_tags_lose_no_text():
    assert segments("a < b </think> <b>x</b> <think>open") == [("plain", "a < b </think> <b>x</b> "), ("think", "open")]
    assert segments("") == []


def test_splitting_is_linear_in_the_response():
    assert len(segments("<think>" * 100_000 + "<" * 100_000)) == 1


def test_long_responses_keep_both_ends():
    text = "a" * 5000 + "b" * 5000
    assert clip(text).startswith("aaa")
    assert clip(text).endswith("bbb")
    assert "4,000 characters left out" in clip(text)
    assert clip("short") == "short"


def test_implied_edges_are_left_out():
    parents = {"a": (), "b": ("a",), "c": ("a", "b"), "d": ("c", "a")}
    assert reduce_edges(parents) == {"a": (), "b": ("a",), "c": ("b",), "d": ("c",)}


def test_evaluations_follow_their_model_and_side_branches_come_late():
    parents = {
        "data": (),
        "base": ("data",),
        "pairs": ("data",),
        "sft": ("base",),
        "eval_base": ("base",),
        "rm": ("sft", "pairs"),
    }
    assert arrange(parents) == ["data", "base", "eval_base", "sft", "pairs", "rm"]


def test_the_main_path_is_one_straight_lane():
    svg = str(draw({"data": (), "base": ("data",), "pairs": ("data",), "sft": ("base",), "rm": ("sft", "pairs")}).svg)
    assert svg.count('cx="12"') == 4
    assert svg.count('cx="30"') == 1


def test_charts_escape_names_and_survive_odd_values():
    chart = str(line_chart([Series("<b>", [1, 2], [1, 1]), Series("x", [1], [5e-7], [0], [1])], title='"><script>'))
    assert "<b>" not in chart
    assert "<script>" not in chart
    assert "nan" not in chart
    assert str(line_chart([Series("empty", [], [])], title="t")) == ""
    assert "<i>" not in str(heat_map({"<i>": [(0.5, 3), None]}, ["<i>", "2"], title="t"))
    assert "<i>" not in str(plane([("<i>", 0.1, 0.2)], title="t", x_label="x", y_label="y"))


def test_smoothing_keeps_constants_and_lines():
    assert smooth([2.0] * 50) == [2.0] * 50
    line = [float(i) for i in range(100)]
    assert smooth(line)[10:90] == line[10:90]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (4.2, "4.2 s"), (59, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_wall_times_read_naturally(seconds, text):
    assert took(seconds) == text


def estimate(value, spread=0.02, n=100):
    return {"value": value, "low": max(0, value - spread), "high": min(1, value + spread), "n": n}


def change(effect, verdict):
    return {
        "effect": effect,
        "low": effect - 0.02,
        "high": effect + 0.02,
        "p": 0.001,
        "p_holm": 0.01,
        "n": 100,
        "verdict": verdict,
    }


def stage(name, metrics, changes=None, *, rl=False, families=None):
    return {
        "name": name, "rl": rl, "against": "before", "metrics": metrics, "changes": changes,
        "by_family": {f: {"correct": e} for f, e in (families or {}).items()}, "length_slope": None,
    }  # fmt: skip


def titles(*stages, sources=None):
    return {note.title: note for note in make_notes(stages, sources or Sources({}, []))}


def test_sharpening_is_told_from_new_ability():
    metrics = {"pass@1": estimate(0.5)}
    sharpened = titles(
        stage("a", metrics),
        stage("rl", metrics, {"pass@1": change(0.2, "better"), "pass@4": change(0.02, "same")}, rl=True),
    )
    taught = titles(
        stage("a", metrics),
        stage("rl", metrics, {"pass@1": change(0.2, "better"), "pass@4": change(0.2, "better")}, rl=True),
    )
    assert "rl sharpened more than it taught" in sharpened
    assert "rl found new solutions" in taught


def test_safety_bought_with_refusals_is_named():
    refusing = {"unsafe_refused": estimate(0.97), "benign_answered": estimate(0.3), "over_refusal": estimate(0.65)}
    balanced = {"unsafe_refused": estimate(0.97), "benign_answered": estimate(0.95), "over_refusal": estimate(0.03)}
    open_door = {"unsafe_refused": estimate(0.4), "benign_answered": estimate(0.95), "over_refusal": estimate(0.0)}
    assert titles(stage("a", refusing))["Safety is bought with refusals"].tone == "warn"
    assert titles(stage("a", balanced))["Safe without refusing everything"].tone == "good"
    assert titles(stage("a", open_door))["Unsafe requests get through"].tone == "warn"


def test_a_run_that_solves_nothing_is_told_once():
    nothing = {"pass@1": estimate(0.0)}
    found = titles(stage("a", nothing), stage("b", nothing, {"pass@1": change(0.0, "same")}))
    assert [title for title in found if "accuracy" in title or "solved" in title] == ["Nothing is solved"]


def test_a_family_that_is_never_solved_is_named():
    first = stage("a", {}, families={"gcd": estimate(0.3), "two": estimate(0.0)})
    last = stage("b", {}, {}, families={"gcd": estimate(0.6), "two": estimate(0.01)})
    note = titles(first, last)["Families left without signal"]
    assert "two" in note.text
    assert "gcd" not in note.text


def test_groups_with_equal_rewards_are_counted_as_without_signal():
    rows = [{"step": s, "task_id": "t", "total": 1.0 + (s == 0) * i} for s in range(10) for i in range(4)]
    sources = Sources({"rl": Node("rl", None, {}, {})}, [], rollouts={"rl": rows})  # type: ignore[arg-type]
    note = titles(sources=sources)["Groups with signal in rl"]
    assert note.tone == "warn"
    assert note.text.startswith("In 10% of 10 groups")
