import pytest
import torch

from components.models.products import BlockedProduct, Product, _blocks, product


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def values(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


blocked = pytest.mark.skipif(not _blocks(), reason="this build of PyTorch has no blocked layouts for this processor")
KINDS = [Product, pytest.param(BlockedProduct, marks=blocked)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("biased", [False, True])
def test_both_layouts_give_the_product_and_add_it_in_place(kind, biased):
    w, bias, x, sums = values(40, 24), values(40, seed=1) * biased, values(9, 24, seed=2), values(9, 40)
    expected = x.double() @ w.T.double() + bias.double()
    made = kind(w, bias if biased else None)
    with torch.inference_mode():
        torch.testing.assert_close(made(x).double(), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(made(x, out=torch.empty(9, 40)).double(), expected, atol=1e-5, rtol=0)
        before = sums.double()
        assert made.onto(sums, x) is sums
    torch.testing.assert_close(sums.double(), before + expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(96, 32), (576, 1536), (3072, 576)], ids=str)
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(kind, shape):
    made, x = kind(values(*shape)), values(130, shape[1], seed=1)
    with torch.inference_mode():
        whole = made(x)
        for rows in (8, 9, 16, 31, 64, 100):
            assert torch.equal(made(x[:rows]), whole[:rows])
            assert torch.equal(made(x[-rows:].contiguous()), whole[-rows:])


@blocked
def test_large_float32_weights_on_one_thread_are_laid_out_in_blocks_and_no_others():
    assert type(product(values(600, 600))) is BlockedProduct
    assert type(product(values(600, 600).bfloat16())) is Product
    assert type(product(values(60, 60))) is Product
    torch.set_num_threads(2)
    assert type(product(values(600, 600))) is Product
