"""What is said of a sweep's arms, from runs made up by hand."""

import io

import pytest
from rich.console import Console

from components.evaluation.page.sweep_view import render_sweep
from flows.errors import BadInput
from flows.objective import read_objective, run_figures
from flows.sweep.arms import ArmRuns
from flows.sweep.summary import summarise
from flows.sweep.tables import console_tables, markdown_summary


def estimate(value, half=0.05):
    return {"value": value, "low": value - half, "high": value + half, "n": 100}


def arm(label, accuracy, length, **more):
    by_seed = {
        str(seed): {"pass@1": estimate(a), "length": estimate(n, 1.0), "pass@4": estimate(a), "pass@16": estimate(a)}
        for seed, (a, n) in enumerate(zip(accuracy, length, strict=True))
    }
    return ArmRuns(label, runs=len(accuracy), by_seed=by_seed, **more)


ARMS = [
    arm("w=0.1", (0.50, 0.40, 0.60), (20, 21, 22)),
    arm("w=0.2", (0.60, 0.51, 0.69), (30, 31, 32)),
    arm("w=0.3", (0.50, 0.40, 0.59), (33, 34, 35)),
    ArmRuns("w=0.4", runs=3),
]


def test_arms_are_tested_against_the_first_and_holm_counts_every_test():
    found = summarise(ARMS)
    assert found["reference"] == "w=0.1"
    first, second, third, empty = found["arms"]
    assert first["against"] == {} and empty["metrics"] == {} and empty["against"] == {}
    test = second["against"]["pass@1"]
    assert test["effect"] == pytest.approx(0.1)  # .10, .11, .09
    assert test["over"] == "seeds"
    tests = [t["p"] for row in (second, third) for t in row["against"].values()]
    assert min(t["p_holm"] for t in second["against"].values()) == pytest.approx(len(tests) * min(tests))
    assert list(first["metrics"]) == ["pass@1", "pass@16", "length"]  # of pass@k the largest k only


def test_the_reference_may_be_the_best_or_named():
    assert summarise(ARMS, "best")["reference"] == "w=0.2"
    assert summarise(ARMS, "w=0.3")["reference"] == "w=0.3"
    with pytest.raises(BadInput, match=r"did you mean w=0\.3"):
        summarise(ARMS, "w=0.33")


def test_the_front_has_the_arms_that_nothing_beats_in_both():
    [front] = summarise(ARMS)["pareto"]
    assert (front["x"], front["y"], front["better"]["length"]) == ("pass@1", "length", "less")
    arms = front["arms"]
    assert [label for label, found in arms.items() if found["on_front"]] == ["w=0.1", "w=0.2"]
    assert arms["w=0.3"]["dominated_by"] == ["w=0.1", "w=0.2"]
    assert arms["w=0.3"]["odds"] < 0.2 < arms["w=0.1"]["odds"]


def test_one_seed_has_intervals_over_prompts_and_says_so():
    found = summarise([arm("a", [0.5], [20]), arm("b", [0.6], [20])])
    assert found["arms"][0]["metrics"]["pass@1"] == {**estimate(0.5), "over": "prompts"}
    assert found["arms"][1]["against"] == {}  # no answers at hand to pair
    assert "0.500° [0.450, 0.550]" in markdown_summary(found)


