import pytest
import torch
from torch.autograd import gradcheck

from components.models.fused import normalise, pick, rotate, spread


def random(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)


def test_normalise_divides_by_the_root_mean_square():
    assert normalise(torch.tensor([[3.0, 4.0]]), 0.0)[0].tolist() == pytest.approx([3 / 12.5**0.5, 4 / 12.5**0.5])


@pytest.mark.parametrize(
    ("compute", "shape"),
    [
        (lambda x: spread(x, torch.tensor([4, 0, 2]), 6), (3, 5)),
        (lambda x: pick(x, torch.tensor([4, 0, 2])), (6, 5)),
    ],
)
def test_gradients_are_those_of_finite_differences(compute, shape):
    assert gradcheck(compute, (random(*shape),))


def test_the_gradient_of_normalise_is_autograds():
    x, weight = random(7, 24).detach().float().requires_grad_(), random(7, 24).detach().float()
    (normalise(x, 1e-5) * weight).sum().backward()
    got, x.grad = x.grad, None
    (torch.nn.functional.rms_norm(x, (24,), None, 1e-5) * weight).sum().backward()
    torch.testing.assert_close(got, x.grad)


def test_rotations_multiply_pairs_as_complex_numbers():
    angle = torch.rand(5, 1, 3)
    x = random(5, 2, 6).detach().float()
    turned = rotate(x, torch.polar(torch.ones_like(angle), angle))
    cos, sin = angle[:, 0, 1].cos(), angle[:, 0, 1].sin()
    a, b = x[:, 0, 2], x[:, 0, 3]
    torch.testing.assert_close(turned[:, 0, 2:4], torch.stack([a * cos - b * sin, a * sin + b * cos], 1))
