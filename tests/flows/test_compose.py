"""From overrides to stages: what reaches which stage."""

import json

import pytest

from flows.build import stage_specs
from flows.compose import compose
from flows.errors import BadInput


@pytest.fixture
def stages(conf):
    def composed(*overrides):
        return {spec.name: spec for spec in stage_specs(compose(overrides, conf))}

    return composed


def eps_high(spec):
    return spec.settings["algorithm"]["surrogate"]["eps_high"]


def test_a_setting_of_a_group_reaches_every_stage_that_uses_it(stages):
    found = stages("algorithm.surrogate.eps_high=.4")
    assert eps_high(found["first"]) == eps_high(found["second"]) == 0.4


def test_an_option_of_a_group_reaches_every_stage_that_uses_it(stages):
    found = stages("algorithm=wide")
    assert eps_high(found["first"]) == eps_high(found["second"]) == 0.28


def test_a_setting_of_one_stage_reaches_only_that_stage(stages):
    found = stages("first.algorithm.surrogate.eps_high=.4")
    assert (eps_high(found["first"]), eps_high(found["second"])) == (0.4, 0.2)


def test_an_option_for_one_stage_reaches_only_that_stage_whatever_its_setting_is_called(stages):
    found = stages("first.algorithm=wide", "numbers.data=letters")
    assert (eps_high(found["first"]), eps_high(found["second"])) == (0.28, 0.2)
    assert found["numbers"].settings["source"]["_target_"] == "toys.parts.letters"


def test_a_setting_may_follow_the_option_chosen_for_one_stage(stages):
    algorithm = stages("first.algorithm=wide", "first.algorithm.surrogate.eps_low=.1")["first"].settings["algorithm"]
    assert (algorithm["surrogate"]["eps_low"], algorithm["surrogate"]["eps_high"]) == (0.1, 0.28)


def test_an_option_for_a_setting_that_takes_its_value_from_elsewhere_replaces_it(stages):
    changed = "second.reward={_target_: toys.parts.Mix, terms: {both: ${reward}}, weights: {both: 1.0}}"
    assert list(stages(changed)["second"].settings["reward"]["terms"]) == ["both"]
    found = stages("pipeline=mixed", "second.reward=two")
    assert list(found["second"].settings["reward"]["terms"]) == ["right", "format"]
    assert list(stages("pipeline=mixed")["second"].settings["reward"]["terms"]) == ["both"]


def test_a_setting_below_a_group_under_another_name_reaches_only_that_stage(stages):
    assert stages("numbers.data.upto=9")["numbers"].settings["source"]["upto"] == 9


def test_an_experiment_changes_one_stage_and_the_command_line_wins(stages):
    found = stages("experiment=quick")
    assert (found["first"].settings["steps"], found["second"].settings["steps"]) == (1, 2)
    assert eps_high(found["first"]) == 0.28
    again = stages("experiment=quick", "first.steps=7", "first.algorithm.surrogate.eps_low=.1")["first"]
    assert (again.settings["steps"], eps_high(again)) == (7, 0.28)
    assert again.settings["algorithm"]["surrogate"]["eps_low"] == 0.1


def test_a_setting_the_signature_accepts_need_not_be_in_the_yaml(stages):
    assert stages("first.lr=.5")["first"].settings["lr"] == 0.5


def test_a_reference_in_an_override_is_resolved(stages):
    assert stages("first.lr=${algorithm.surrogate.eps_low}")["first"].settings["lr"] == 0.2


def test_a_deleted_setting_is_gone_for_one_stage(stages):
    found = stages("~first.reward.weights.format")
    assert "format" not in found["first"].settings["reward"]["weights"]
    assert "format" in found["second"].settings["reward"]["weights"]


def test_a_stage_can_be_taken_out_and_an_input_rewired(stages):
    assert list(stages("~first", "second.inputs.policy=null", "report.inputs.first=second")) == [
        "numbers",
        "second",
        "report",
    ]


def test_a_stage_can_be_added(stages):
    found = stages("+stages.again={_target_: toys.stages.report, inputs: {x: second}}")
    assert found["again"].inputs == {"x": "second"}


def test_stages_come_after_their_inputs_else_in_the_order_of_the_file(stages):
    assert list(stages("numbers.inputs.late=report", "first.inputs=null", "second.inputs.numbers=null")) == [
        "first",
        "second",
        "report",
        "numbers",
    ]


def test_launcher_and_seed_of_one_stage_are_its_own(stages):
    found = stages("first.seed=5", "first.launcher.threads=2")
    assert (found["first"].seed, found["second"].seed) == (5, 0)
    assert (found["first"].launcher.get("threads"), found["second"].launcher.get("threads")) == (2, None)


def test_a_user_file_comes_before_the_built_in_one_of_the_same_name(tmp_path, conf):
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "inprocess.yaml").write_text("_target_: mine.Launcher\n")
    assert compose(["launcher=inprocess"], conf).root["launcher"]["_target_"] == "flows.launch.inprocess.InProcess"
    (tmp_path / "config.yaml").write_text(
        (conf / "config.yaml").read_text().partition("seed")[0].split("defaults")[0]
        + "defaults: [_self_, launcher: inprocess]\nstages: {}\n"
    )
    assert compose([], tmp_path).root["launcher"]["_target_"] == "mine.Launcher"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["pipeline=cyclic"], "cycle, first → second → third → first"),
        (["first.inputs.policy=secnd"], "did you mean second?"),
        (["first.stpes=1"], "did you mean steps?"),
        (["first.algorithm.btea=1"], "did you mean algorithm.beta?"),
        (["numbers.data.uptoo=1"], "did you mean data.upto?"),
        (["first.algorithm=wid"], "did you mean wide?"),
        (["~first.group"], "can't be deleted"),
        (["first.inputs=[a]"], "not a mapping"),
        (["first.lr=${algoritm.beta}"], "did you mean algorithm?"),
        (["+stages.x={inputs: {}}"], "name the stage's function"),
        (["+only.scond={steps: 1}"], "did you mean"),
        (["model=broken"], "broken.yaml:2"),
        (["model=lost"], "use one of: adapters, broken, "),
    ],
)
def test_what_leads_nowhere_is_told_in_one_line_with_a_remedy(conf, overrides, told):
    with pytest.raises(BadInput) as error:
        stage_specs(compose(overrides, conf))
    assert told in str(error.value)
    assert "Fix: " in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_secret_is_in_neither_settings_nor_the_logged_configuration(conf, monkeypatch):
    from flows.build import build

    monkeypatch.setenv("MY_SECRET", "from-environment-1234")
    overrides = ["first.model.hub_token=written-out-5678", "second.model.path=${oc.env:MY_SECRET}"]
    config = compose(overrides, conf)
    found = {spec.name: spec for spec in stage_specs(config)}
    logged = config.unresolved + json.dumps([spec.settings for spec in found.values()])
    assert "from-environment-1234" not in logged
    assert "written-out-5678" not in logged
    assert build(found["first"].settings["model"], allow=["toys"]).hub_token == "written-out-5678"
    assert build(found["second"].settings["model"], allow=["toys"]).path == "from-environment-1234"


def test_an_ordinary_environment_variable_is_resolved_so_that_it_enters_the_stage_key(stages, monkeypatch):
    monkeypatch.setenv("MODEL_DIR", "/models/a")
    assert stages("first.model.path=${oc.env:MODEL_DIR}")["first"].settings["model"]["path"] == "/models/a"
