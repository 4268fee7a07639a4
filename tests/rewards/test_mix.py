"""What the mix makes of its terms: schedules, gates, normalisation, abstention, routes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.rewards.mix import Mix, Route
from components.rewards.mix_settings import mix_check, route_check
from components.rewards.schedule import factor, standardised
from components.types import Group, Message, Rollout, Score, Task


def task(name: str = "t", **fields: Any) -> Task:
    return Task(name, (Message("user", "?"),), "42", "exact", **fields)


def rollout(*tokens: int) -> Rollout:
    return Rollout("t", (1,), tokens, (True,) * len(tokens), (0.0,) * len(tokens), "<think>x", "stop")


PAIR = (task(), rollout(1))


def const(value: Any) -> Any:
    return lambda task, rollout: value


def first(task: Task, rollout: Rollout) -> float:
    return float(rollout.tokens[0])


def mix(terms: Mapping[str, Any], weights: Mapping[str, float] | None = None, **settings: Any) -> Mix:
    return Mix(terms=terms, weights=weights or dict.fromkeys(terms, 1.0), isolate=False, **settings)


def group(mixed: Mix | Route, values: Sequence[int], of: Task | None = None) -> Group:
    of = of or task()
    rollouts = tuple(rollout(value) for value in values)
    return Group(of, rollouts, tuple(mixed.score([(of, r) for r in rollouts])))


def totals(groups: Sequence[Group]) -> list[list[float]]:
    return [[score.total for score in g.scores] for g in groups]


# -- schedules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "expected"), [(0.0, 0.0), (0.5, 0.0), (0.6, 0.5), (0.7, 1.0), (0.85, 1.6), (0.99, 2.0), (1.0, 2.0)]
)
def test_a_ramp_is_linear_between_its_points_and_constant_outside(progress: float, expected: float) -> None:
    points = [[0.5, 0.0], [0.7, 1.0], [0.9, 1.8], [0.91, 2.0]]
    assert factor(points, progress) == pytest.approx(expected)


def test_a_ramped_weight_is_logged_as_it_is_in_force() -> None:
    mixed = mix({"a": const(2.0), "b": const(1.0)}, {"a": 0.5, "b": 1.0}, ramps={"a": [[0.0, 0.0], [1.0, 1.0]]})
    [score] = mixed.score([PAIR], 0.5)
    assert score == Score(1.5, {"a": 2.0, "b": 1.0}, weighted={"a": 0.5, "b": 1.0})


def test_a_term_that_does_not_count_yet_is_not_even_asked() -> None:
    asked = []
    costly = lambda task, rollout: asked.append(1) or 1.0  # noqa: E731
    mixed = mix({"a": const(1.0), "b": costly}, ramps={"b": [[0.5, 0.0], [0.6, 1.0]]})
    assert "b" not in mixed.score([PAIR], 0.5)[0].terms
    assert asked == []
    assert mixed.score([PAIR], 0.7)[0].total == 2.0


def test_preference_rewards_of_the_last_400_of_1700_steps_begin_at_step_1300() -> None:
    mixed = mix({"rule": const(1.0), "preference": const(1.0)}, active={"preference": [1300 / 1700, 1.0]})
    assert [mixed.score([PAIR], step / 1700)[0].total for step in (0, 1299, 1300, 1699)] == [1, 1, 2, 2]


# -- gates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "total"), [(0.0, 0.0), (0.99, 0.099), (1.0, 1.1)])
def test_accuracy_behind_a_gate_counts_only_with_the_form(form: float, total: float) -> None:
    mixed = mix(
        {"accuracy": const(1.0), "format": const(form)},
        {"accuracy": 1.0, "format": 0.1},
        gates={"accuracy": {"format": 1.0}},
    )
    [score] = mixed.score([PAIR])
    assert score.total == pytest.approx(total)
    assert score.terms["accuracy"] == 1.0  # raw, whatever the gate says
    assert score.weighted["accuracy"] == (1.0 if form == 1.0 else 0.0)


def test_a_gate_may_look_at_a_term_without_weight_and_fails_with_it() -> None:
    settings: dict[str, Any] = {"weights": {"accuracy": 1.0, "format": 0.0}, "gates": {"accuracy": {"format": 1.0}}}
    assert mix({"accuracy": const(1.0), "format": const(0.0)}, **settings).score([PAIR])[0].total == 0.0
    [score] = mix({"accuracy": const(1.0), "format": const(math.nan)}, **settings).score([PAIR])
    assert score.outcome == "failed"


# -- outcomes --------------------------------------------------------------------------------------------------------

UNSURE = Score(0.0, {}, "abstained", "cannot tell")


def test_a_rollout_on_which_a_term_abstains_is_left_out_or_goes_without_it() -> None:
    terms = {"a": const(1.0), "b": const(UNSURE)}
    [masked] = mix(terms).score([PAIR])
    assert (masked.outcome, masked.total) == ("abstained", 0.0)
    assert masked.reason.startswith("b (")
    assert "cannot tell" in masked.reason
    [skipped] = mix(terms, abstained="skip").score([PAIR])
    assert skipped == Score(1.0, {"a": 1.0}, weighted={"a": 1.0})
    assert mix({"b": const(UNSURE)}, abstained="skip").score([PAIR])[0].outcome == "abstained"


def test_a_failure_outweighs_an_abstention() -> None:
    [score] = mix({"a": const(UNSURE), "b": const(None)}).score([PAIR])
    assert score.outcome == "failed"
    assert "returned None" in score.reason


def test_the_terms_of_a_score_that_a_term_returns_are_kept_under_its_name() -> None:
    [score] = mix({"style": const(Score(0.75, {"tone": 0.5})), "a": const(1.0)}, {"style": 2.0, "a": 1.0}).score([PAIR])
    assert score.terms == {"style": 0.75, "style.tone": 0.5, "a": 1.0}
    assert score.total == 2.5


def test_a_penalty_may_weigh_less_than_nothing_and_nothing_else_may() -> None:
    terms = {"accuracy": const(1.0), "repetition": const(0.5)}
    weights = {"accuracy": 1.0, "repetition": -0.2}
    assert mix(terms, weights, penalties=["repetition"]).score([PAIR])[0].total == pytest.approx(0.9)
    with pytest.raises(ValueError, match=r"weights.repetition: must not be negative.*name it in penalties"):
        mix(terms, weights)


# -- normalisation ---------------------------------------------------------------------------------------------------


def test_z_scores_over_a_group_and_over_the_batch_by_hand() -> None:
    values = [[1.0, 3.0], [5.0, 7.0]]
    # Per group: mean 2 and 6, s = √2. Over all: mean 4, s = √(20/3) = 2.58199.
    assert standardised(values, per_group=True) == [pytest.approx([-0.70706, 0.70706], abs=1e-5)] * 2
    expected = [[-1.16186, -0.38728], [0.38728, 1.16186]]
    assert standardised(values, per_group=False) == [pytest.approx(row, abs=1e-4) for row in expected]


def test_what_all_agrees_or_is_alone_or_missing_has_no_spread_to_divide_by() -> None:
    assert standardised([[0.1, 0.1, 0.1], [0.7], []], per_group=True) == [[0.0, 0.0, 0.0], [0.0], []]
    assert standardised([[1.0, None, 3.0]], per_group=False)[0][1] is None


@pytest.mark.parametrize("over", ["group", "batch"])
def test_a_normalised_term_enters_the_total_and_stays_raw_in_the_terms(over: str) -> None:
    mixed = mix({"a": first, "b": const(0.5)}, {"a": 2.0, "b": 1.0}, normalise={"a": over})
    groups = mixed.settle([group(mixed, [1, 3]), group(mixed, [5, 7])])
    z = standardised([[1.0, 3.0], [5.0, 7.0]], per_group=over == "group")
    assert totals(groups) == [pytest.approx([2 * x + 0.5 for x in row]) for row in z]  # type: ignore[operator]
    assert [s.terms["a"] for g in groups for s in g.scores] == [1.0, 3.0, 5.0, 7.0]
    assert [s.weighted["b"] for g in groups for s in g.scores] == [0.5] * 4


def test_what_failed_takes_no_part_in_the_normalisation() -> None:
    odd = lambda task, rollout: math.nan if rollout.tokens[0] == 100 else first(task, rollout)  # noqa: E731
    mixed = mix({"a": odd}, normalise={"a": "group"})
    [settled] = mixed.settle([group(mixed, [1, 100, 3])])
    assert [s.outcome for s in settled.scores] == ["scored", "failed", "scored"]
    assert [s.total for s in settled.scores] == pytest.approx([-0.70706, 0.0, 0.70706], abs=1e-5)


def test_a_gate_looks_at_the_raw_value_of_a_normalised_term() -> None:
    mixed = mix({"a": const(1.0), "b": first}, normalise={"b": "group"}, gates={"a": {"b": 2.0}})
    [settled] = mixed.settle([group(mixed, [1, 3])])
    assert [s.weighted["a"] for s in settled.scores] == [0.0, 1.0]


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8))
def test_without_normalisation_settling_changes_nothing(values: list[int]) -> None:
    mixed = mix({"a": first})
    before = group(mixed, values)
    assert mixed.settle([before]) == [before]


# -- routes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "fields"),
    [
        ("kind", [{"kind": "reasoning"}, {"kind": "general"}]),
        ("family", [{"family": "reasoning"}, {"family": "general"}]),
        ("meta.origin", [{"meta": {"origin": "reasoning"}}, {"meta": {"origin": "general"}}]),
    ],
)
def test_a_task_goes_to_the_mix_of_its_source(by: str, fields: list[dict[str, Any]]) -> None:
    route = Route(by=by, routes={"reasoning": mix({"a": const(1.0)}), "general": mix({"b": const(2.0)})})
    tasks = [task(**fields[i]) for i in (1, 0, 1)]
    assert [s.terms for s in route.score([(t, rollout(1)) for t in tasks])] == [{"b": 2.0}, {"a": 1.0}, {"b": 2.0}]


def test_a_source_without_a_mix_is_named_or_takes_the_default() -> None:
    pairs = [(task("odd", meta={"origin": "web"}), rollout(1))]
    routes = {"books": mix({"a": const(1.0)})}
    with pytest.raises(ValueError, match=r"no mix for tasks of meta.origin 'web' \(task odd\)"):
        Route(by="meta.origin", routes=routes).score(pairs)
    assert Route(by="meta.origin", routes=routes, default=mix({"b": const(3.0)})).score(pairs)[0].total == 3.0


def test_each_mix_normalises_over_its_own_tasks() -> None:
    route = Route(
        by="family",
        routes={"x": mix({"a": first}, normalise={"a": "batch"}), "y": mix({"a": first})},
    )
    groups = [group(route, [1, 3], task(family="x")), group(route, [50, 90], task(family="y"))]
    groups.append(group(route, [5, 7], task(family="x")))
    z = standardised([[1.0, 3.0], [5.0, 7.0]], per_group=False)
    assert totals(route.settle(groups)) == [pytest.approx(z[0]), [50.0, 90.0], pytest.approx(z[1])]


# -- settings that make no sense -------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"terms": {"a": 1, "b": 1}, "weights": {"a": 1.0, "b": 0.5}}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"weights": {"a": 1.0}}, "weights: must have the same names as terms; b has none. Fix: write weights.b=0.1"),
        ({"weights": {"a": math.nan, "b": 1.0}}, "weights.a: is not a finite number (got nan)"),
        ({"terms": {"a.b": 1}, "weights": {"a.b": 1.0}}, "terms: 'a.b' is no name"),
        ({"active": {"c": [0, 1]}}, "active: no such term 'c'"),
        ({"active": {"a": [0.5]}}, "active.a: expects two shares"),
        ({"active": {"a": [0.5, 0.2]}}, "active.a: expects two shares"),
        ({"active": {"a": [0, 400]}}, "active.a: expects two shares"),
        ({"ramps": {"a": [[0.5, 1.0]]}}, "ramps.a: expects points"),
        ({"ramps": {"a": [[0.5, 1], [0.5, 2]]}}, "ramps.a: expects points"),
        ({"ramps": {"a": [[0, 1], [1, -1]]}}, "ramps.a: a factor is negative"),
        ({"gates": {"a": {"c": 1}}}, "gates: no such term 'c'"),
        ({"gates": {"a": {"a": 1}}}, "gates.a: a term cannot be its own condition"),
        ({"gates": {"a": {"b": math.inf}}}, "gates.a.b: is not a finite number"),
        ({"normalise": {"a": "step"}}, "normalise.a: expects batch or group (got 'step')"),
        ({"penalties": ["c"]}, "penalties: no such term 'c'"),
        ({"seconds": 0}, "seconds: must be positive"),
        ({"retries": -1}, "retries: must not be negative"),
    ],
)
def test_settings_that_make_no_sense_are_told_in_one_line(settings: dict[str, Any], told: str) -> None:
    assert mix_check(GOOD) == []
    [line] = mix_check(GOOD | settings)
    assert line.startswith(told)
    assert "Fix: " in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"routes": {}}, "routes: there are none"), ({"by": "kid"}, "by: no such part"), ({"by": "meta."}, "by: no such")],
)
def test_routes_that_make_no_sense_are_told_in_one_line(settings: dict[str, Any], told: str) -> None:
    [line] = route_check({"by": "kind", "routes": {"x": 1}} | settings)
    assert line.startswith(told)


def test_an_infinite_total_has_failed() -> None:
    [score] = Mix(terms={"a": lambda t, r: 1.7e308}, weights={"a": 2.0}, isolate=False).score([(task("a"), rollout(1))])
    assert score.outcome == "failed" and "the weighted sum of a is inf" in score.reason


@pytest.mark.parametrize("values", [{0: 1.0}, {1.0}])
def test_a_batch_without_an_order_has_failed(values: Any) -> None:
    class Batch:
        def batch(self, pairs: Any) -> Any:
            return values

    [score] = Mix(terms={"a": Batch()}, weights={"a": 1.0}, isolate=False).score([(task("a"), rollout(1))])
    assert score.outcome == "failed" and "not 1 values" in score.reason
