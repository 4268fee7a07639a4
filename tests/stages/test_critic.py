"""The critic beside a policy: what it is given, learns and is made of; and that it can be cut and shared."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from critic_cases import REWARDS, make_groups, make_trainer, make_updater, simple, step_of
from torch import Tensor

from components.losses import aggregate, ratio, surrogate
from components.losses.policy import Algorithm
from components.models.load import Pretrained, load_model
from components.models.lora import Lora
from components.models.optim import AdamW
from components.models.tiny import Tiny
from components.models.value_head import ValueModel
from components.rollout.batch import make_batch
from components.runtime import Inputs, Peers
from components.stages.rl_critic import CriticSetup, CriticTrainer
from components.stages.shared import Policy
from components.types import Group, Rollout

# -- what the critic sees ----------------------------------------------------------------------------------------------


def test_a_value_is_read_off_the_state_before_its_token(inputs: Inputs) -> None:
    groups = make_groups(REWARDS)
    trainer = make_trainer(inputs["model"].path)
    values = trainer.values(make_batch(groups, 0))
    head, row = trainer.model.head, 0
    with torch.no_grad():
        for group in groups:
            for rollout in group.rollouts:
                ids = torch.tensor([[*rollout.prompt_tokens, *rollout.tokens]])
                states = trainer.model.model.model(ids).last_hidden_state[0]
                before = states[len(rollout.prompt_tokens) - 1 : -1]
                expected = torch.where(torch.tensor(rollout.action_mask), head(before)[:, 0], 0.0)
                torch.testing.assert_close(values[row, : len(rollout.tokens)], expected, rtol=0, atol=1e-5)
                row += 1
    assert values.unique().numel() > 50


def test_values_pass_over_tokens_that_are_not_the_policys(inputs: Inputs) -> None:
    groups, trainer = make_groups(REWARDS), make_trainer(inputs["model"].path)
    step = step_of(inputs["model"].path, simple(lam=0.0), trainer, groups)
    values = trainer.values(step.batch)
    assert step.lesson is not None
    scores = [score.total for group in groups for score in group.scores]
    for row, reward in enumerate(scores):
        own = step.batch.mask[row].nonzero()[:, 0].tolist()
        following = [*values[row, own[1:]].tolist(), reward]
        expected = [after - float(values[row, t]) for t, after in zip(own, following, strict=True)]
        assert step.advantage[row, own].tolist() == pytest.approx(expected, abs=1e-6)
        assert step.lesson.target[row, own].tolist() == pytest.approx([reward] * len(own), abs=1e-6)
    outside = ~step.batch.mask
    assert step.advantage[outside].eq(0).all()
    assert step.lesson.target[outside].eq(0).all()
    assert bool((step.batch.mask.cumsum(-1).bool() & outside).any())  # there was something to pass over


def test_ppo_at_lambda_1_is_reinforce_with_the_critic_as_baseline(inputs: Inputs) -> None:
    folder, groups = inputs["model"].path, make_groups(REWARDS)
    reward = torch.tensor([score.total for group in groups for score in group.scores])
    zero = step_of(folder, simple(), make_trainer(folder, random_head=False), groups)
    expected = torch.where(zero.batch.mask, reward[:, None], 0.0)
    torch.testing.assert_close(zero.advantage, expected, rtol=0, atol=1e-6)
    trainer = make_trainer(folder)
    some = step_of(folder, simple(), trainer, groups)
    expected = torch.where(some.batch.mask, reward[:, None] - trainer.values(some.batch), 0.0)
    torch.testing.assert_close(some.advantage, expected, rtol=0, atol=1e-6)


def test_a_perfect_critic_leaves_nothing_to_learn(inputs: Inputs) -> None:
    folder, groups = inputs["model"].path, make_groups([[0.1] * 3] * 4)
    trainer = make_trainer(folder, random_head=False)
    with torch.no_grad():
        trainer.model.head.bias.fill_(0.1)
    for settings in ({"lam": 1.0}, {"lam": 0.5}, {"alpha": 0.5}):
        assert step_of(folder, simple(**settings), trainer, groups).advantage.abs().max() < 1e-6


def test_the_update_of_the_policy_is_that_of_reinforce_with_a_baseline(inputs: Inputs) -> None:
    folder, groups = inputs["model"].path, make_groups(REWARDS)
    trainer = make_trainer(folder, random_head=False)
    with torch.no_grad():
        trainer.model.head.bias.fill_(0.4)

    def less_04(reward: Tensor) -> Tensor:
        return reward - 0.4

    plain = Algorithm(
        advantage=less_04, ratio=ratio.token, surrogate=surrogate.reinforce, aggregate=aggregate.token_mean
    )
    updaters = make_updater(folder, simple(), trainer), make_updater(folder, plain, None)
    for updater in updaters:  # sampled by the policy itself, so that the ratio is 1
        batch = make_batch(groups, 0)
        logp = updater.logp(updater.decoder, batch)[0].detach()
        own = [
            replace(group, rollouts=tuple(_with_logp(r, logp[3 * i + k]) for k, r in enumerate(group.rollouts)))
            for i, group in enumerate(groups)
        ]
        updater(own, len(own))
    states = [updater.decoder.model.state_dict() for updater in updaters]
    before = load_model(folder / "model")[0].state_dict()
    for name, weight in states[0].items():
        torch.testing.assert_close(weight, states[1][name], rtol=0, atol=1e-6)
    assert max(float((states[0][name] - before[name]).abs().max()) for name in before) > 1e-3


def _with_logp(rollout: Rollout, logp: Tensor) -> Rollout:
    return replace(rollout, logp_behavior=tuple(logp[: len(rollout.tokens)].tolist()))


# -- what it learns ----------------------------------------------------------------------------------------------------


def lessons(folder: Path, groups: list[Group], updates: int, **settings: Any) -> tuple[CriticTrainer, dict[str, float]]:
    trainer = make_trainer(folder, optimizer=AdamW, random_head=False, **settings)
    updater = make_updater(folder, simple(), trainer)
    figures = {}
    for _ in range(updates):
        figures = updater(groups, len(groups), policy=False)
    return trainer, figures


def test_the_critic_learns_a_constant_reward(inputs: Inputs) -> None:
    groups = make_groups([[0.7] * 3] * 4)
    trainer, figures = lessons(inputs["model"].path, groups, 40)
    batch = make_batch(groups, 0)
    assert (trainer.values(batch)[batch.mask] - 0.7).abs().max() < 0.05
    assert figures["value_loss"] < 1e-3
    assert figures["return_mean"] == pytest.approx(0.7)


def test_the_critic_tells_prompts_apart(inputs: Inputs) -> None:
    groups = make_groups([[0.0] * 3, [1.0] * 3, [0.2] * 3, [0.8] * 3])
    figures = lessons(inputs["model"].path, groups, 40)[1]
    assert figures["explained_variance"] > 0.9


def test_the_clip_is_around_the_values_at_sampling_time(inputs: Inputs) -> None:
    folder, group = inputs["model"].path, make_groups([[1.0] * 3])[0]
    weights = []
    for minibatches in (1, 4):
        trainer = make_trainer(folder, random_head=False, clip=1e-4)
        figures = make_updater(folder, simple(), trainer, minibatches)([group] * minibatches, minibatches, policy=False)
        # The first minibatch moves every value of the group further than the clip; the others find it there.
        assert figures["value_clip_fraction"] == (minibatches - 1) / minibatches
        weights.append(trainer.model.trained_state())
    assert weights[0]["head.bias"] > 1e-3
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_minibatch_is_an_update_from_its_own_groups(inputs: Inputs) -> None:
    folder, groups = inputs["model"].path, make_groups(REWARDS)
    both, halves = (make_trainer(folder, clip=None) for _ in range(2))
    make_updater(folder, simple(), both, minibatches=2)(groups, 4, policy=False)
    for half in (groups[:2], groups[2:]):
        make_updater(folder, simple(), halves)(half, 2, policy=False)
    assert_alike(both.model.trained_state(), halves.model.trained_state())


def test_a_critic_alone_leaves_the_policy_and_its_optimiser_alone(inputs: Inputs) -> None:
    folder = inputs["model"].path
    updater = make_updater(folder, simple(), make_trainer(folder))
    updater(make_groups(REWARDS), 4, policy=False)
    for name, weight in load_model(folder / "model")[0].state_dict().items():
        assert torch.equal(weight, updater.decoder.model.state_dict()[name])
    assert updater.learner.steps == 0


# -- exact, however it is cut ------------------------------------------------------------------------------------------


def trained(folder: Path, groups: list[Group], micro: int, peers: Peers | None = None) -> dict[str, Tensor]:
    """Weights of critic and policy after two updates of two minibatches."""
    trainer = make_trainer(folder, micro=micro)
    updater = make_updater(folder, simple(lam=0.9), trainer, minibatches=2)
    updater.micro_batch_tokens = micro
    if peers is not None:
        updater.peers = updater.learner.peers = trainer.learner.peers = peers
    for _ in range(2):
        updater(updater.peers.shard(groups), len(groups))
    policy = {f"policy.{name}": w for name, w in updater.decoder.model.state_dict().items()}
    return {name: w.detach().clone() for name, w in {**trainer.model.trained_state(), **policy}.items()}


def assert_alike(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, weight in expected.items():
        # One token more or less in a count moves a weight by 1e-3.
        torch.testing.assert_close(got[name], weight, rtol=0, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_micro_batches_padding_and_order_change_rounding_only(inputs: Inputs) -> None:
    folder, groups = inputs["model"].path, make_groups(REWARDS)
    expected = trained(folder, groups, 10_000)
    assert_alike(trained(folder, groups, 1), expected)  # every group alone, so without padding of the others
    within = [groups[1], groups[0], groups[3], groups[2]]  # each minibatch keeps its groups
    shuffled = [
        replace(group, rollouts=tuple(reversed(group.rollouts)), scores=tuple(reversed(group.scores)))
        for group in within
    ]
    assert_alike(trained(folder, shuffled, 60), expected)
    other = trained(folder, [groups[0], groups[2], groups[1], groups[3]], 10_000)
    assert max(float((other[name] - expected[name]).abs().max()) for name in expected) > 1e-5  # the tolerance bites


def _rank(rank: int, port: int, folder: Path, results: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.save(trained(folder, make_groups(REWARDS), 60, Peers(rank, 2)), results / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_ranks_equal_one_to_rounding(inputs: Inputs, tmp_path: Path) -> None:
    folder = inputs["model"].path
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.spawn(_rank, (port, folder, tmp_path), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])
    assert_alike(ranks[0], trained(folder, make_groups(REWARDS), 10_000))


# -- what it is made of ------------------------------------------------------------------------------------------------


def policy_of(inputs: Inputs) -> Policy:
    model, tokenizer = load_model(inputs["model"].path / "model")
    return Policy(model, tokenizer, None, None)


def test_the_critic_shares_no_weights_with_the_policy(inputs: Inputs) -> None:
    policy = policy_of(inputs)
    critic = ValueModel(CriticSetup().network(policy, 0))
    assert not {p.data_ptr() for p in policy.model.parameters()} & {p.data_ptr() for p in critic.parameters()}
    trained = critic.trained_state()
    assert {"head.weight", "head.bias"} < trained.keys()
    assert len(trained) > 5


def test_a_lora_critic_trains_and_keeps_its_adapters_and_head_alone(inputs: Inputs) -> None:
    critic = ValueModel(CriticSetup(lora=Lora(r=2, alpha=4)).network(policy_of(inputs), 0))
    state = critic.trained_state()
    assert all(".lora_" in name or name.startswith("head.") for name in state)
    assert any(".lora_" in name for name in state)
    with pytest.raises(ValueError, match="only on one side"):
        critic.load_trained_state({"head.weight": state["head.weight"]})


def test_a_smaller_critic_comes_from_a_directory_and_reads_the_same_tokens(inputs: Inputs, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    policy = policy_of(inputs)
    config = LlamaConfig(
        vocab_size=len(policy.tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "small")
    policy.tokenizer.save_pretrained(tmp_path / "small")
    critic = ValueModel(CriticSetup(source=Pretrained(path=str(tmp_path / "small"))).network(policy, 0))
    assert critic.head.weight.shape == (1, 16)
    assert not critic.model.lm_head.weight.requires_grad  # it takes no part
    foreign, tokenizer = Tiny(hidden_size=16, layers=1, heads=2, kv_heads=1, mlp=16).build(["a b c d"] * 30, 0)
    foreign.save_pretrained(tmp_path / "foreign")
    tokenizer.save_pretrained(tmp_path / "foreign")
    with pytest.raises(ValueError, match=r"critic\.source: its tokenizer .* is not the policy's"):
        CriticSetup(source=Pretrained(path=str(tmp_path / "foreign"))).network(policy, 0)
