"""A sweep's arms over seeds, against figures worked out by hand."""

import json
import math

import pytest

from flows.errors import BadInput
from flows.sweep import expand
from flows.sweep.arms import arm_runs
from flows.sweep.summary import view_name
from flows.sweep_table import find_sweep, markdown_table, show_sweep, sweep_arms

SWEEP = "20260101-120000-amber"


def estimate(value, low=None, high=None):
    return {"value": value, "low": value - 0.1 if low is None else low, "high": high or value + 0.1, "n": 8}


def make(artifacts, number, algorithm, seed, figures, state="done", sweep=SWEEP):
    """A run as it is recorded; ``figures``: evaluated stage → pass@1."""
    report = artifacts / "cache" / "report" / f"{sweep}-{number}"
    report.mkdir(parents=True)
    if figures:
        stages = [
            {"name": name, "metrics": {"pass@1": estimate(v), "length": estimate(9)}} for name, v in figures.items()
        ]
        (report / "summary.json").write_text(json.dumps({"stages": stages}))
        (report / "report.html").write_text("")
    record = {
        "schema": 1,
        "id": f"run-{sweep[-1]}-{number:02d}",
        "state": state,
        "seed": seed,
        "sweep": f"{sweep}/{number}",
        "overrides": ["experiment=algorithms", f"algorithm={algorithm}", f"seed={seed}"],
        "stages": {"report": {"state": state, "path": str(report)}},
    }
    run = artifacts / "runs" / record["id"]
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(record))
    (artifacts / "sweeps" / sweep).mkdir(parents=True, exist_ok=True)
    file = artifacts / "sweeps" / sweep / "sweep.json"
    listed = json.loads(file.read_text())["runs"] if file.exists() else []
    listed += [{"overrides": ""}] * (number + 1 - len(listed))
    listed[number] = {"overrides": f"algorithm={algorithm} seed={seed}"}
    file.write_text(json.dumps({"id": sweep, "runs": listed}))


@pytest.fixture
def artifacts(tmp_path):
    for seed, before, after in ((0, 0.30, 0.50), (1, 0.20, 0.42), (2, 0.40, 0.58)):
        make(tmp_path, seed, "grpo", seed, {"cold_start": before, "rl_1": after})
        make(tmp_path, 3 + seed, "dapo", seed, {"cold_start": before, "rl_1": after + 0.1} if seed < 2 else {})
    make(tmp_path, 6, "gspo", 0, {"cold_start": 0.3, "rl_1": 0.31})
    make(tmp_path, 7, "ppo", 0, {}, state="failed")
    make(tmp_path, 0, "other", 0, {"cold_start": 0.9, "rl_1": 0.9}, sweep="20260101-120000-birch")
    return tmp_path


def test_an_arm_is_the_mean_of_its_seeds_with_students_interval(artifacts):
    grpo = next(arm for arm in sweep_arms(artifacts, SWEEP) if arm.label == "algorithm=grpo")
    assert grpo.seeds == [0, 1, 2]
    after = grpo.values["rl_1"]
    std = math.sqrt(((0.50 - 0.5) ** 2 + (0.42 - 0.5) ** 2 + (0.58 - 0.5) ** 2) / 2)
    assert after["value"] == pytest.approx(0.5)
    assert after["high"] - after["value"] == pytest.approx(4.303 * std / math.sqrt(3), rel=1e-3)


def test_the_change_is_paired_by_seed(artifacts):
    grpo = next(arm for arm in sweep_arms(artifacts, SWEEP) if arm.label == "algorithm=grpo")
    assert grpo.change["value"] == pytest.approx(0.2)  # .20, .22, .18: far narrower than the two values' own intervals
    assert grpo.change["high"] - grpo.change["value"] == pytest.approx(4.303 * 0.02 / math.sqrt(3), rel=1e-3)


def test_arms_are_ranked_and_say_how_many_of_their_runs_count(artifacts):
    arms = sweep_arms(artifacts, SWEEP)
    assert [arm.label.removeprefix("algorithm=") for arm in arms] == ["dapo", "grpo", "gspo", "ppo"]
    table = markdown_table("pass@1", arms)
    assert "| algorithm=dapo | 2 of 3 | 0.250 [" in table
    assert "| algorithm=gspo | 1 | 0.300 [0.200, 0.400] | 0.310 [0.210, 0.410] | – |" in table  # over prompts
    assert "| algorithm=ppo | 0 of 1 | – | – | – |" in table
    assert "| +0.260 [" not in table  # dapo gained the same with both seeds, which is no interval of width 0
    assert "other" not in table


