import math

import pytest
import torch

from components.models.logprobs import token_logprobs, token_logprobs_and_entropy


def random_case(count=23, size=50, width=8, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, width, generator=generator, dtype=dtype)
    head = torch.randn(size, width, generator=generator, dtype=dtype)
    targets = torch.randint(size, (count,), generator=generator)
    return hidden.requires_grad_(), head.requires_grad_(), targets


def test_a_hand_computed_case():
    hidden = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    head = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])  # logits (0, log 3) and (0, 0)
    logp, entropy = token_logprobs_and_entropy(hidden, head, torch.tensor([1, 0]))
    assert logp.tolist() == pytest.approx([math.log(3 / 4), math.log(1 / 2)])
    assert entropy.tolist() == pytest.approx([-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), math.log(2)])


def test_temperature_divides_the_logits():
    hidden, head, targets = random_case()
    expected = torch.log_softmax(hidden @ head.T / 0.7, -1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(token_logprobs(hidden, head, targets, temperature=0.7), expected)


@pytest.mark.parametrize("chunk", [None, 1, 5, 22, 23, 100])
def test_values_and_gradients_do_not_depend_on_the_chunk(chunk):
    hidden, head, targets = random_case()
    weight, weight_entropy = torch.randn(2, len(targets), dtype=torch.float64)
    logp, entropy = token_logprobs_and_entropy(hidden, head, targets, temperature=1.3, chunk=chunk)
    ((logp * weight).sum() + (entropy * weight_entropy).sum()).backward()
    got = hidden.grad, head.grad
    hidden.grad = head.grad = None

    full = torch.log_softmax(hidden @ head.T / 1.3, -1)
    expected = full.gather(1, targets[:, None])[:, 0]
    expected_entropy = -(full.exp() * full).sum(-1)
    ((expected * weight).sum() + (expected_entropy * weight_entropy).sum()).backward()
    torch.testing.assert_close(logp, expected)
    torch.testing.assert_close(entropy, expected_entropy)
    torch.testing.assert_close(got, (hidden.grad, head.grad))


def test_a_frozen_head_gets_no_gradient():
    hidden, head, targets = random_case()
    token_logprobs(hidden, head.detach(), targets).sum().backward()
    assert hidden.grad.abs().sum() > 0
    assert head.grad is None


def test_no_tokens_give_an_empty_result_and_a_zero_gradient():
    hidden, head, targets = random_case(count=0)
    token_logprobs(hidden, head, targets).sum().backward()
    assert head.grad.abs().sum() == 0


def test_half_precision_logits_are_normalised_in_float32():
    hidden, head, targets = random_case(dtype=torch.bfloat16)
    assert token_logprobs(hidden, head, targets).dtype == torch.float32


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    hidden, head, targets = random_case()
    with pytest.raises(ValueError, match=f"got {temperature}"):
        token_logprobs(hidden, head, targets, temperature=temperature)


def test_shapes_that_do_not_fit_are_named():
    hidden, head, targets = random_case()
    with pytest.raises(ValueError, match=r"\(23, 8\), \(50, 8\), \(5,\)"):
        token_logprobs(hidden, head, targets[:5])
