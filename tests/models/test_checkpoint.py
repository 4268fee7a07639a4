"""Checkpoints: whole or absent, verified, the last two kept, resumable bit for bit."""

import copy
import json
from functools import partial

import pytest
import torch

from components.models import checkpoint as module
from components.models.checkpoint import load_latest, save_checkpoint
from components.models.learner import Learner
from components.models.optim import Muon
from components.models.schedule import constant
from components.runtime import Out, Peers


@pytest.fixture
def said():
    return []


@pytest.fixture
def out(tmp_path, said):
    return Out(path=tmp_path, name="sft", seed=0, emit=lambda event: said.append(event["text"]))


def tensors(step):
    return {"model": {"w": torch.full((3, 2), float(step))}, "learner": {"m": torch.arange(step)}}


def names(out):
    return sorted(path.name for path in out.checkpoints.iterdir())


def test_what_was_saved_is_loaded(out):
    values = {
        "model": {
            "half": torch.tensor([1.5, -2.0]).bfloat16(),
            "strided": torch.arange(6.0).view(2, 3).T,
            "none": torch.zeros(0),
        },
        "learner": {"step": torch.tensor(3.0), "count": torch.tensor([2**40])},
    }
    state = {"loss": 0.1 + 0.2, "levels": {"a": [1, None, "é"]}, "steps": 7}
    save_checkpoint(out, 7, values, state)
    loaded = load_latest(out)
    assert loaded is not None
    assert (loaded.step, loaded.state) == (7, state)
    for part, named in values.items():
        assert loaded.tensors[part].keys() == named.keys()
        for name, tensor in named.items():
            assert loaded.tensors[part][name].dtype == tensor.dtype
            assert torch.equal(loaded.tensors[part][name], tensor)


def test_without_a_checkpoint_there_is_none(out):
    assert load_latest(out) is None


def test_the_last_two_are_kept(out):
    for step in (1, 2, 30, 4):
        save_checkpoint(out, step, tensors(step), {})
    assert names(out) == ["step-00000004", "step-00000030"]


def test_tied_weights_are_stored_once_and_found_under_both_names(out, built):
    model, _ = built
    state = model.state_dict()
    assert state["lm_head.weight"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()
    save_checkpoint(out, 1, {"model": state}, {})
    weights = sum(p.numel() for p in model.parameters()) * 4
    assert (out.checkpoints / "step-00000001" / "model.safetensors").stat().st_size < weights + 10_000
    loaded = load_latest(out)
    assert loaded is not None
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    other.load_state_dict(loaded.tensors["model"])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def truncate(directory):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])


def flip(directory):
    file = directory / "learner.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)


def lose(directory):
    (directory / "state.json").unlink()


def empty(directory):
    (directory / "state.json").write_text("")


def unmanifested(directory):
    (directory / "manifest.json").unlink()


@pytest.mark.parametrize("damage", [truncate, flip, lose, empty, unmanifested])
def test_a_damaged_checkpoint_is_named_set_aside_and_passed_over(out, said, damage):
    for step in (1, 2):
        save_checkpoint(out, step, tensors(step), {"step": step})
    damage(out.checkpoints / "step-00000002")
    loaded = load_latest(out)
    assert loaded is not None
    assert (loaded.step, loaded.state) == (1, {"step": 1})
    assert len(said) == 1
    assert "checkpoint step-00000002 is damaged" in said[0]
    assert names(out) == ["damaged-step-00000002", "step-00000001"]
    save_checkpoint(out, 2, tensors(2), {"step": 2})  # the step is done again
    again = load_latest(out)
    assert again is not None
    assert again.step == 2


def test_when_all_are_damaged_training_starts_anew(out, said):
    for step in (1, 2):
        save_checkpoint(out, step, tensors(step), {})
        truncate(out.checkpoints / f"step-{step:08d}")
    assert load_latest(out) is None
    assert len(said) == 2


def test_a_crash_while_writing_leaves_the_one_before(out, monkeypatch):
    save_checkpoint(out, 1, tensors(1), {})

    def crash(*_args, **_options):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_file", crash)
        with pytest.raises(OSError, match="No space"):
            save_checkpoint(out, 2, tensors(2), {})
    loaded = load_latest(out)
    assert loaded is not None
    assert loaded.step == 1
    save_checkpoint(out, 2, tensors(2), {})
    assert names(out) == ["step-00000001", "step-00000002"]  # nothing of the crash is left


@pytest.mark.parametrize("state", [{"loss": float("nan")}, {"weights": torch.zeros(1)}])
def test_state_that_is_not_json_is_refused_before_anything_is_written(out, state):
    with pytest.raises((TypeError, ValueError)):
        save_checkpoint(out, 1, tensors(1), state)
    assert load_latest(out) is None


def test_only_the_main_rank_writes(tmp_path):
    class Silent(Peers):
        def gather(self, value):
            return [0, value]

    save_checkpoint(Out(tmp_path, "sft", 0, peers=Silent(1, 2)), 1, tensors(1), {})
    assert not list(tmp_path.iterdir())


def test_training_continues_from_a_checkpoint_bit_for_bit(out, built):
    def start():
        model = copy.deepcopy(built[0])
        named = list(model.named_parameters())
        return model, Learner(named, Muon(named, lr=0.01), partial(constant, total=6))

    def loss(model, step):
        ids = torch.tensor([[(7 * step + i) % 50 for i in range(9)]])
        return model(ids, labels=ids).loss

    straight, learner = start()
    for step in range(6):
        learner.step([partial(loss, straight, step)])
    model, learner = start()
    for step in range(3):
        learner.step([partial(loss, model, step)])
    values, counters = learner.state()
    save_checkpoint(out, 3, {"model": model.state_dict(), "learner": values}, {"learner": counters})
    model, learner = start()
    saved = load_latest(out)
    assert saved is not None
    model.load_state_dict(saved.tensors["model"])
    learner.load_state(saved.tensors["learner"], saved.state["learner"])
    for step in range(saved.step, 6):
        learner.step([partial(loss, model, step)])
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), model.parameters(), strict=True))
    assert json.loads(json.dumps(learner.state()[1])) == learner.state()[1]