def test_the_table_is_printed_and_lies_beside_the_sweep(artifacts, capsys):
    assert show_sweep(artifacts, SWEEP)
    printed = capsys.readouterr().out
    assert "algorithm=dapo" in printed
    assert "+0.200 [+0.150, +0.250]" in printed
    assert (artifacts / "sweeps" / SWEEP / "table.md").read_text().startswith("| pass@1 | seeds | cold_start | rl_1 |")


def test_another_metric_may_be_asked_for_and_an_unknown_one_is_named(artifacts):
    assert sweep_arms(artifacts, SWEEP, "length")[0].values["rl_1"]["value"] == 9
    with pytest.raises(BadInput, match="did you mean pass@1"):
        sweep_arms(artifacts, SWEEP, "pas@1")


def test_a_sweep_is_found_by_a_part_of_its_name(artifacts):
    assert find_sweep(artifacts, "amber") == SWEEP
    assert find_sweep(artifacts, SWEEP) == SWEEP
    assert find_sweep(artifacts, "nothing") is None
    with pytest.raises(BadInput, match="fits 2 sweeps and 0 runs"):
        find_sweep(artifacts, "2026")
    with pytest.raises(BadInput, match="fits 2 sweeps and 9 runs"):
        find_sweep(artifacts, "r")


def test_a_sweep_without_a_report_has_no_table(tmp_path):
    make(tmp_path, 0, "grpo", 0, {}, state="failed")
    assert not show_sweep(tmp_path, SWEEP)


def test_what_the_configuration_sweeps_is_swept_unless_the_command_line_says_otherwise(conf):
    runs = expand(["experiment=swept"], conf)
    assert [lines[1:] for lines in runs] == [
        [f"first.steps={steps}", f"seed={seed}"] for steps in (1, 2) for seed in (0, 1)
    ]
    assert expand(["experiment=swept", "seed=7"], conf) == [
        ["experiment=swept", "seed=7", f"first.steps={steps}"] for steps in (1, 2)
    ]
    assert expand(["seed=1"], conf) == [["seed=1"]]


def test_the_table_of_algorithms_has_every_preset_three_times():
    runs = expand(["experiment=algorithms"])
    assert len({lines[1] for lines in runs}) == 16
    assert len(runs) == 48


def test_a_run_recorded_twice_counts_once(artifacts):
    """As in sweeps of `seed=0,00` by versions that took these for two seeds: both runs have the same artifacts."""
    file = artifacts / "sweeps" / SWEEP / "sweep.json"
    content = json.loads(file.read_text())
    content["runs"].append({"overrides": "algorithm=grpo seed=00"})
    file.write_text(json.dumps(content))
    first = json.loads((artifacts / "runs" / "run-r-00" / "run.json").read_text())
    twin = artifacts / "runs" / "run-r-99"
    twin.mkdir()
    (twin / "run.json").write_text(json.dumps({**first, "id": "run-r-99", "sweep": f"{SWEEP}/8"}))
    grpo = next(arm for arm in sweep_arms(artifacts, SWEEP) if arm.label == "algorithm=grpo")
    assert (grpo.seeds, grpo.runs) == ([0, 1, 2], 3)
    arm = next(arm for arm in arm_runs(artifacts, SWEEP) if arm.label == "algorithm=grpo")
    assert (list(arm.by_seed), arm.runs) == (["0", "1", "2"], 3)


def test_another_view_leaves_what_the_sweep_ended_with_as_it_is(artifacts, capsys):
    home = artifacts / "sweeps" / SWEEP
    assert show_sweep(artifacts, SWEEP)
    before = {file.name: file.read_bytes() for file in home.iterdir()}
    assert {"summary.json", "table.md", "sweep.html"} <= before.keys()
    assert show_sweep(artifacts, SWEEP, against="algorithm=dapo")
    assert show_sweep(artifacts, SWEEP, metric="length", against="best")
    after = {file.name: file.read_bytes() for file in home.iterdir()}
    assert {name: after[name] for name in before} == before
    assert {"table.against-best.metric-length.md", "sweep.against-best.html"} <= after.keys()
    assert json.loads(after["summary.against-algorithm=dapo.json"])["reference"] == "algorithm=dapo"
    assert "Page: " in capsys.readouterr().out


def test_views_of_arms_whose_names_can_not_stand_in_a_file_are_kept_apart():
    names = {view_name("table.md", against=label) for label in ("a=/x", "a=?x", "a=-x", "first")}
    assert len(names) == 4
    assert all("/" not in name for name in names)
