"""The same tensors through TRL's own code and through ours: loss and gradient agree, whatever TRL implements.

Everything is float64, so that 1e-6 is far above rounding and far below any constant that could be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from components.losses import advantage, aggregate, mismatch, ratio, surrogate
from components.losses.aggregate import GlobalCounts
from components.losses.kl import Penalty
from components.losses.policy import Algorithm

pytest.importorskip("trl", reason="trl is a development dependency: pip install 'r1flow[dev]'")
from trl_oracle import Trl, toy_model

N, GROUP, T, LIMIT = 8, 4, 9, 13
clip = partial(surrogate.clip, eps_low=0.2, eps_high=0.28)
TAU = float(torch.tensor(1.05))  # TRL keeps it in float32
CLIPPED = {"epsilon": 0.2, "epsilon_high": 0.28}
AGGREGATES = {
    "grpo": aggregate.sequence_mean,
    "bnpo": aggregate.token_mean,
    "dr_grpo": aggregate.constant,
    "dapo": aggregate.token_mean,
    "luspo": aggregate.sequence_sum,
}


def algorithm(**pieces: Any) -> Algorithm:
    usual = {"advantage": advantage.group_norm, "ratio": ratio.token, "surrogate": clip}
    return Algorithm(**{**usual, "aggregate": aggregate.token_mean, **pieces})


# TRL's settings, and ours for the same loss
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    f"{name}-{level}": (
        {"loss_type": name, "importance_sampling_level": level, **CLIPPED},
        {"aggregate": AGGREGATES[name], "ratio": getattr(ratio, level)},
    )
    for name in AGGREGATES
    for level in ("token", "sequence")
}
CASES |= {
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        {
            "aggregate": aggregate.sequence_mean,
            "ratio": ratio.sequence,
            "surrogate": partial(surrogate.clip, eps_low=3e-4, eps_high=4e-4),
        },
    ),
    "two-sided clip": (
        {"loss_type": "dapo", "delta": 1.5, **CLIPPED},
        {"surrogate": partial(surrogate.clip, eps_low=0.2, eps_high=0.28, dual=1.5)},
    ),
    "two-sided clip, sequence": (
        {"loss_type": "grpo", "delta": 1.3, "importance_sampling_level": "sequence", **CLIPPED},
        {
            "surrogate": partial(surrogate.clip, eps_low=0.2, eps_high=0.28, dual=1.3),
            "ratio": ratio.sequence,
            "aggregate": aggregate.sequence_mean,
        },
    ),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.5},
        {"surrogate": partial(surrogate.cispo, cap=1.5)},
    ),
    "cispo, sequence": (
        {"loss_type": "cispo", "epsilon_high": 1.2, "importance_sampling_level": "sequence"},
        {"surrogate": partial(surrogate.cispo, cap=1.2), "ratio": ratio.sequence},
    ),
    "sapo": (
        {"loss_type": "sapo"},
        {"surrogate": partial(surrogate.sapo, tau_negative=TAU), "aggregate": aggregate.sequence_mean},
    ),
    "sapo, other temperatures": (
        {"loss_type": "sapo", "sapo_temperature_pos": 0.75, "sapo_temperature_neg": 3.0},
        {
            "surrogate": partial(surrogate.sapo, tau_positive=0.75, tau_negative=3.0),
            "aggregate": aggregate.sequence_mean,
        },
    ),
}
CASES |= {
    f"{name} with k3{', corrected' if corrected else ''}": (
        {**CASES[name][0], "beta": 0.07, "use_bias_correction_kl": corrected},
        {**CASES[name][1], "kl": Penalty(estimator="k3", beta=0.07, corrected=corrected)},
    )
    for name in ("grpo-token", "dr_grpo-token", "dapo-token", "gspo", "cispo", "sapo")
    for corrected in (False, True)
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_model(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    """Log-ratios from thousandths to beyond every clip, on both signs of advantage; one rollout holds tool output."""
    rng = torch.Generator().manual_seed(11)
    draw = partial(torch.randn, generator=rng, dtype=torch.float64)
    mask = torch.arange(T) < torch.tensor([9, 6, 3, 1, 8, 5, 2, 9])[:, None]
    mask[0, 3:5] = False
    logp = -2 * torch.rand(N, T, generator=rng, dtype=torch.float64) - 0.01
    scale = torch.tensor([3e-4, 0.1, 0.6, 1e-3, 0.05, 1.0, 0.3, 0.4], dtype=torch.float64)
    return {
        "logp": logp,
        "old": logp - draw(N, T) * scale[:, None],
        "ref": logp - 0.4 * draw(N, T),
        "advantage": torch.tensor([1.2, -0.7, 0.4, -1.1, -0.9, 0.8, 0.3, -0.2], dtype=torch.float64),
        "mask": mask,
    }


def gradient(loss: Callable[[torch.Tensor], torch.Tensor], logp: torch.Tensor) -> tuple[float, torch.Tensor]:
    leaf = logp.clone().requires_grad_()
    value = loss(leaf)
    return float(value.detach()), torch.autograd.grad(value, leaf)[0]


def same(ours: tuple[float, torch.Tensor], theirs: tuple[float, torch.Tensor]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert theirs[1].ne(0).any()
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_equal_trls(case: str, model: Path, batch: dict[str, torch.Tensor]) -> None:
    settings, pieces = CASES[case]
    trl = Trl(model, rollouts=N, group=GROUP, max_length=LIMIT, **settings)
    old, a, mask, ref = batch["old"], batch["advantage"], batch["mask"], batch["ref"]
    theirs = gradient(lambda x: trl.loss(x, old, a, mask, ref=ref), batch["logp"])
    counts = GlobalCounts.of(mask, max_length=LIMIT)
    ours = gradient(lambda x: algorithm(**pieces).loss(x, old, a, mask, counts=counts, ref_logp=ref)[0], batch["logp"])
    same(ours, theirs)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo"])
def test_two_accumulated_micro_batches_equal_trls(name: str, model: Path, batch: dict[str, torch.Tensor]) -> None:
    accumulate = {"gradient_accumulation_steps": 2, "loss_type": name, **CLIPPED}
    trl = Trl(model, rollouts=GROUP, group=GROUP, max_length=LIMIT, **accumulate)
    old, a, mask = batch["old"], batch["advantage"], batch["mask"]
    parts = [slice(0, GROUP), slice(GROUP, N)]
    tokens, counts = int(mask.sum()), GlobalCounts.of(mask, max_length=LIMIT)
    ours = algorithm(aggregate=AGGREGATES[name])
    same(
        gradient(lambda x: sum(ours.loss(x[p], old[p], a[p], mask[p], counts=counts)[0] for p in parts), batch["logp"]),
        gradient(
            lambda x: sum(trl.loss(x[p], old[p], a[p], mask[p], total_tokens=tokens) for p in parts), batch["logp"]
        ),
    )


@pytest.mark.parametrize(
    ("mode", "bounds", "correction"),
    [
        ("token_truncate", {"clip_max": 2.0}, partial(mismatch.tis, cap=2.0)),
        ("token_mask", {"clip_max": 1.5, "clip_min": 1 / 1.5}, partial(mismatch.mis, bound=1.5)),
    ],
)
def test_engine_corrections_equal_trls(
    mode: str, bounds: dict[str, float], correction: Any, model: Path, batch: dict[str, torch.Tensor]
) -> None:
    limits = {f"vllm_importance_sampling_{name}": value for name, value in bounds.items()}
    settings = {"loss_type": "dapo", "vllm_importance_sampling_mode": mode, **CLIPPED, **limits}
    trl = Trl(model, rollouts=N, group=GROUP, max_length=LIMIT, **settings)
    rng = torch.Generator().manual_seed(3)
    mask = torch.arange(T) < torch.tensor([9, 6, 3, 1, 8, 5, 2, 9])[:, None]
    old = batch["old"].float()
    engine = torch.where(mask, old - 0.6 * torch.randn(N, T, generator=rng), 0.0)
    found = trl.score([1.0, 0, 0, 0, 1, 1, 0.5, 0], old, engine, mask)["importance_sampling_ratio"]
    weight = correction(old, engine, mask)
    torch.testing.assert_close(weight[mask], found[mask], rtol=1e-6, atol=0)
    assert len(weight[mask].unique()) > 3  # some inside the bounds
    assert bool(((weight == 0) | (weight == 2.0))[mask].any())  # some beyond
    a, counts = batch["advantage"], GlobalCounts.of(mask)
    old, engine = old.double(), engine.double()
    ours = algorithm(mismatch=correction)
    same(
        gradient(lambda x: ours.loss(x, old, a, mask, counts=counts, logp_engine=engine)[0], batch["logp"]),
        gradient(
            lambda x: trl.loss(x, old, a, mask, engine_ratio=found.double()),
            batch["logp"],
        ),
    )


@pytest.mark.parametrize(("scale", "function"), [("group", advantage.group_norm), ("none", advantage.group_center)])
def test_advantages_equal_trls(scale: str, function: Any, model: Path) -> None:
    trl = Trl(model, rollouts=N, group=GROUP, max_length=LIMIT, scale_rewards=scale)
    reward = [1.0, 0, 0, 0.25, 1.5, 1, 0.5, 0]
    logp, mask = torch.zeros(N, T), torch.ones(N, T, dtype=torch.bool)
    theirs = trl.score(reward, logp, logp, mask)["advantages"]
    ours = function(torch.tensor(reward), torch.arange(N) // GROUP, mask[:, 0])
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
