"""One random update, computed by one process or dealt out to several; a module of its own, to be spawned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hydra.utils import instantiate
from omegaconf import OmegaConf

from components.losses.aggregate import GlobalCounts
from components.losses.policy import Algorithm
from components.losses.stats import merge, summarise
from components.runtime import Peers

CONF = Path(__file__).parents[2] / "conf" / "algorithm"
PRESETS = sorted(path.stem for path in CONF.glob("*.yaml"))
SEEDS = range(6)
GROUPS, GROUP, WIDTH = 5, 4, 7


def load(name: str) -> Algorithm:
    return instantiate(OmegaConf.load(CONF / f"{name}.yaml"), _convert_="all")


def update(algorithm: Algorithm, seed: int, peers: Peers) -> dict[str, Any]:
    """Loss, gradient and figures of an update over all ranks, whose groups are dealt out at random.

    Some rollouts have no tokens, some failed, one group is constant, and one rank may hold far more tokens.
    """
    rng = torch.Generator().manual_seed(seed)
    rows = GROUPS * GROUP
    logp = -3 * torch.rand(rows, WIDTH, generator=rng, dtype=torch.float64)
    old, ref = (logp + 0.3 * torch.randn(logp.shape, generator=rng, dtype=torch.float64) for _ in range(2))
    mask = torch.arange(WIDTH) < torch.randint(0, WIDTH + 1, (rows, 1), generator=rng)
    reward = torch.randint(0, 3, (rows,), generator=rng).double()
    reward[:GROUP] = 1.0
    valid, correct = torch.rand(rows, generator=rng) < 0.9, reward > 1
    value = torch.rand(logp.shape, generator=rng, dtype=torch.float64)
    group = torch.arange(GROUPS).repeat_interleave(GROUP)
    owner = torch.randint(0, peers.world_size, (GROUPS,), generator=rng)
    owner[: peers.world_size] = torch.arange(peers.world_size)  # nobody goes without
    mine = (owner == peers.rank)[group]

    leaf = logp.clone().requires_grad_()
    advantage = algorithm.advantages(
        reward[mine],
        group[mine],
        valid[mine],
        mask=mask[mine],
        logp=old[mine],
        ref_logp=ref[mine],
        value=value[mine],
        turn_reward=value[mine, :2],
        beta=0.05,
        all_reduce=peers.all_reduce,
    )
    local = GlobalCounts.of(mask[mine], max_length=WIDTH, positive=correct[mine])
    loss, stats = algorithm.loss(
        leaf[mine],
        old[mine],
        advantage,
        mask[mine],
        counts=GlobalCounts.merge(peers.gather(local)),
        beta=0.05,
        ref_logp=ref[mine],
        positive=correct[mine],
    )
    loss.backward()
    total, gradient = loss.detach().clone(), leaf.grad
    peers.all_reduce(total)
    peers.all_reduce(gradient)
    return {"loss": total, "gradient": gradient, "figures": summarise(merge(peers.gather(stats)))}


def work(rank: int, world_size: int, folder: str) -> None:
    """All presets and seeds as one of ``world_size`` processes; the first writes what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    peers = Peers(rank, world_size)
    found = {(name, seed): update(load(name), seed, peers) for name in PRESETS for seed in SEEDS}
    if peers.is_main:
        torch.save(found, f"{folder}/found.pt")
    peers.barrier()
    dist.destroy_process_group()
