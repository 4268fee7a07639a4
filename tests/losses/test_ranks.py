"""However an update is dealt out over ranks, its loss, gradient and figures are the same."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp

from components.runtime import Peers
from tests.losses.ranks import PRESETS, SEEDS, load, update, work


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, args=(2, str(folder)), nprocs=2)
    return torch.load(folder / "found.pt", weights_only=True)


@pytest.mark.parametrize("name", PRESETS)
def test_two_ranks_give_the_loss_and_gradient_of_one(shared: dict, name: str) -> None:
    for seed in SEEDS:
        alone, both = update(load(name), seed, Peers()), shared[name, seed]
        assert both["loss"] == pytest.approx(float(alone["loss"]), rel=1e-12, abs=1e-14)
        # A rank's own counts in place of the update's would be wrong by some 10 %.
        torch.testing.assert_close(both["gradient"], alone["gradient"], rtol=1e-11, atol=1e-15)
        assert both["figures"] == pytest.approx(alone["figures"], rel=1e-9, abs=1e-12)
        assert alone["gradient"].abs().max() > 1e-3
