"""Every preset, loss and gradient, against a float64 reference written from its formula; and its invariants."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from components.losses.aggregate import GlobalCounts
from components.losses.policy import Algorithm
from components.losses.stats import merge

CONF = Path(__file__).parents[2] / "conf" / "algorithm"
PRESETS = sorted(path.stem for path in CONF.glob("*.yaml"))
TABLE = {
    *("grpo", "grpo_r1", "grpo_seed", "dr_grpo", "dapo", "gspo", "gspo_token", "rloo", "loop", "reinforce_pp"),
    *("reinforce_pp_baseline", "ppo", "vapo", "cispo", "sapo", "gmpo", "loop_turns"),
}
N, T, LIMIT, BETA = 8, 7, 11, 0.03
GROUP_IDS = np.array([0, 0, 0, 0, 5, 5, 5, 5])


@cache
def preset(name: str) -> Algorithm:
    return instantiate(OmegaConf.load(CONF / f"{name}.yaml"), _convert_="all")


@cache
def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    mask = np.arange(T)[None] < np.array([7, 5, 3, 1, 6, 4, 2, 7])[:, None]
    mask[0, 2:4] = mask[4, 1] = False  # tool output in the middle
    logp = -rng.random((N, T)) * 2
    return {
        "mask": mask,
        "logp": logp,
        # Log-ratios from hundredths (inside GSPO's band in the mean for some) to beyond every clip.
        "old": logp - rng.normal(size=(N, T)) * rng.choice([0.001, 0.1, 0.6], size=(N, T)),
        "ref": logp - 0.3 * rng.normal(size=(N, T)),
        "value": rng.random((N, T)),
        "reward": rng.choice([0.0, 0.2, 1.0, 1.3], size=N),
        "correct": rng.random(N) < 0.5,
        "turns": rng.normal(size=(N, 2)),
    }


def relu_clip(x, low, high):
    return min(max(x, low), high)


def advantages_of(name: str, b: dict[str, np.ndarray]) -> np.ndarray:
    """[N, T] advantages, written out."""
    reward, mask = b["reward"].copy(), b["mask"]
    k1 = np.where(mask, b["logp"] - b["ref"], 0.0)
    beta = {"rloo": 0.05, "reinforce_pp": 0.01, "ppo": 0.05}.get(name, 0.0)
    out = np.zeros((N, T))
    if name == "rloo":
        reward -= beta * k1.sum(1)
    if name in ("reinforce_pp", "reinforce_pp_baseline"):
        base = [reward[g == GROUP_IDS].mean() if name.endswith("baseline") else 0.0 for g in GROUP_IDS]
        to_go = [[reward[i] - base[i] - beta * k1[i, t:].sum() for t in range(T)] for i in range(N)]
        tokens = np.array(to_go)[mask]
        return np.where(mask, (to_go - tokens.mean()) / tokens.std(), 0.0)
    if name in ("ppo", "vapo"):
        for i in range(N):
            own = np.flatnonzero(mask[i])
            # lengths are under 20: VAPO's lambda is 0, so its advantage is the one-step error
            for k, t in enumerate(own):
                if name == "vapo":
                    following = b["value"][i, own[k + 1]] if k + 1 < len(own) else reward[i]
                    out[i, t] = following - b["value"][i, t]
                else:
                    out[i, t] = reward[i] - beta * k1[i, t:].sum() - b["value"][i, t]
        return out
    for i in range(N):
        others = reward[GROUP_IDS[i] == GROUP_IDS]
        a = reward[i] - others.mean()
        if name in ("rloo", "loop", "loop_turns"):
            a *= 4 / 3
        elif name != "dr_grpo":
            a /= others.std(ddof=1) + 1e-4
        out[i] = a
    if name == "loop_turns":  # rows 0 and 4 have a second turn, alone in their groups
        to_go = b["turns"][:, 0] + b["turns"][:, 1]
        mean = np.array([to_go[g == GROUP_IDS].mean() for g in GROUP_IDS])
        for i in range(N):
            first = 2 if i == 0 else 1 if i == 4 else T
            out[i, :first] += to_go[i] - mean[i]
    return out


def reference(name: str, lp: np.ndarray, b: dict[str, np.ndarray]) -> float:
    """The preset's loss as loops over rollouts and tokens. lp moves; b["logp"] is where stop-gradients are taken."""
    adv, mask, old, at = advantages_of(name, b), b["mask"], b["old"], b["logp"]
    low, high = {
        "dapo": (0.2, 0.28),
        "vapo": (0.2, 0.28),
        "gspo": (3e-4, 4e-4),
        "gspo_token": (3e-4, 4e-4),
        "grpo_r1": (10.0, 10.0),
    }.get(name, (0.2, 0.2))
    ppo = lambda r, a: max(-r * a, -relu_clip(r, 1 - low, 1 + high) * a)  # noqa: E731
    kl = {"grpo": ("k3", BETA), "grpo_r1": ("k3", 0.001), "grpo_seed": ("k3", 0.05)}.get(name)
    kl = ("k2", BETA) if name == "reinforce_pp_baseline" else kl
    per_rollout: list[list[float]] = []
    for i in range(N):
        own = np.flatnonzero(mask[i])
        d, d_at = lp[i, own] - old[i, own], at[i, own] - old[i, own]
        losses = []
        for k, t in enumerate(own):
            a = adv[i, t]
            if name == "gspo":
                x = ppo(np.exp(d.mean()), a)
            elif name == "gspo_token":
                x = ppo(np.exp(d_at.mean() + d[k] - d_at[k]), a)
            elif name == "rloo":
                x = -np.exp(d_at.sum()) * a * lp[i, t]
            elif name == "cispo":
                x = -min(np.exp(d_at[k]), 5.0) * a * lp[i, t]
            elif name == "sapo":
                tau = 1.0 if a > 0 else 1.05
                x = -a * 4 / tau / (1 + np.exp(-tau * (np.exp(d[k]) - 1)))
            elif name == "gmpo":
                x = -a * np.exp(np.clip(d, -0.4, 0.4).mean())
            else:
                x = ppo(np.exp(d[k]), a)
            if kl is not None:
                e = lp[i, t] - b["ref"][i, t]
                x += kl[1] * (np.exp(-e) - 1 + e if kl[0] == "k3" else e * e / 2)
            losses.append(x)
        per_rollout.append(losses)
    tokens = sum(len(x) for x in per_rollout)
    total = sum(sum(x) for x in per_rollout)
    if name == "dr_grpo":
        loss = total / (N * LIMIT)
    elif name == "rloo":
        loss = total / N
    elif name in ("dapo", "loop", "loop_turns", "reinforce_pp", "reinforce_pp_baseline", "ppo", "vapo", "cispo"):
        loss = total / tokens
    else:
        loss = sum(sum(x) / len(x) for x in per_rollout) / N
    if name == "vapo":
        correct = mask & b["correct"][:, None]
        loss += 0.1 * -lp[correct].sum() / correct.sum()
    return loss


