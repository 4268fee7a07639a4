"""The reward model: one scalar at the last token, whatever shares the batch."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from components.models.learner import Learner
from components.models.optim import AdamW
from components.models.reward_head import RewardModel, load_reward_model, load_scorer
from components.models.schedule import constant

SEQUENCES = [[5, 6, 7, 8], [9, 3], [4, 4, 4, 4, 4, 4, 4], [20]]


@pytest.fixture
def scorer(built):
    model = RewardModel(copy.deepcopy(built[0]))
    with torch.no_grad():
        model.head.weight.copy_(torch.linspace(-1, 1, 32))
    return model


def test_scores_start_at_zero(built):
    assert RewardModel(copy.deepcopy(built[0])).score(SEQUENCES) == [0.0] * 4


def test_the_score_is_read_off_the_last_token(scorer):
    with torch.no_grad():
        hidden = scorer.model.model(torch.tensor([SEQUENCES[0]])).last_hidden_state
        expected = float(hidden[0, -1] @ scorer.head.weight[0])
    assert scorer.score(SEQUENCES[:1]) == pytest.approx([expected], abs=1e-6)


@pytest.mark.parametrize("max_tokens", [1, 9, 16384])
def test_a_score_does_not_depend_on_the_batch(scorer, max_tokens):
    alone = [scorer.score([sequence])[0] for sequence in SEQUENCES]
    assert scorer.score(SEQUENCES, max_tokens=max_tokens) == pytest.approx(alone, abs=1e-5)
    assert scorer.score([]) == []
    assert len({round(s, 4) for s in alone}) == 4


def test_an_empty_sequence_is_named(scorer):
    with pytest.raises(ValueError, match="sequence 1 of 2 is empty"):
        scorer([[1], []])


def test_another_forward_can_be_given(built):
    calls = []

    def hidden(ids):
        calls.append(tuple(ids.shape))
        return torch.ones(*ids.shape, 32)

    model = RewardModel(copy.deepcopy(built[0]), hidden)
    nn.init.ones_(model.head.weight)
    assert model.score([[1, 2], [3, 4, 5]]) == [32.0, 32.0]
    assert calls == [(2, 3)]


def test_it_learns_a_preference(built):
    model = RewardModel(copy.deepcopy(built[0]))
    learner = Learner(model.named_parameters(), AdamW(model.named_parameters(), lr=3e-3), partial(constant, total=15))
    chosen, rejected = [[5, 6, 7], [5, 8, 7]], [[5, 6, 9], [5, 8, 9]]

    def loss():
        scores = model(chosen + rejected)
        return -nn.functional.logsigmoid(scores[:2] - scores[2:]).mean()

    losses = [learner.step([loss]).loss for _ in range(15)]
    assert losses[0] == pytest.approx(0.6931, abs=1e-4)  # log 2: no preference yet
    assert losses[-1] < 0.1
    good, bad = model.score([[5, 6, 7]])[0], model.score([[5, 6, 9]])[0]
    assert good > bad


def test_no_sequences_give_no_scores_but_a_gradient_path(scorer):
    scores = scorer([])
    assert scores.shape == (0,)
    scores.sum().backward()


def test_saving_and_loading_keeps_every_score(scorer, tokenizer, tmp_path):
    scorer.save(tmp_path, tokenizer)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["head.safetensors", "model"]
    assert load_reward_model(tmp_path, "cpu").score(SEQUENCES) == scorer.score(SEQUENCES)
    assert load_scorer(path=tmp_path)(SEQUENCES) == pytest.approx(scorer.score(SEQUENCES), abs=1e-4)


def test_a_loaded_scorer_needs_no_gradient(scorer, tokenizer, tmp_path):
    scorer.save(tmp_path, tokenizer)
    assert not any(p.requires_grad for p in load_reward_model(tmp_path, "cpu").parameters())


def test_a_directory_without_a_head_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"head.safetensors does not exist. Fix: give the artifact of a reward"):
        load_scorer(path=tmp_path)


def test_an_untied_head_of_the_language_model_is_frozen(built):
    backbone = copy.deepcopy(built[0])
    backbone.lm_head.weight = nn.Parameter(backbone.lm_head.weight.detach().clone())
    RewardModel(backbone)
    assert not backbone.lm_head.weight.requires_grad
    assert backbone.model.embed_tokens.weight.requires_grad
