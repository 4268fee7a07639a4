"""Which figures a run will have is known before it runs: an objective that names none of them is refused."""

import json
from pathlib import Path

import pytest

from flows.build import stage_specs
from flows.compose import compose
from flows.measures import is_measured, measures, objective_problems
from flows.stage import StageSpec


@pytest.fixture(scope="module")
def r1():
    return stage_specs(compose())


def problems(specs, metric, **more):
    return list(objective_problems({"objective": {"metric": metric}}, [f"objective.metric={metric}"], specs, **more))


@pytest.mark.parametrize(
    "metric",
    [
        *("pass@1", "pass@4", "maj@4", "rl_2/safety_mean", "eval_rl_1/greedy", "report/rl_1/pass@1"),
        *("rl_1/reward", "reward/boxes", "weighted/format", "preference", "sft_2/loss", "profile/pass_rate/gcd/0"),
        *("rejection/dropped/repeated", "reward_model/accuracy_low", "preferences/defect.benign.format"),
    ],
)
def test_figures_that_the_default_pipeline_has_are_known(r1, metric):
    assert problems(r1, metric) == []


@pytest.mark.parametrize(
    ("metric", "near"),
    [
        ("pas@1", "did you mean pass@1"),
        ("pass@8", "did you mean pass@4"),  # it draws four answers
        ("rl_1/pas@1", "did you mean rl_1/pass@1"),
        ("weighted/fromat", "did you mean weighted/format"),
        ("cold_start/reward", "Evaluations measure cold_start/pass@1, cold_start/pass@4"),
        ("eval_rl_3/pass@1", "rl_2/pass@1"),
    ],
)
def test_an_objective_that_no_stage_measures_is_refused_with_the_names_that_are_near(r1, metric, near):
    [problem] = problems(r1, metric)
    assert not problem.warning
    assert str(problem).startswith("command line objective.metric: ")
    assert repr(metric) in str(problem)
    assert near in problem.fix


def test_the_usual_objective_is_asked_for_where_somebody_set_it_or_a_search_needs_it(r1):
    without = [spec for spec in r1 if not spec.name.startswith(("eval_", "report"))]
    assert list(objective_problems({}, [], without)) == []
    assert len(list(objective_problems({}, [], without, needed=True))) == 1
    assert len(problems(without, "pass@1")) == 1


def test_of_a_stage_that_does_not_say_what_it_measures_only_a_warning_can_be_given(r1):
    own = StageSpec("own", "tests.flows.toy_stages_c.count")
    [problem] = problems([*r1, own], "pas@1")
    assert problem.warning
    assert "own may, and the run will show" in str(problem)


@pytest.mark.slow
def test_every_figure_of_a_real_run_was_known_before(tmp_path, monkeypatch):
    from flows.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["run", "-q", "pipeline=smoke", "orchestrator=inline", "tracking=none"]) == 0
    [record] = [json.loads(file.read_text()) for file in Path("artifacts/runs").glob("*/run.json")]
    known = measures(stage_specs(compose(["pipeline=smoke"])))
    found = {f"{name}/{figure}" for name, stage in record["stages"].items() for figure in stage.get("metrics", {})}
    assert len(found) > 100
    assert {name for name in found if not is_measured(name, known)} == set()


def test_a_run_with_a_wrong_objective_ends_before_anything_is_built(r1flow, tmp_path):
    for command in (("run",), ("run", "-m", "second.steps=2,3"), ("plan",)):
        done = r1flow(*command, "objective.metric=second/stepz")
        assert done.returncode == 2, done.stdout
        assert "command line objective.metric: nothing of that name is measured of stage second" in done.stderr
        assert "did you mean second/steps" in done.stderr
    assert not list(tmp_path.glob("artifacts/*/*"))