def run(name: str, rows=slice(None), width: int = T, advantage: torch.Tensor | None = None, **changed):
    """(loss, gradient [rows, T], stats) of some rows of the batch, divided by the counts of all of it."""
    algorithm, b = preset(name), {k: torch.tensor(v) for k, v in batch().items()}
    counts = GlobalCounts.of(b["mask"], max_length=LIMIT, positive=b["correct"])
    if advantage is None:
        advantage = algorithm_advantages(name)
    pad = lambda x, value: torch.nn.functional.pad(x[rows], (0, width - T), value=value)  # noqa: E731
    logp = pad(b["logp"], float("nan")).requires_grad_()  # whatever padding holds
    loss, stats = algorithm.loss(
        logp,
        pad(b["old"], float("inf")),
        pad(advantage, 9.0) if advantage.ndim == 2 else advantage[rows],
        pad(b["mask"], False),
        counts=counts,
        beta=BETA,
        ref_logp=pad(b["ref"], float("nan")),
        positive=b["correct"][rows],
    )
    loss.backward()
    return float(loss.detach()), logp.grad[:, :T].numpy(), stats


@cache
def algorithm_advantages(name: str) -> torch.Tensor:
    b = {k: torch.tensor(v) for k, v in batch().items()}
    return preset(name).advantages(
        b["reward"],
        torch.tensor(GROUP_IDS),
        torch.ones(N, dtype=torch.bool),
        mask=b["mask"],
        logp=b["logp"],
        ref_logp=b["ref"],
        value=b["value"],
        turn_reward=b["turns"],
        beta=BETA,
    )


