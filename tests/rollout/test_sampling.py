import math

import pytest
import torch

from components.rollout.sampling import Sampling, choose, mix, truncate, uniforms


def splitmix64(seed, count):
    """The published generator on Python integers."""
    full, state, out = (1 << 64) - 1, seed, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & full
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & full
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & full
        out.append(z ^ (z >> 31))
    return out


def test_mix_is_the_finaliser_of_splitmix64():
    golden = 0x9E3779B97F4A7C15
    states = [(k * golden + 1234567) & ((1 << 64) - 1) for k in range(1, 6)]
    signed = torch.tensor([s - (1 << 64) if s >> 63 else s for s in states])
    assert [v % (1 << 64) for v in mix(signed).tolist()] == splitmix64(1234567, 5)
    assert splitmix64(1234567, 1) == [6457827717110365317]  # the reference implementation's first output


def test_uniforms_are_uniform_and_never_zero_or_one():
    keys = mix(torch.arange(200))
    values = torch.stack([uniforms(keys, torch.full((200,), t)) for t in range(500)])
    assert values.min() > 0
    assert values.max() < 1
    counts = torch.histc(values, bins=50, min=0, max=1)
    chi_square = ((counts - 2000) ** 2 / 2000).sum().item()
    assert chi_square < 49 + 4 * math.sqrt(2 * 49)
    centred = values - 0.5  # neither neighbours in position nor neighbours in seed correlate
    for a, b in ((centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1])):
        assert abs((a * b).mean().item() * 12) < 4 / math.sqrt(a.numel())


@pytest.mark.parametrize("size", [7, 32, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_tokens_follow_the_softmax(size, temperature):
    logits = 1.5 * torch.randn(size, generator=torch.Generator().manual_seed(size))
    draws = 100_000
    token, logp = choose(
        logits.repeat(draws, 1),
        uniforms(mix(torch.arange(draws)), torch.zeros(draws, dtype=torch.long)),
        Sampling(1, temperature=temperature),
    )
    expected = (logits / temperature).log_softmax(-1)
    torch.testing.assert_close(logp, expected[token], atol=1e-5, rtol=0)
    counts = torch.bincount(token, minlength=size).double()
    mean = draws * expected.double().exp()
    common = mean > 5
    chi_square = ((counts - mean) ** 2 / mean)[common].sum().item()
    degrees = int(common.sum()) - 1
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("size", [5, 33, 515])
@pytest.mark.parametrize("u", [2.0**-24, 0.5, 1 - 2.0**-24])
def test_tokens_without_probability_are_never_chosen(size, u):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, size, generator=generator)
    possible = torch.rand(2000, size, generator=generator) < 0.3
    possible[:, 0] |= ~possible.any(-1)
    logits[~possible] = float("-inf")
    token, logp = choose(logits, torch.full((2000,), u), Sampling(1))
    assert possible.gather(1, token[:, None]).all()
    assert logp.isfinite().all()


def test_a_row_is_chosen_alike_whatever_the_rows_beside_it():
    logits = torch.randn(300, 515, generator=torch.Generator().manual_seed(1))
    u = uniforms(mix(torch.arange(300)), torch.zeros(300, dtype=torch.long))
    token, logp = choose(logits.clone(), u, Sampling(1))
    for rows in (slice(0, 8), slice(17, 42)):
        alone = choose(logits[rows].clone(), u[rows], Sampling(1))
        assert torch.equal(alone[0], token[rows])
        assert torch.equal(alone[1], logp[rows])


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ({"top_k": 2}, [0.4, 0.3, 0, 0]),
        ({"top_k": 9}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_p": 0.4}, [0.4, 0, 0, 0]),
        ({"top_p": 0.41}, [0.4, 0.3, 0, 0]),
        ({"top_p": 1e-9}, [0.4, 0, 0, 0]),
        ({"min_p": 0.6}, [0.4, 0.3, 0, 0]),
        ({"min_p": 1.0}, [0.4, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.75}, [0.4, 0.3, 0, 0]),  # of .444 .333 .222 the first two reach .75
    ],
)
def test_truncation_keeps_what_the_rules_say(rule, left):
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    truncate(logits, Sampling(1, **rule))
    assert logits.exp()[0].tolist() == pytest.approx(left)


def test_log_probabilities_are_those_of_the_truncated_distribution():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().repeat(2, 1)
    token, logp = choose(logits, torch.tensor([0.1, 0.9]), Sampling(1, top_k=2))
    assert token.tolist() == [0, 1]
    assert logp.exp().tolist() == pytest.approx([4 / 7, 3 / 7])


@pytest.mark.parametrize(
    "settings", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": 2}, {"max_new_tokens": 0}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match="got"):
        Sampling(**({"max_new_tokens": 1} | settings))
