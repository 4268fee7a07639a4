"""Every finding on real RL stages of a real tiny policy: none on a healthy one, each when its cause is built in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_cases import answers, even, teach, train

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.read import StageFiles, examine_stage
from components.losses import surrogate
from components.losses.policy import Algorithm
from components.models.learner import TrainingDiverged
from components.rewards.format import think_then_answer
from components.rng import derive
from components.rollout.torch_engine import TorchEngine
from components.runtime import Inputs, StageArtifact

Settings = Callable[..., dict[str, Any]]
R1 = {"accuracy": even, "format": think_then_answer}
WEIGHTS = {"accuracy": 1.0, "format": 0.1}


@pytest.fixture(scope="module")
def taught(data: StageArtifact, base: StageArtifact, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return {"data": data, "model": teach(data, base, tmp_path_factory.mktemp("taught"))}


def only(findings: list[Finding], name: str) -> Finding:
    """The finding of this name; fails if there are others."""
    assert [finding.name for finding in findings] == [name], [finding.line() for finding in findings]
    return findings[0]


def coin(task: Any, rollout: Any) -> float:
    """Right or wrong by chance, whatever the policy does."""
    return float(derive(task.id, *(logp.hex() for logp in rollout.logp_behavior)) % 2)


def thought(task: Any, rollout: Any) -> float:
    return rollout.response.count("first") / 5


@pytest.mark.parametrize("seed", [3, 4])
def test_a_healthy_stage_has_no_findings(taught: Inputs, tmp_path: Path, rl_settings: Settings, seed: int) -> None:
    assert train(taught, tmp_path, rl_settings, R1, WEIGHTS, seed=seed) == []


def test_a_cheap_term_that_saturates_is_no_finding(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    """One answer instead of two is learned within a few steps; accuracy has nothing to learn."""

    def once(task: Any, rollout: Any) -> float:
        return float(len(answers(rollout)) == 1)

    found = train(taught, tmp_path, rl_settings, {"accuracy": coin, "once": once}, {"accuracy": 1.0, "once": 0.3})
    assert found == []


def test_rewards_that_are_all_zero_are_named(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    terms = {"accuracy": lambda task, rollout: 0.0}
    finding = only(train(taught, tmp_path, rl_settings, terms, {"accuracy": 1.0}, steps=6), "zero_reward")
    assert finding.severity == "error" and finding.step == 5
    assert "every reward of the last 5 steps was 0; 100% of the responses had an answer" in finding.evidence
    assert finding.samples[0].response.startswith("<think>") and "verifier" in finding.remedy


def test_nothing_solved_is_named_though_other_terms_pay(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    terms = {"accuracy": lambda task, rollout: 0.0, "thought": thought}
    found = train(taught, tmp_path, rl_settings, terms, {"accuracy": 1.0, "thought": 0.1}, steps=6)
    finding = only(found, "zero_reward")
    assert finding.severity == "warning" and "all groups are unsolved" in finding.evidence


@pytest.mark.parametrize(
    ("terms", "cause"),
    [
        ({"accuracy": lambda task, rollout: 1.0}, "all groups are solved"),
        ({"constant": lambda task, rollout: 0.4}, "the reward is constant within every group"),
    ],
)
def test_groups_without_signal_are_named_with_the_cause(
    taught: Inputs, tmp_path: Path, rl_settings: Settings, terms: dict[str, Any], cause: str
) -> None:
    found = train(taught, tmp_path, rl_settings, terms, dict.fromkeys(terms, 1.0), steps=6)
    finding = only(found, "no_gradient")
    assert finding.step == 5 and finding.evidence.startswith(cause) and finding.figures["signal"] == 0


def test_truncation_is_named_before_the_zeros_that_it_makes(
    taught: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    found = train(taught, tmp_path, rl_settings, R1, WEIGHTS, steps=6, max_new_tokens=3)
    cut = next(finding for finding in found if finding.name == "truncation")
    assert cut.severity == "error" and cut.step == 5 and "cut off at 3 tokens" in cut.evidence
    assert "max_new_tokens (now 3)" in cut.remedy
    assert {finding.name for finding in found} == {"truncation", "zero_reward"}


def test_a_format_check_that_never_sees_the_prefill_is_named(
    taught: Inputs, tmp_path: Path, rl_settings: Settings
) -> None:
    """The template writes <think>; an engine of which only the completion is kept loses it."""

    def swallowed(task: Any, rollout: Any) -> float:
        return think_then_answer(task, replace(rollout, response=rollout.response.removeprefix("<think>")))

    terms = {"accuracy": even, "format": swallowed}
    finding = only(train(taught, tmp_path, rl_settings, terms, WEIGHTS, steps=6), "template")
    assert finding.severity == "error" and "100% of the responses have an answer" in finding.evidence
    assert "term format was 0 on all" in finding.evidence and finding.samples


class Warm(TorchEngine):
    """Says of the tokens that it samples at temperature 1 what they would have had at temperature 2."""

    def generate(self, prompts: Any, sampling: Any, environment: Any = None) -> Any:
        drawn = super().generate(prompts, sampling, environment)
        return [[replace(one, logp=tuple(logp / 2 for logp in one.logp)) for one in group] for group in drawn]


def test_log_probabilities_that_differ_are_named(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    found = train(taught, tmp_path, rl_settings, R1, WEIGHTS, steps=6, engine=Warm)
    finding = next(finding for finding in found if finding.name == "logprob_mismatch")
    assert finding.figures["gap"] > 0.05 and "algorithm.mismatch" in finding.remedy


def test_a_policy_that_runs_away_is_named(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    found = train(taught, tmp_path, rl_settings, R1, WEIGHTS, steps=8, lr=0.3)
    assert found[0].name == "kl_blow_up" and found[0].severity == "error" and found[0].step == 5
    assert found[0].figures["now"] > 1 and "rl.lr" in found[0].remedy


def test_slow_rewards_are_named(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    class Slow:
        def batch(self, pairs: Any) -> list[float]:
            time.sleep(0.6)
            return [even(task, rollout) for task, rollout in pairs]

    finding = only(
        train(taught, tmp_path, rl_settings, {"accuracy": Slow()}, {"accuracy": 1.0}, steps=5), "slow_rewards"
    )
    assert finding.figures["reward_s"] == pytest.approx(0.6, abs=0.2)


def test_a_reward_that_rises_alone_is_named(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    """Longer thoughts pay and right answers do not depend on them."""

    def words(task: Any, rollout: Any) -> float:
        return rollout.response.count("first") / 4

    found = train(
        *(taught, tmp_path, rl_settings, {"accuracy": coin, "words": words}, {"accuracy": 0.2, "words": 1.0}),
        **{"lr": 1e-3, "steps": 60, "max_new_tokens": 100},
    )
    assert {"reward_without_accuracy", "length_pays"} <= {finding.name for finding in found}


def test_a_term_that_gains_at_accuracys_cost_is_named(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    def odd(task: Any, rollout: Any) -> float:
        return float(bool(answers(rollout)) and answers(rollout)[-1] in tuple("13579"))

    found = train(taught, tmp_path, rl_settings, {"accuracy": even, "odd": odd}, {"accuracy": 1.0, "odd": 2.0})
    assert "term_at_accuracys_cost" in {finding.name for finding in found}


def test_a_policy_that_stops_exploring_is_named(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    """One response is paid for whatever the task, until no other is sampled."""

    def same(task: Any, rollout: Any) -> float:
        return (answers(rollout)[:1] == ["7"]) + (len(answers(rollout)) == 1) + (rollout.response.count("first") == 1)

    terms, weights = {"accuracy": coin, "same": same}, {"accuracy": 0.05, "same": 1.0}
    found = train(taught, tmp_path, rl_settings, terms, weights, steps=60)
    assert "entropy_collapse" in {finding.name for finding in found}


class Sick:
    """The clipped surrogate, not a number at the calls named."""

    def __init__(self, at: Callable[[int], bool]) -> None:
        self.at, self.calls = at, 0

    def __call__(self, log_ratio: Any, advantage: Any) -> Any:
        self.calls += 1
        loss = surrogate.clip(log_ratio, advantage, eps_low=0.2, eps_high=0.2)
        return loss * float("nan") if self.at(self.calls) else loss


def test_updates_that_were_skipped_are_named(
    taught: Inputs, tmp_path: Path, rl_settings: Settings, grpo: Algorithm
) -> None:
    algorithm = replace(grpo, surrogate=Sick(lambda call: call == 3))
    finding = only(train(taught, tmp_path, rl_settings, R1, WEIGHTS, steps=6, algorithm=algorithm), "bad_updates")
    assert finding.severity == "warning" and "1 updates of the last" in finding.evidence


def test_a_stage_that_diverged_is_named_from_its_failure(
    taught: Inputs, tmp_path: Path, rl_settings: Settings, grpo: Algorithm
) -> None:
    algorithm = replace(grpo, surrogate=Sick(lambda call: True))
    with pytest.raises(TrainingDiverged) as failed:
        train(taught, tmp_path, rl_settings, R1, WEIGHTS, algorithm=algorithm)
    files = StageFiles("rl", tmp_path, failure=f"{type(failed.value).__name__}: {failed.value}")
    finding = only(examine_stage(files)[1], "bad_updates")
    assert finding.severity == "error" and "the stage stopped" in finding.evidence


def test_answer_stuffing_is_named(taught: Inputs, tmp_path: Path, rl_settings: Settings) -> None:
    def lenient(task: Any, rollout: Any) -> float:
        """Accepts a right answer among several."""
        return float("4" in answers(rollout) or "6" in answers(rollout))

    found = train(taught, tmp_path, rl_settings, {"accuracy": lenient}, {"accuracy": 1.0}, lr=1e-3)
    assert "answer_stuffing" in {finding.name for finding in found}
