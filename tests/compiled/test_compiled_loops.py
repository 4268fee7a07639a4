import math
import sys

import numpy as np
import pytest
import torch

import components.compiled as compiled
from components.compiled import OFF, cache_folder, kernels
from components.rollout.sampling import Sampling, choose, draw, mix, uniforms


@pytest.fixture
def loops():
    pytest.importorskip("numba")
    return kernels()


@pytest.mark.parametrize("size", [7, 24, 96])
def test_rows_are_scaled_to_a_mean_square_of_one(loops, size):
    x = torch.randn(5, size, generator=torch.Generator().manual_seed(0))
    y = torch.empty_like(x)
    loops.normalise(x.numpy(), y.numpy(), np.float32(1e-5))
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (size,), None, 1e-5), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", [3, 24, 100])
def test_the_activation_is_silu_of_one_half_times_the_other(loops, size):
    x = 30 * torch.randn(4, 2 * size, generator=torch.Generator().manual_seed(1))
    x[0, 0], x[1, size - 1] = -200.0, 200.0
    y = torch.empty(4, size)
    loops.gated(x.numpy(), y.numpy())
    gate, up = x.double().chunk(2, -1)
    torch.testing.assert_close(y.double(), torch.nn.functional.silu(gate) * up, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("size", [5, 33, 515, 4096])
def test_tokens_and_their_log_probabilities_are_those_of_the_plain_way(loops, size, temperature):
    logits = 3 * torch.randn(500, size, generator=torch.Generator().manual_seed(size))
    key, position = mix(torch.arange(500)), torch.arange(500) % 7
    sampling = Sampling(8, temperature=temperature)
    token, logp = draw(logits.clone(), key, position, sampling)
    plain, plain_logp = choose(logits.clone(), uniforms(key, position), sampling)
    same = token == plain
    # Sums in another order move a boundary by 1e-6 or so: of 500 tokens none or one lies there.
    assert same.sum() >= 498
    torch.testing.assert_close(logp[same], plain_logp[same], atol=1e-5, rtol=0)


def test_tokens_drawn_follow_the_softmax(loops):
    logits, draws = 1.5 * torch.randn(50, generator=torch.Generator().manual_seed(2)), 100_000
    token, _ = draw(
        logits.repeat(draws, 1), mix(torch.arange(draws)), torch.zeros(draws, dtype=torch.long), Sampling(1)
    )
    mean = draws * logits.double().softmax(-1)
    common = mean > 5
    counts = torch.bincount(token, minlength=50).double()
    chi_square = ((counts - mean) ** 2 / mean)[common].sum().item()
    degrees = int(common.sum()) - 1
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("size", [5, 33, 515])
def test_tokens_without_probability_are_never_drawn(loops, size):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5000, size, generator=generator)
    possible = torch.rand(5000, size, generator=generator) < 0.1
    possible[:, 0] |= ~possible.any(-1)
    logits[~possible] = float("-inf")
    token, logp = draw(logits.clone(), mix(torch.arange(5000)), torch.zeros(5000, dtype=torch.long), Sampling(1))
    assert possible.gather(1, token[:, None]).all()
    assert logp.isfinite().all()


def test_a_greedy_tie_goes_to_the_first_token(loops):
    logits = torch.zeros(8, 40)
    logits[:, [11, 30]] = 2.0
    token, _ = draw(logits, torch.zeros(8, dtype=torch.long), torch.zeros(8, dtype=torch.long), Sampling(1, 0.0))
    assert token.tolist() == [11] * 8


@pytest.fixture
def _forgets():
    kernels.cache_clear()
    yield
    kernels.cache_clear()


@pytest.mark.usefixtures("_forgets")
def test_without_numba_one_line_says_so(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert kernels() is None
    assert kernels() is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "without compiled loops" in caplog.text


@pytest.mark.usefixtures("_forgets")
def test_an_environment_variable_turns_them_off(monkeypatch):
    monkeypatch.setenv(OFF, "1")
    assert kernels() is None


def test_compiled_code_is_kept_in_the_users_cache_or_else_in_a_temporary_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().is_relative_to(tmp_path / "r1flow")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(compiled.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    assert cache_folder() == tmp_path / "r1flow-kernels-"
