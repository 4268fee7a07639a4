import pytest
import torch

from components.models import products
from components.models.cache import LeanCache
from components.models.decoder import make_decoder
from components.models.paged import PagedCache, agrees

VARIANTS = {
    "grouped heads": ("Llama", {}),
    "biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "biases of q, k and v": ("Qwen2", {}),
    "norms of q and k, wide heads": ("Qwen3", {"head_dim": 32}),
    "no grouping": ("Llama", {"num_key_value_heads": 4}),
    "one head of keys": ("Llama", {"num_key_value_heads": 1}),
    "heads of 12, a feed-forward layer of 50": ("Llama", {"hidden_size": 48, "intermediate_size": 50}),
}
NONE = torch.zeros(0, dtype=torch.long)


@pytest.fixture(autouse=True)
def _one_thread():
    pytest.importorskip("numba")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def stepped(cache, prompts, copies, forced):
    """Logits of each step [steps, rows, V] on given tokens [rows, steps]."""
    lengths = torch.tensor([len(p) for p, n in zip(prompts, copies, strict=True) for _ in range(n)])
    with torch.inference_mode():
        cache.rebuild(NONE, prompts, copies)
        return torch.stack([cache.step(forced[:, t], lengths + t).clone() for t in range(forced.shape[1])])


