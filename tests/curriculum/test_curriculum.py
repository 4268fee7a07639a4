"""Curricula: what they draw, what they learn from groups, and that a resume repeats every draw."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from components.curriculum.cells import Curriculum, allocate
from components.curriculum.learnability import learnability
from components.curriculum.pass_rate import pass_rate, raise_first
from components.curriculum.staged import staged
from components.curriculum.uniform import uniform
from components.types import Group, Message, Rollout, Score, Task

CONF = Path(__file__).parents[2] / "conf" / "curriculum"
FACTORIES = (uniform, staged, pass_rate, learnability)
HOME = (0, "rl_1")


def task(family: str, level: int, i: int, kind: str = "reasoning") -> Task:
    return Task(f"{family}-{level}-{i}", (Message("user", "q"),), "1", "exact", family, level, kind)


def pool(families=("chain", "gcd"), levels: int = 3, each: int = 10) -> list[Task]:
    return [task(f, level, i) for f in families for level in range(levels) for i in range(each)]


def group(of: Task, values: list[float], term: str = "accuracy") -> Group:
    """Rollouts with these accuracies; totals are shaped on top."""
    rollouts = tuple(Rollout(of.id, (1,), (2,), (True,), (-0.1,), "x", "stop") for _ in values)
    return Group(of, rollouts, tuple(Score(v + 0.3, {term: v}) for v in values))


def observe(curriculum: Curriculum, rates: dict[str, float], times: int = 1) -> None:
    """Groups of ten whose accuracy is the given rate of each cell."""
    for _ in range(times):
        cells = [(cell.rsplit("/", 1), rate) for cell, rate in rates.items()]
        curriculum.observe(
            group(task(f, int(level), 0), [1.0] * round(10 * rate) + [0.0] * round(10 - 10 * rate))
            for (f, level), rate in cells
        )


def shares(curriculum: Curriculum, n: int = 3000, step: int = 0) -> dict[str, float]:
    counts = Counter(t.cell for t in curriculum.draw(n, (*HOME, step)))
    return {cell: count / n for cell, count in counts.items()}


# -- drawing -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", FACTORIES)
def test_families_get_equal_shares(make) -> None:
    curriculum = make()
    curriculum.start([*pool(("a", "b", "c")), task("d", 0, 0)])
    assert Counter(t.family for t in curriculum.draw(32, (*HOME, 0))) == {"a": 8, "b": 8, "c": 8, "d": 8}


def test_families_take_turns_when_a_draw_does_not_divide() -> None:
    curriculum = uniform()
    curriculum.start(pool(("a", "b", "c")))
    counts = Counter(t.family for step in range(300) for t in curriculum.draw(1, (*HOME, step)))
    # 300 draws of one third each: standard deviation 8
    assert all(abs(counts[f] - 100) < 33 for f in "abc")


def test_weights_of_families_and_kinds_split_the_draw() -> None:
    tasks = [*pool(("chain", "gcd")), *(task(f, 0, i, "general") for f in ("unsafe", "list") for i in range(5))]
    by_family = uniform(families={"chain": 3, "list": 0})
    by_family.start(tasks)
    assert Counter(t.family for t in by_family.draw(25, HOME)) == {"chain": 15, "gcd": 5, "unsafe": 5}
    by_kind = uniform(kinds={"reasoning": 3, "general": 5}, families={"unsafe": 4})
    by_kind.start(tasks)
    counts = Counter(t.family for t in by_kind.draw(32, HOME))
    assert counts == {"chain": 6, "gcd": 6, "unsafe": 16, "list": 4}


def test_a_pool_is_exhausted_before_a_task_comes_again() -> None:
    curriculum = uniform()
    curriculum.start(pool(("a",), levels=1, each=7))
    drawn = [t.id for step in range(7) for t in curriculum.draw(3, (*HOME, step))]
    rounds = [drawn[i : i + 7] for i in (0, 7, 14)]
    assert all(len(set(r)) == 7 for r in rounds)
    assert rounds[0] != rounds[1]  # a new order each time


def test_the_order_follows_the_run_seed_and_not_the_order_of_the_tasks() -> None:
    def first(tasks: list[Task], seed: int) -> list[str]:
        curriculum = uniform()
        curriculum.start(tasks, address=(seed, "rl_1"))
        return [t.id for t in curriculum.draw(12, (seed, "rl_1", 0))]

    assert first(pool(), 0) == first(pool()[::-1], 0)
    assert first(pool(), 0) != first(pool(), 1)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(0, 500),
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=9).filter(any),
    u=st.floats(0, 1, exclude_max=True),
)
def test_allocate_splits_everything_and_rounds_each_part_by_less_than_one(n, weights, u) -> None:
    parts = allocate(n, weights, u)
    assert sum(parts) == n
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - n * weight / sum(weights)) < 1 + 1e-6
        assert part == 0 or weight > 0


def test_allocate_is_unbiased() -> None:
    grid = [allocate(3, [0.2, 0.5, 0.3], (i + 0.5) / 1000) for i in range(1000)]
    assert [sum(p[i] for p in grid) / 1000 for i in range(3)] == pytest.approx([0.6, 1.5, 0.9], abs=2e-3)


# -- levels ------------------------------------------------------------------------------------------------------------
def test_uniform_weighs_all_levels_alike() -> None:
    curriculum = uniform()
    curriculum.start(pool(("a",)), {"a/0": 1.0})
    assert shares(curriculum) == pytest.approx({f"a/{level}": 1 / 3 for level in range(3)}, abs=1e-3)


def test_pass_rate_opens_two_levels_and_weighs_by_p_times_one_minus_p() -> None:
    curriculum = pass_rate()
    curriculum.start(pool(("a",), levels=4), {"a/0": 0.9, "a/1": 0.4})
    weights = (0.09 + 0.03, 0.24 + 0.03)
    assert shares(curriculum) == pytest.approx(
        {"a/0": weights[0] / sum(weights), "a/1": weights[1] / sum(weights)}, abs=1e-3
    )


def test_pass_rate_opens_a_level_when_the_one_before_is_above_one_half() -> None:
    curriculum = pass_rate()
    curriculum.start(pool(("a",), levels=4), {"a/0": 0.2, "a/1": 0.5, "a/2": 0.9})
    assert set(shares(curriculum)) == {"a/0", "a/1"}  # 0.5 is not above 0.5, and level 2 alone does not count
    observe(curriculum, {"a/1": 0.6})
    assert set(shares(curriculum)) == {"a/0", "a/1", "a/2", "a/3"}
    observe(curriculum, {"a/1": 0.0})
    assert set(shares(curriculum)) == {"a/0", "a/1"}


def test_the_moving_average_keeps_four_fifths_per_group() -> None:
    curriculum = pass_rate()
    curriculum.start(pool(("a",)), {"a/0": 0.5})
    observe(curriculum, {"a/0": 1.0, "a/1": 0.3}, times=2)
    seen = curriculum.describe()
    assert seen["a/0"]["pass_rate"] == pytest.approx(0.8 * (0.8 * 0.5 + 0.2) + 0.2)
    assert seen["a/1"]["pass_rate"] == pytest.approx(0.3)  # the first observation counts whole
    assert "pass_rate" not in seen["a/2"]


def test_a_family_lost_at_its_easiest_level_spends_half_of_its_draws_there() -> None:
    curriculum = pass_rate(open_levels=3)
    curriculum.start(pool(("lost", "fine")), {"lost/0": 0.01, "lost/1": 0.3, "fine/0": 0.2})
    got = shares(curriculum, 4000)
    assert sum(share for cell, share in got.items() if cell.startswith("lost")) == pytest.approx(0.5)
    assert got["lost/0"] == pytest.approx(0.25, abs=1e-3)
    assert got["lost/1"] / got["lost/2"] == pytest.approx(0.24 / 0.28, rel=0.02)
    assert curriculum.describe()["fine/0"]["share"] == pytest.approx(0.5 * 0.19 / (0.19 + 0.28 + 0.28), abs=1e-3)


def test_raise_first_keeps_the_proportions_of_the_others() -> None:
    assert raise_first([1.0, 2.0, 6.0], 0.5) == pytest.approx([0.5, 0.125, 0.375])
    assert raise_first([3.0, 1.0], 0.5) == [3.0, 1.0]
    assert raise_first([0.1, 0.0], 0.5) == [0.1, 0.0]


def test_staged_by_steps_opens_a_level_every_so_many_steps() -> None:
    curriculum = staged(by="steps", steps_per_level=2)
    curriculum.start(pool(("a",)))
    opened = []
    for step in range(6):
        opened.append(len(shares(curriculum, 300, step)))
        curriculum.observe([])
    assert opened == [1, 1, 2, 2, 3, 3]


def test_staged_by_mastery_opens_each_family_by_itself() -> None:
    curriculum = staged()
    curriculum.start(pool(), {"chain/0": 0.9, "chain/1": 0.2, "gcd/0": 0.1})
    assert shares(curriculum) == pytest.approx({"chain/0": 0.25, "chain/1": 0.25, "gcd/0": 0.5}, abs=1e-3)


def test_learnability_follows_the_variance_of_the_reward() -> None:
    curriculum = learnability(decay=0.0)
    curriculum.start(pool(("a",)))
    observe(curriculum, {"a/0": 1.0, "a/1": 0.5, "a/2": 0.1})
    weights = [0.01, 0.01 + 0.25, 0.01 + 0.09]
    assert shares(curriculum) == pytest.approx({f"a/{i}": w / sum(weights) for i, w in enumerate(weights)}, abs=1e-3)


def test_learnability_starts_from_the_variance_that_a_profiled_pass_rate_implies() -> None:
    curriculum = learnability()
    curriculum.start(pool(("a",)), {"a/0": 0.1, "a/1": 0.5})
    weights = [0.1, 0.26, 0.26]  # an unknown level counts as much as one passed half of the time
    assert shares(curriculum) == pytest.approx({f"a/{i}": w / sum(weights) for i, w in enumerate(weights)}, abs=1e-3)


def test_levels_need_not_start_at_zero_or_be_contiguous() -> None:
    curriculum = pass_rate()
    curriculum.start([task("a", level, i) for level in (3, 7, 12) for i in range(4)], {"a/7": 0.8})
    assert set(shares(curriculum)) == {"a/3", "a/7", "a/12"}


# -- observing ---------------------------------------------------------------------------------------------------------
def test_unscored_rollouts_and_groups_without_accuracy_leave_the_pass_rate() -> None:
    curriculum = pass_rate(accuracy="right")
    curriculum.start(pool(("a",)), {"a/0": 0.5})
    of = task("a", 0, 0)
    mixed = group(of, [1.0, 1.0, 0.0], "right")
    failed = Group(of, mixed.rollouts, (*mixed.scores[:2], Score(0.0, {"right": 0.0}, "failed")))
    curriculum.observe([group(of, [0.0], "other"), failed, Group(of, (), ())])
    assert curriculum.describe()["a/0"]["pass_rate"] == pytest.approx(0.8 * 0.5 + 0.2)


def test_groups_of_unknown_cells_are_passed_over() -> None:
    curriculum = uniform()
    curriculum.start(pool(("a",)))
    curriculum.observe([group(task("z", 0, 0), [1.0])])
    assert set(curriculum.describe()) == {"a/0", "a/1", "a/2"}


def test_describe_gives_the_shares_of_the_step_with_all_its_draws() -> None:
    curriculum = uniform()
    curriculum.start(pool(("a",), levels=2))
    curriculum.draw(4, (*HOME, 0, 0))
    curriculum.draw(2, (*HOME, 0, 1))  # a further round of dynamic sampling
    assert curriculum.describe()["a/0"]["share"] == 0.5
    curriculum.observe([])
    assert curriculum.describe()["a/1"]["share"] == 0.5  # still that of the step just done
    curriculum.draw(1, (*HOME, 1, 0))
    assert sorted(cell["share"] for cell in curriculum.describe().values()) == [0, 1]


# -- resume ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", FACTORIES)
def test_stopping_anywhere_and_going_on_repeats_every_draw(make) -> None:
    def steps(curriculum: Curriculum, begin: int, end: int) -> list[list[str]]:
        drawn = []
        for step in range(begin, end):
            tasks = curriculum.draw(13, (*HOME, step))
            drawn.append([t.id for t in tasks])
            curriculum.observe(group(t, [float((t.level + step + k) % 3 == 0) for k in range(4)]) for t in tasks)
        return drawn

    def fresh() -> Curriculum:
        curriculum = make()
        curriculum.start(pool(levels=4), {"chain/0": 0.7, "chain/1": 0.6}, address=HOME)
        return curriculum

    whole = fresh()
    expected = steps(whole, 0, 12)
    for stop in (0, 1, 5, 11):
        first = fresh()
        steps(first, 0, stop)
        second = fresh()
        second.load_state(json.loads(json.dumps(first.state())))
        assert steps(second, stop, 12) == expected[stop:]
        assert second.state() == whole.state()


def test_a_checkpoint_of_other_tasks_is_refused() -> None:
    one, other = uniform(), uniform()
    one.start(pool())
    other.start(pool()[:-1])
    with pytest.raises(ValueError, match="made with other tasks"):
        other.load_state(one.state())


# -- refusing ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "tasks", "says"),
    [
        ({}, [], "unique ids, got 0"),
        ({}, [task("a", 0, 0), task("a", 0, 0)], "unique ids, got 2"),
        ({"families": {"chian": 2}}, pool(), "no task has family 'chian'; did you mean 'chain'"),
        ({"kinds": {"tools": 2}}, pool(), "no task has kind 'tools'; present: reasoning"),
        ({"families": {"chain": 0, "gcd": 0}}, pool(), "every family has weight 0"),
        ({"families": {"chain": -1}}, pool(), "'chain' must be 0 or more"),
        ({"decay": 1.0}, pool(), "decay"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(settings: dict, tasks: list[Task], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        uniform(**settings).start(tasks)


@pytest.mark.parametrize(
    "make",
    [
        lambda: staged(by="whim"),
        lambda: staged(open_levels=0),
        lambda: pass_rate(floor=0),
        lambda: pass_rate(lost_share=2),
        lambda: learnability(floor=0),
    ],
)
def test_settings_out_of_range_are_refused(make) -> None:
    with pytest.raises(ValueError, match="curriculum"):
        make()


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_yaml_makes_a_curriculum_that_draws(path: Path) -> None:
    curriculum = instantiate(OmegaConf.load(path), _convert_="all")
    curriculum.start(pool())
    assert len(curriculum.draw(5, HOME)) == 5
