"""The benchmark's own bookkeeping: what counts as slower, what is kept, and the baseline that lies here."""

import importlib
import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "speed"


@pytest.fixture(scope="module")
def speed():
    sys.path.insert(0, str(HERE))
    try:
        yield importlib.import_module("report"), importlib.import_module("timing").Figure
    finally:
        sys.path.remove(str(HERE))


def test_only_what_is_worse_by_more_than_fifteen_per_cent_is_told(speed):
    report, figure = speed
    base = [figure("a", 4.0), figure("b", 0.2, better="lower"), figure("c", 2.0), figure("told", 1.0, better="")]
    new = [figure("a", 3.4), figure("b", 0.24, better="lower"), figure("c", 1.8), figure("told", 9.0), figure("x", 1.0)]
    lines = report.slower(new, base)
    assert lines == ["a: 4.00 → 3.40×, 18 % worse", "b: 0.20 → 0.24×, 20 % worse"]
    assert report.slower(base, base) == []


def test_figures_measured_again_replace_those_of_their_name(speed, tmp_path):
    report, figure = speed
    report.write(tmp_path / "f.json", [figure("a", 1.0), figure("b", 2.0, must=3.0)], 5)
    report.write(tmp_path / "f.json", [figure("a", 4.0, must=3.0)], 5)
    assert [(f.name, f.value, f.reached) for f in report.read(tmp_path / "f.json")] == [
        ("a", 4.0, True),
        ("b", 2.0, False),
    ]
    table = report.table(tmp_path / "f.json")
    assert "| a | 4.00× | ≥ 3 | yes |  |" in table and "| b | 2.00× | ≥ 3 | no |  |" in table


def test_a_ratio_is_the_median_of_the_pairs(speed):
    timing = importlib.import_module("timing")
    found = {"ours": [4.0, 9.0, 2.0], "theirs": [2.0, 3.0, 2.0]}
    assert timing.ratio(found, "ours", "theirs") == 2.0
    assert timing.spread(found, "ours", "theirs") == [1.0, 3.0]


def test_the_table_in_the_repository_is_that_of_the_baseline(speed):
    report, _ = speed
    assert report.table(HERE / "baseline.json") == (HERE / "figures.md").read_text()
    assert json.loads((HERE / "baseline.json").read_text())["figures"]