def test_one_seed_is_compared_prompt_by_prompt_where_the_answers_are(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def answers(name, right):
        rows = [
            {"task_id": f"t{i}", "sample": 0, "family": "f", "level": 1, "kind": "reasoning", "response": "x"}
            | {"correct": float(i < right), "format_ok": 1.0, "language": 1.0, "length": 5, "finish": "stop"}
            for i in range(10)
        ]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
        return {"0": tmp_path / name}

    before = arm("a", [0.2], [5], answers=answers("a.parquet", 2))
    after = arm("b", [0.8], [5], answers=answers("b.parquet", 8))
    test = summarise([before, after])["arms"][1]["against"]["pass@1"]
    assert test["effect"] == pytest.approx(0.6)
    assert test["over"] == "prompts" and test["n"] == 10
    assert test["p"] == pytest.approx(2 / 2**6)  # six prompts changed, all one way


def test_the_best_arm_is_that_of_the_objective():
    arms = [
        ArmRuns("a", 2, objectives={"0": 1.0, "1": 3.0}, maximise=False, terms=["loss"]),
        ArmRuns("b", 1, objectives={"0": 1.5}, maximise=False, terms=["loss"]),
    ]
    found = summarise(arms)
    assert found["objective"] == {"terms": ["loss"], "direction": "minimise", "best": "b", "value": 1.5}
    [table] = console_tables(found)
    assert table.title == "Objective (minimise loss)"
    assert markdown_summary(found).index("| b |") < markdown_summary(found).index("| a |")


RECORD = {
    "stages": {
        "rl_1": {"metrics": {"reward": 1.5, "pass@1": 0.1}},
        "eval_rl_1": {"metrics": {"pass@1": 0.5, "length": 20.0}},
        "eval_rl_2": {"metrics": {"pass@1": 0.7, "bad": float("nan")}},
    }
}


def test_a_metric_is_that_of_the_last_stage_that_has_it_or_of_the_one_named():
    figures = run_figures(RECORD)
    assert figures["pass@1"] == 0.7
    assert figures["rl_1/pass@1"] == 0.1
    assert figures["length"] == 20.0
    assert "bad" not in figures


def test_an_objective_is_a_weighted_sum_and_says_what_is_missing():
    found = read_objective({"metric": {"pass@1": 1, "eval_rl_1/length": -0.01}}).of(RECORD)
    assert found["value"] == pytest.approx(0.7 - 0.2)
    found = read_objective({"metric": "safety"}).of(RECORD)
    assert found["value"] is None
    assert found["problem"].startswith("the run has no metric safety")


def test_without_setting_the_objective_is_accuracy():
    objective = read_objective(None)
    assert objective.weights == {"pass@1": 1.0} and objective.maximise


def told(found):
    """What is said of trade-offs: the table's texts on the console."""
    *_, table = console_tables(found)
    assert table.title == "Pareto fronts"
    return [list(column.cells) for column in table.columns], table.caption


def test_arms_that_are_level_have_no_trade_off_on_the_console_as_on_the_page(tmp_path):
    level = summarise([arm("a", [0.5, 0.6], [20, 20]), arm("b", [0.5, 0.6], [20, 20])])
    cells, caption = told(level)
    assert cells == [[]]
    assert caption == "No trade-off with length in tokens: all arms have the same."
    console = Console(file=io.StringIO(), width=200)
    for table in console_tables(level):
        console.print(table)
    assert f"\n{caption}" in console.file.getvalue()
    assert "on the front" not in markdown_summary(level)
    assert caption in markdown_summary(level)
    assert caption in render_sweep(level, [], title="t", home=tmp_path)


def test_an_arm_that_ties_with_another_on_the_front_says_so_on_the_console_as_on_the_page(tmp_path):
    found = summarise(
        [arm(label, [a, a + 0.1], [n, n]) for label, a, n in (("a", 0.5, 20), ("b", 0.5, 20), ("c", 0.6, 30))]
    )
    cells, _ = told(found)
    assert [cell.partition("\n")[0] for cell in cells[1]] == [
        "on the front, level with b", "on the front, level with a", "on the front",
    ]  # fmt: skip
    page = render_sweep(found, [], title="t", home=tmp_path)
    assert "<td>on the front, level with b</td><td>100 %</td>" in page
    assert "odds 100 %" in cells[1][0]


def test_brackets_in_a_label_are_shown_as_they_are():
    labels = ["tags=[a,b]", "tags=[/x]", "tags=[bold]"]
    found = summarise([arm(label, [0.5, 0.6], [20 + i, 20]) for i, label in enumerate(labels)])
    console = Console(file=io.StringIO(), width=300)
    for table in console_tables(found):
        console.print(table)
    assert all(label in console.file.getvalue() for label in labels)