def test_every_preset_of_the_table_exists() -> None:
    assert set(PRESETS) == TABLE


@pytest.mark.parametrize("name", PRESETS)
def test_the_preset_is_one_that_its_own_check_accepts(name: str) -> None:
    assert preset(name).check(beta=BETA if preset(name).kl else 0.0, group_size=4) == []


@pytest.mark.parametrize("name", PRESETS)
def test_advantages_equal_the_reference(name: str) -> None:
    got = algorithm_advantages(name)
    got = got[:, None].expand(N, T) if got.ndim == 1 else got
    mask = batch()["mask"]
    np.testing.assert_allclose(got.numpy()[mask], advantages_of(name, batch())[mask], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_the_loss_equals_the_reference(name: str) -> None:
    # float64 throughout: a factor of 1 + 1e-9 anywhere fails.
    assert run(name)[0] == pytest.approx(reference(name, batch()["logp"], batch()), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_the_gradient_equals_central_differences_of_the_reference(name: str) -> None:
    b, gradient, step = batch(), run(name)[1], 1e-6
    for i, t in np.ndindex(N, T):
        if not b["mask"][i, t]:
            assert gradient[i, t] == 0
            continue
        up, down = b["logp"].copy(), b["logp"].copy()
        up[i, t] += step
        down[i, t] -= step
        slope = (reference(name, up, b) - reference(name, down, b)) / (2 * step)
        assert gradient[i, t] == pytest.approx(
            slope, rel=1e-5, abs=1e-8
        )  # error of the differences: step² + 1e-16/step


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("cuts", [[4], [1, 2, 3, 4, 5, 6, 7], [3, 5]])
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(name: str, cuts: list[int]) -> None:
    loss, gradient, stats = run(name)
    parts = [run(name, slice(a, z)) for a, z in zip([0, *cuts], [*cuts, N], strict=True)]
    assert sum(part[0] for part in parts) == pytest.approx(loss, rel=1e-12, abs=1e-14)
    np.testing.assert_allclose(np.concatenate([part[1] for part in parts]), gradient, rtol=1e-12, atol=1e-15)
    assert merge(part[2] for part in parts) == pytest.approx(stats, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_padding_does_not_matter(name: str) -> None:
    loss, gradient, stats = run(name)
    wide = run(name, width=T + 5)
    assert wide[0] == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(wide[1], gradient, rtol=1e-12, atol=1e-15)
    assert wide[2] == pytest.approx(stats, rel=1e-9)


@pytest.mark.parametrize("name", PRESETS)
def test_the_order_of_rollouts_does_not_matter(name: str) -> None:
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    loss, gradient, _ = run(name)
    mixed = run(name, order)
    assert mixed[0] == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(mixed[1], gradient[order], rtol=1e-12, atol=1e-15)


def test_rloo_has_the_gradient_of_the_whole_response_ratio() -> None:
    b, a = batch(), advantages_of("rloo", batch())[:, 0]
    logp = torch.tensor(b["logp"], requires_grad=True)
    difference = torch.where(torch.tensor(b["mask"]), logp - torch.tensor(b["old"]), 0.0).sum(1)
    (-torch.tensor(a) * difference.exp()).mean().backward()
    np.testing.assert_allclose(run("rloo")[1], logp.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_gspo_token_with_one_advantage_per_rollout_has_gspos_gradient() -> None:
    np.testing.assert_allclose(run("gspo_token")[1], run("gspo")[1], rtol=1e-10, atol=1e-12)


def test_on_the_sampling_policy_the_grpo_loss_is_zero_and_its_gradient_is_not() -> None:
    logp = torch.full((4, 3), -1.0, requires_grad=True)
    mask = torch.ones(4, 3, dtype=torch.bool)
    a = preset("grpo").advantages(torch.tensor([1.0, 0, 0, 1]), torch.zeros(4, dtype=torch.long), mask[:, 0])
    loss, _ = preset("grpo").loss(logp, logp.detach(), a, mask, counts=GlobalCounts.of(mask))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-7)
    assert logp.grad.abs().min() > 0.05