def tokens(rows, steps, seed=0):
    return torch.randint(1, 512, (rows, steps), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("least", [0, products._PAYS_FROM], ids=["blocked", "plain"])
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_give_the_logits_of_transformers_on_every_page(tiny_causal_lm, monkeypatch, name, least):
    monkeypatch.setattr(products, "_PAYS_FROM", least)
    family, config = VARIANTS[name]
    model = tiny_causal_lm(family, **config)
    cache = make_decoder(model).new_cache()
    assert isinstance(cache, PagedCache)
    prompts, copies = [[], [5, 6, 7], list(range(1, 17)), list(range(1, 38))], [2, 3, 2, 2]
    forced = tokens(9, 35)
    got = stepped(cache, prompts, copies, forced)
    every = [p for p, n in zip(prompts, copies, strict=True) for _ in range(n)]
    for row, prompt in enumerate(every):
        whole = torch.tensor([prompt + forced[row].tolist()])
        with torch.no_grad():
            expected = model(input_ids=whole).logits[0, len(prompt) :]
        torch.testing.assert_close(got[:, row], expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("least", [0, products._PAYS_FROM], ids=["blocked", "plain"])
def test_a_row_gives_the_same_bits_whatever_rows_are_beside_it_and_wherever_it_is_moved(
    tiny_causal_lm, monkeypatch, least
):
    monkeypatch.setattr(products, "_PAYS_FROM", least)
    decoder = make_decoder(tiny_causal_lm("Llama"))
    prompts, forced = [[i + 1] * (5 + 7 * i) for i in range(4)], tokens(32, 40)
    lengths = torch.tensor([len(p) for p in prompts for _ in range(8)])
    among = stepped(decoder.new_cache(), prompts, [8] * 4, forced)
    alone = stepped(decoder.new_cache(), prompts[1:2], [8], forced[8:16])
    assert torch.equal(among[:, 8:16], alone)
    cache = decoder.new_cache()
    first = stepped(cache, prompts, [8] * 4, forced[:, :19])
    kept = torch.tensor([31, 2, 9, 10, 11, 12, 13, 30, 29, 8])
    with torch.inference_mode():
        cache.rebuild(kept, [[3, 4, 5]], [2])
        extra = torch.tensor([3, 3])
        for t in range(19, 40):
            fed = torch.cat([forced[kept, t], torch.tensor([7, 8])])
            got = cache.step(fed, torch.cat([lengths[kept] + t, extra + t - 19]))
            assert torch.equal(got[:10], among[t, kept])
    assert torch.equal(first, among[:19])


def test_pages_of_rows_that_left_are_used_again(tiny_causal_lm):
    cache = make_decoder(tiny_causal_lm("Llama")).new_cache()
    sizes = []
    for _ in range(6):
        stepped(cache, [[1] * 30] * 4, [8] * 4, tokens(32, 40))
        sizes.append(len(cache._pages[0][0]))
    # 4 prompts of 2 pages and 32 rows of 3 at most
    assert len(set(sizes)) == 1
    assert sizes[0] <= 2 * (4 * 2 + 32 * 3)


def test_what_they_do_not_serve_goes_the_plain_way(tiny_causal_lm, monkeypatch):
    decoder = make_decoder(tiny_causal_lm("Llama"))
    assert type(make_decoder(tiny_causal_lm("Llama").bfloat16()).new_cache()) is LeanCache
    torch.set_num_threads(2)
    assert type(decoder.new_cache()) is LeanCache
    torch.set_num_threads(1)
    monkeypatch.setattr("components.models.paged.kernels", lambda: None)
    assert type(decoder.new_cache()) is LeanCache


def test_loops_whose_logits_differ_are_left_alone_and_one_line_says_so(tiny_causal_lm, monkeypatch, caplog):
    decoder = make_decoder(tiny_causal_lm("Llama"))
    monkeypatch.setattr(PagedCache, "_factor", 0.5)
    assert type(decoder.new_cache()) is LeanCache
    assert type(decoder.new_cache()) is LeanCache
    assert [record.message[:36] for record in caplog.records] == ["decoding without compiled loops, slo"]
    monkeypatch.undo()
    from components.compiled import kernels

    assert agrees(decoder, kernels())


def test_rows_taken_out_and_put_back_give_the_same_bits_and_their_pages_come_free(tiny_causal_lm):
    decoder = make_decoder(tiny_causal_lm("Llama"))
    prompts, forced = [[i + 1] * (5 + 7 * i) for i in range(4)], tokens(32, 44)
    lengths = torch.tensor([len(p) for p in prompts for _ in range(8)])
    whole = stepped(decoder.new_cache(), prompts, [8] * 4, forced)
    cache = decoder.new_cache()
    stepped(cache, prompts, [8] * 4, forced[:, :19])
    out = [3, 4, 17, 30]
    with torch.inference_mode():
        held = [cache.take(row) for row in out]
        for t in range(19, 22):  # they are in the batch a little longer, and fed what nobody asks for
            cache.step(torch.full((32,), 9), lengths + t)
        cache.rebuild(NONE, [[7] * 40, [8] * 3], [8, 8])  # others take what is free
        for t in range(30):
            cache.step(torch.full((16,), 9), torch.tensor([40] * 8 + [3] * 8) + t)
        cache.rebuild(torch.tensor([0, 9]), [[2] * 20], [2], held)
        del held
        beside = torch.tensor([70, 33])
        for t in range(19, 44):
            fed = torch.cat([torch.tensor([9, 9]), forced[out, t], torch.tensor([5, 5])])
            places = torch.cat([beside + t - 19, lengths[out] + t, torch.tensor([20, 20]) + t - 19])
            assert torch.equal(cache.step(fed, places)[2:6], whole[t, out])
        taken = cache.take(2)
        cache.rebuild(NONE, [], [])
        assert len(cache._free) < len(cache._pages[0][0])
        del taken
        cache.rebuild(NONE, [], [])
    assert len(cache._free) == len(cache._pages[0][0])


def test_a_row_that_is_not_a_number_leaves_nothing_in_the_pages_it_gives_back(tiny_causal_lm):
    model = tiny_causal_lm("Llama")
    decoder = make_decoder(model)
    decoder.new_cache()  # loops are held to the model while it is whole
    prompt, forced = [[5, 6, 7]], tokens(2, 20)
    expected = stepped(decoder.new_cache(), prompt, [2], forced)
    with torch.no_grad():
        model.get_input_embeddings().weight[10] = float("nan")
    cache = decoder.new_cache()
    stepped(cache, [[10] * 40], [2], torch.full((2, 20), 10))
    assert isinstance(cache, PagedCache)
    assert torch.equal(stepped(cache, prompt, [2], forced).nan_to_num(7.0)[..., :10], expected[..., :10])
