"""What the command line means, before Hydra sees it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.errors import BadInput
from flows.settings import Groups, parse, rewrite
from flows.sweep import sweep_values

GROUPS = Groups({"algorithm": {"grpo", "dapo"}, "reward": {"r1"}, "pipeline": {"r1", "smoke"}})
STAGES = ("rl_1", "rl_2")
ROOT = {
    "seed": 0,
    "artifacts": "artifacts",
    "algorithm": {"_target_": "components.x.A", "beta": 0.1, "clip": {"_target_": "components.x.clip", "eps": 0.2}},
    "reward": {"_target_": "components.x.Mix", "weights": {"format": 0.1}},
    "stages": {"rl_1": {}, "rl_2": {}},
    "only": {},
    "settings": {"depth": 1},
}


def rewritten(*overrides: str) -> list[str]:
    return rewrite(parse(overrides), STAGES, GROUPS, ROOT)


def refused(*overrides: str) -> str:
    with pytest.raises(BadInput) as error:
        rewritten(*overrides)
    return str(error.value)


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("rl_1.steps=5", "++only.rl_1.steps=5"),
        ("stages.rl_1.steps=5", "++only.rl_1.steps=5"),
        ("only.rl_1.steps=5", "++only.rl_1.steps=5"),
        ("+rl_1.steps=5", "++only.rl_1.steps=5"),
        ("++rl_1.steps=5", "++only.rl_1.steps=5"),
        ("rl_1.algorithm.clip.eps=.3", "++only.rl_1.algorithm.clip.eps=.3"),
        ("rl_1.algorithm=dapo", "++only.rl_1.algorithm._option_=dapo"),
        ("rl_1.algorithm='dapo'", "++only.rl_1.algorithm._option_='dapo'"),
        ("rl_1.algorithm={a: 1}", "++only.rl_1.algorithm={a: 1}"),
        ("rl_1.algorithm=${algorithm}", "++only.rl_1.algorithm=${algorithm}"),
        ("rl_1.algorithm=null", "++only.rl_1.algorithm=null"),
        ("~rl_1.reward.terms.length", "++only.rl_1.reward.terms.length._delete_=true"),
        ("~rl_1", "~stages.rl_1"),
        ("rl_1.name='a=b'", "++only.rl_1.name='a=b'"),
        ("algorithm=dapo", "algorithm=dapo"),
        ("algorithm.beta=1", "algorithm.beta=1"),
        ("+algorithm.beta=1", "++algorithm.beta=1"),
        ("algorithm.gamma=1", "++algorithm.gamma=1"),  # a component may accept more than its yaml lists
        ("seed=1", "seed=1"),
        ("+stages.more={a: 1}", "+stages.more={a: 1}"),
    ],
)
def test_an_override_reaches_hydra_as(written, seen):
    assert rewritten(written) == [seen]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("sed=1", "did you mean seed?"),
        ("+sed=1", "did you mean seed?"),
        ("algoritm.beta=1", "did you mean algorithm?"),
        ("rl1.steps=3", "did you mean rl_1?"),
        ("stages.rl_22.steps=3", "did you mean stages.rl_2?"),
        ("algorithm=dappo", "did you mean dapo?"),
        ("settings.dept=1", "did you mean settings.depth?"),
        ("reward.weights.fromat=1", "did you mean reward.weights.format?"),
        ("artifacts.x=1", "artifacts is a value"),
        ("lr=3", "a setting of one stage is written rl_1.lr="),
        ("rl_1=3", "name the setting"),
        ("rl_1.steps=1,2", "add -m"),
        ("seed=1,2", "add -m"),
        ("algorithm=grpo,dapo", "add -m"),
        ("steps", "is not an override"),
    ],
)
def test_a_key_that_leads_nowhere_is_refused_with_the_nearest_spelling(written, told):
    message = refused(written)
    assert told in message
    assert written.partition("=")[0].lstrip("+") in message


def test_all_refused_overrides_are_told_at_once():
    assert len(refused("sed=1", "rl1.steps=3").splitlines()) == 2


@given(
    key=st.from_regex(r"[a-z_][a-z0-9_]{0,8}(\.[a-z_][a-z0-9_]{0,8}){0,3}", fullmatch=True),
    value=st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()),
    sign=st.sampled_from(["", "+", "++"]),
)
def test_no_setting_of_one_stage_ever_reaches_a_shared_node(key, value, sign):
    assert rewritten(f"{sign}rl_1.{key}={value}") == [f"++only.rl_1.{key}={value}"]


def test_several_values_become_one_override_each():
    assert sweep_values("rl_1.steps=1,2", GROUPS) == ["rl_1.steps=1", "rl_1.steps=2"]
    assert sweep_values("seed=range(3)", GROUPS) == ["seed=0", "seed=1", "seed=2"]
    assert sweep_values("algorithm=glob(*)", GROUPS) == ["algorithm=dapo", "algorithm=grpo"]
    assert sweep_values("rl_1.betas=[0.9,0.99]", GROUPS) == ["rl_1.betas=[0.9,0.99]"]
    assert sweep_values("~rl_1.x", GROUPS) == ["~rl_1.x"]


def test_an_interval_has_no_values_to_sweep():
    with pytest.raises(BadInput, match="list them"):
        sweep_values("rl_1.lr=interval(0,1)", GROUPS)


def test_another_component_replaces_the_one_that_is_there() -> None:
    """Hydra alone would merge them: sapo with clip's settings."""
    from flows.compose import compose

    found = compose(["algorithm.surrogate={_target_: components.losses.surrogate.sapo, _partial_: true}"])
    assert found.root["algorithm"]["surrogate"] == {"_target_": "components.losses.surrogate.sapo", "_partial_": True}
