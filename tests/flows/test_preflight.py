"""Every kind of bad input gives one line that names key, value and remedy, before anything runs."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.build import stage_specs
from flows.compose import compose
from flows.errors import BadInput
from flows.preflight import preflight, preflight_run
from flows.values import canonical

ROOT = Path(__file__).parents[2]
CLIP = "components.losses.surrogate.clip"


def check(conf, *overrides, artifacts=None):
    config = compose(overrides, conf)
    preflight_run(config)
    return preflight(stage_specs(config), allow=config.root["allow"], artifacts=artifacts)


def test_nothing_is_wrong_with_the_default(conf, tmp_path):
    assert len(check(conf, artifacts=tmp_path)) == 4


PIPELINES = sorted(file.stem for file in (ROOT / "conf" / "pipeline").glob("*.yaml"))


OF_ONES_OWN = ("agent_tasks", "agent_zero")


@pytest.mark.parametrize("pipeline", [name for name in PIPELINES if name not in OF_ONES_OWN])
def test_nothing_is_wrong_with_a_built_in_pipeline(pipeline):
    assert check(None, f"pipeline={pipeline}")


@pytest.mark.parametrize("pipeline", OF_ONES_OWN)
def test_a_pipeline_for_tasks_of_ones_own_asks_where_they_are(pipeline):
    with pytest.raises(BadInput, match=r"source\.path: must be given"):
        check(None, f"pipeline={pipeline}")


@pytest.mark.parametrize(
    "choice",
    [
        f"{group}={file.stem}"
        for group in ("algorithm", "reward", "curriculum", "environment", "engine", "data", "launcher", "tracking")
        for file in sorted((ROOT / "conf" / group).glob("*.yaml"))
        if f"${{{group}}}" not in file.read_text()  # made of another option, for one stage
    ],
)
def test_every_built_in_option_fits_the_default_pipeline_or_says_what_it_lacks(choice):
    text = (ROOT / "conf" / f"{choice.replace('=', '/')}.yaml").read_text()
    if "???" in text:  # a path of the user's own
        with pytest.raises(BadInput) as error:
            check(None, choice)
        assert all("must be given" in line for line in str(error.value).splitlines())
    elif choice == "engine=vllm" and importlib.util.find_spec("vllm") is None:
        with pytest.raises(BadInput, match=r"vLLM is not installed here\. Fix: pip install vllm"):
            check(None, choice)
    else:
        assert check(None, choice)


@pytest.mark.parametrize(
    ("override", "key", "told"),
    [
        ("first.steps=abc", "first steps", "expects int (got 'abc')"),
        ("first.steps=1.5", "first steps", "expects int (got 1.5)"),
        ("first.steps=true", "first steps", "expects int (got True)"),
        ("first.lr='0.1'", "first lr", "expects float (got '0.1')"),
        ("first.steps=null", "first steps", "expects int (got None)"),
        ("~first.steps", "first steps", "is required by toys.stages.train"),
        ("algorithm.mode=men", "first, second algorithm.mode", "did you mean mean?"),
        ("algorithm.betas=[0.9]", "first, second algorithm.betas", "expects tuple[float, float]"),
        ("algorithm.betas=[0.9,x]", "first, second algorithm.betas.1", "(got 'x')"),
        ("algorithm.surrogate=0.2", "first, second algorithm.surrogate", "expects Callable"),
        ("reward.terms.right=1", "first, second reward.terms.right", "(got 1)"),
        ("model=unfinished", "first, second model.width", "must be given"),
        ("algorithm.btea=1", "first, second algorithm.btea", "did you mean algorithm.beta?"),
        ("+algorithm.btea=1", "first, second algorithm.btea", "did you mean algorithm.beta?"),
        ("algorithm._target_=toys.parts.Algoritm", "algorithm._target_", "did you mean toys.parts.Algorithm?"),
        ("algorithm._target_=os.system", "algorithm._target_", "add allow=[toys,os]"),
        ("first._target_=toys.parts.clip", "first _target_", "is not a stage function"),
        ("first._target_=toys.stages.trian", "first _target_", "did you mean toys.stages.train?"),
        ("first.model={_input_: nmbers}", "first model._input_", "did you mean numbers?"),
        ("first.launcher.thread=2", "first launcher.thread", "did you mean launcher.threads?"),
        ("first.launcher._target_=os.system", "first launcher._target_", "lies outside flows.launch"),
        ("first.seed=x", "first seed", "expects a whole number"),
        # figures
        ("first.lr=-1", "first lr", "must be positive (got -1)"),
        ("first.lr=0", "first lr", "must be positive"),
        ("first.lr=nan", "first lr", "is not a number"),
        ("first.steps=0", "first steps", "must be at least 1"),
        ("algorithm.beta=-0.1", "first, second algorithm.beta", "must not be negative"),
        ("first.group=1", "first group", "at least two rollouts"),
        ("first.temperature=0", "first temperature", "would be the same"),
        ("first.temperature=-1", "first temperature", "must not be negative"),
        ("first.prompts=9", "first prompts", "9 is not a multiple of minibatches=2"),
        ("reward.weights.right=-1", "first, second reward.weights.right", "must not be negative"),
        ("+reward.weights.fromat=1", "first, second reward.weights.fromat", "did you mean reward.weights.format?"),
        # what components check themselves
        ("first.steps=2000", "first steps", "must be at most 1000. Fix: write fewer."),
        ("algorithm.beta=11", "first, second algorithm.beta", "is too large"),
    ],
)
def test_bad_input_is_told_in_one_line(conf, override, key, told):
    with pytest.raises(BadInput) as error:
        check(conf, override)
    [line] = str(error.value).splitlines()
    assert key in line
    assert told in line
    assert "Fix: " in line


@pytest.mark.parametrize(
    ("override", "key", "told"),
    [
        ("orchestrator=prefekt", "orchestrator", "did you mean prefect?"),
        ("seed=x", "seed", "expects a whole number"),
        ("allow=toys", "allow", "expects a list of packages"),
        ("artifacts=3", "artifacts", "expects a directory"),
        ("+tracking={_target_: toys.parts.Small}", "tracking.width", "is required"),
    ],
)
def test_bad_settings_of_the_run_are_told(conf, override, key, told):
    with pytest.raises(BadInput) as error:
        check(conf, override)
    assert key in str(error.value)
    assert told in str(error.value)


def test_weights_that_sum_to_zero_would_reward_nothing(conf):
    with pytest.raises(BadInput, match="sum to 0"):
        check(conf, "reward.weights.right=0", "reward.weights.format=0")


def test_all_problems_are_told_at_once(conf):
    with pytest.raises(BadInput) as error:
        check(conf, "first.steps=a", "second.steps=b", "first.lr=c")
    assert len(error.value.problems) == 3


def test_only_the_first_twenty_problems_are_shown():
    from flows.errors import Problem

    lines = BadInput([Problem("x", str(i), "is bad") for i in range(25)]).lines()
    assert len(lines) == 21
    assert lines[-1] == "… and 5 more."


def test_a_directory_that_cannot_be_written_is_found_before_the_run(conf, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="artifacts: is not a directory"):
        check(conf, artifacts=tmp_path / "file" / "artifacts")
    if os.getuid() == 0:  # to whom everything is writable
        with pytest.raises(BadInput, match="artifacts: can't be written"):
            check(conf, artifacts=Path("/proc/artifacts"))
    else:
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(BadInput, match="artifacts: can't be written"):
            check(conf, artifacts=tmp_path / "closed" / "artifacts")


def test_whole_numbers_become_floats_where_the_signature_says_so(conf):
    first = next(spec for spec in check(conf, "first.lr=1", "algorithm.betas=[1,2]") if spec.name == "first")
    assert repr(first.settings["lr"]) == "1.0"
    assert repr(first.settings["algorithm"]["betas"]) == "[1.0, 2.0]"
    assert repr(first.settings["steps"]) == "4"


def test_canonical_keeps_what_may_be_a_whole_number():
    assert repr(canonical(1, int | float)) == "1"
    assert repr(canonical(1, float | None)) == "1.0"
    assert repr(canonical({"a": 1}, dict[str, float] | None)) == "{'a': 1.0}"
    assert repr(canonical(True, float)) == "True"


def test_preflight_imports_neither_the_stages_nor_a_heavy_package():
    code = (
        "import sys; from flows.run import prepare; prepare(['artifacts=/tmp'])\n"
        "print([m for m in ('torch', 'transformers', 'prefect', 'mlflow', 'components.stages.rl') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_check_that_needs_its_module_is_imported_with_it(tmp_path, monkeypatch, conf):
    from flows.checks import component_problems

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own.py").write_text(
        "from numpy import pi\nLIMIT = 3\n"
        "def light(*, x: int): ...\n"
        "def light_check(settings):\n    return [f'x: over {LIMIT}'] if settings['x'] > LIMIT else []\n"
        "def heavy(*, x: int): ...\n"
        "def heavy_check(settings):\n    return [f'x: over {pi:.2f}'] if settings['x'] > pi else []\n"
    )
    assert str(component_problems("w", "", "own.light", {"x": 4}, None)[0]) == "w x: over 3."
    assert "own" not in sys.modules
    assert str(component_problems("w", "", "own.heavy", {"x": 4}, None)[0]) == "w x: over 3.14."
    assert "own" in sys.modules


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (["algorithm=gspo", "algorithm.surrogate.eps_low=0.2"], "algorithm.surrogate", "never clips"),
        (
            ["algorithm=gspo", "algorithm.aggregate._target_=components.losses.aggregate.token_mean"],
            "algorithm.aggregate",
            "weighs a rollout by its length",
        ),
        (["algorithm=cispo", "algorithm.surrogate.cap=0.2"], "algorithm.surrogate", "only shrinks every weight"),
        (["algorithm=dapo", "algorithm.ref_refresh_every=400"], "algorithm.ref_refresh_every", "no reference"),
        (["algorithm=rloo", "algorithm.kl.estimator=k3"], "algorithm.kl", "Fix: use k1"),
        # a default that the yaml does not spell out
        (
            ["algorithm=gspo", f"rl_1.algorithm.surrogate={{_target_: {CLIP}, _partial_: true}}"],
            "rl_1 algorithm.surrogate",
            "eps_low=0.2, eps_high=0.2 with ratio sequence",
        ),
    ],
)  # fmt: skip
def test_an_algorithm_that_cannot_work_is_refused_with_the_reason(overrides, key, reason):
    with pytest.raises(BadInput) as error:
        check(None, *overrides)
    [line] = str(error.value).splitlines()
    assert key in line
    assert reason in line
    assert "Fix: " in line


def test_refusing_an_algorithm_imports_no_torch():
    code = (
        "import sys; from flows.cli import main\n"
        "code = main(['plan', 'algorithm=gspo', 'algorithm.surrogate.eps_low=0.2', 'artifacts=/tmp'])\n"
        "print(code, [m for m in ('torch', 'components.losses.policy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2 []", done.stderr
    assert "never clips. Fix: use eps_low 3e-4" in done.stderr


def test_a_module_is_cheap_only_if_everything_it_imports_is(monkeypatch):
    from flows.checks import _is_cheap_module

    assert _is_cheap_module("components.losses.compatibility")
    assert _is_cheap_module("components.types")
    assert not _is_cheap_module("components.losses.policy")
    assert not _is_cheap_module("components.losses.terms")  # torch under another name of ours
    assert not _is_cheap_module("numpy")
    assert not _is_cheap_module("components.nowhere")


def test_a_stage_check_may_look_at_the_inputs(tmp_path, monkeypatch):
    from flows.checks import component_problems

    monkeypatch.syspath_prepend(tmp_path)
    Path(tmp_path / "own_stage.py").write_text(
        "def go(inputs, out): ...\n"
        "def check(settings, inputs):\n"
        "    return [] if 'policy' in inputs else ['needs the input policy. Fix: add it.']\n"
    )
    assert component_problems("w", "", "own_stage.go", {}, {"policy": "x"}) == []
    assert str(component_problems("w", "", "own_stage.go", {}, {})[0]) == "w: needs the input policy. Fix: add it."


def test_a_model_path_without_a_model_is_found_before_anything_is_loaded(tmp_path):
    with pytest.raises(BadInput, match=r"stage base model\.path: model path \S+ does not exist .* Fix: "):
        check(None, "model=pretrained", f"model.source.path={tmp_path}/nowhere")
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(BadInput, match=r"only as weights\.bin, a pickle"):
        check(None, "model=pretrained", f"model.source.path={tmp_path}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(BadInput, match=r"model\.safetensors: is empty"):
        check(None, "model=pretrained", f"model.source.path={tmp_path}")
    assert check(None, "model=pretrained", "model.source.path=org/name")


def test_a_warning_is_told_once_and_stops_nothing():
    config = compose(["pipeline=r1_zero", "reward=agent", "reward.weights.completion=0.2"], None)
    told = []
    assert preflight(stage_specs(config), warn=told.append)
    [warning] = [str(problem) for problem in told]
    assert "reward.weights: completion weighs 29% of the reward, less than half" in warning
    assert warning.endswith("Fix: raise weights.completion to at least the sum of the others.")


def test_no_warning_hides_an_error():
    config = compose(["pipeline=r1_zero", "reward=agent", "reward.weights.completion=0.2", "rl.lr=-1"], None)
    told = []
    with pytest.raises(BadInput, match="lr: must be positive") as wrong:
        preflight(stage_specs(config), warn=told.append)
    assert len(wrong.value.problems) == 1
    assert told == []
