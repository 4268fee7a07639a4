from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from components.models.chat import encode_examples
from components.models.load import load_model
from components.models.optim import AdamW
from components.runtime import Inputs, Interrupted, Out, StageArtifact
from components.stages import dpo as stage
from components.stages.dpo import dpo, dpo_check
from components.stages.preferences import preferences
from components.types import Example, Preference


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([t.flatten() for _, t in sorted(load_file(folder / "model" / "model.safetensors").items())])


@pytest.fixture(scope="module")
def pairs(data: StageArtifact, tmp_path_factory: pytest.TempPathFactory) -> StageArtifact:
    path = tmp_path_factory.mktemp("preferences")
    preferences({"data": data}, Out(path, "preferences", seed=0), pairs=48, test_pairs_per_prompt=1)
    return StageArtifact("preferences", "k", path, "d")


@pytest.fixture
def inputs(base: StageArtifact, pairs: StageArtifact) -> Inputs:
    return {"model": base, "preferences": pairs}


def run(inputs: Inputs, folder: Path, stop: Callable[[], bool] = lambda: False, **changes: Any) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    settings = {"optimizer": AdamW, "epochs": 3, "batch_size": 16, "lr": 1e-3, "log_every": 1, **changes}
    return dpo(inputs, Out(folder, "dpo", seed=3, stop_requested=stop), **settings)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]


def plain_logp(model: Any, example: Any) -> float:
    """log π(response) by transformers' own forward pass, one sequence, nothing padded."""
    ids = torch.tensor([[*example.prompt, *example.tokens]])
    with torch.no_grad():
        logp = model(ids).logits.log_softmax(-1)[0]
    start = len(example.prompt)
    return sum(
        float(logp[start + i - 1, token])
        for i, (token, learned) in enumerate(zip(example.tokens, example.mask, strict=True))
        if learned
    )


def test_the_policy_learns_to_prefer_the_chosen_responses(inputs: Inputs, tmp_path: Path) -> None:
    metrics = run(inputs, tmp_path)
    seen = losses(tmp_path)
    assert seen[0] == pytest.approx(math.log(2), abs=1e-4)  # the policy is its own reference
    assert seen[-1] < 0.6
    assert metrics["accuracy"] > 0.7
    assert metrics["accuracy_low"] < metrics["accuracy"] < metrics["accuracy_high"]
    assert metrics["margin"] > 0
    by_defect = json.loads((tmp_path / "pairs.json").read_text())
    assert sum(entry["n"] for entry in by_defect.values()) == len(
        (inputs["preferences"].path / "test.jsonl").read_text().splitlines()
    )


def changes(inputs: Inputs, folder: Path, split: str, length_normalised: bool = False) -> list[tuple[float, float]]:
    """log π(response) − log π_start(response) of both responses of every pair of a split."""
    before, tokenizer = load_model(inputs["model"].path / "model")
    after = load_model(folder / "model")[0]
    rows = [json.loads(line) for line in (inputs["preferences"].path / f"{split}.jsonl").read_text().splitlines()]
    pairs = [Preference.from_json(row) for row in rows]
    both = [Example(pair.task_id, pair.messages, text) for pair in pairs for text in (pair.chosen, pair.rejected)]
    found = [
        (plain_logp(after, e) - plain_logp(before, e)) / (sum(e.mask) if length_normalised else 1)
        for e in encode_examples(tokenizer, both)
    ]
    return list(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize(("beta", "length_normalised"), [(0.1, False), (2.0, True)])
def test_rewards_are_those_of_whole_responses_against_the_starting_policy(
    inputs: Inputs, tmp_path: Path, beta: float, length_normalised: bool
) -> None:
    metrics = run(inputs, tmp_path, beta=beta, length_normalised=length_normalised)
    moved = changes(inputs, tmp_path, "test", length_normalised)
    margins = [beta * (chosen - rejected) for chosen, rejected in moved]
    assert metrics["margin"] == pytest.approx(sum(margins) / len(margins), rel=1e-3)
    assert metrics["accuracy"] == sum(margin > 0 for margin in margins) / len(margins)
    assert metrics["chosen_logp_change"] == pytest.approx(sum(c for c, _ in moved) / len(moved), rel=1e-3)


def test_the_nll_of_the_chosen_is_added_per_token_and_keeps_them_likely(inputs: Inputs, tmp_path: Path) -> None:
    without, added = tmp_path / "without", tmp_path / "added"
    run(inputs, without, batch_size=48)
    run(inputs, added, batch_size=48, nll=0.5)
    model, tokenizer = load_model(inputs["model"].path / "model")
    rows = [json.loads(line) for line in (inputs["preferences"].path / "train.jsonl").read_text().splitlines()]
    pairs = [Preference.from_json(row) for row in rows]
    encoded = encode_examples(tokenizer, [Example(pair.task_id, pair.messages, pair.chosen) for pair in pairs])
    nll = sum(-plain_logp(model, e) / sum(e.mask) for e in encoded) / len(encoded)
    assert losses(added)[0] == pytest.approx(math.log(2) + 0.5 * nll, rel=1e-4)
    chosen = [sum(c for c, _ in changes(inputs, folder, "train")) for folder in (without, added)]
    assert chosen[1] > chosen[0]


def test_smoothed_labels_pull_less(inputs: Inputs, tmp_path: Path) -> None:
    plain = run(inputs, tmp_path / "plain", beta=1.0)
    smooth = run(inputs, tmp_path / "smooth", beta=1.0, label_smoothing=0.4)
    assert 0 < smooth["margin"] < plain["margin"]


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_stopped_run_continues_bit_for_bit(
    inputs: Inputs, tmp_path: Path, stop_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.stages.train._ASK_S", 0.0)  # after every step, however fast
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    first = run(inputs, whole, checkpoint_every=2)
    asked = iter([False] * (stop_after - 1) + [True] * 2)
    with pytest.raises(Interrupted):
        run(inputs, parts, checkpoint_every=2, stop=lambda: next(asked))
    second = run(inputs, parts, checkpoint_every=2)
    assert torch.equal(weights(whole), weights(parts))
    assert losses(whole) == losses(parts)
    assert first == second  # the reference is the starting policy again, not the one that was resumed


def test_a_rank_without_a_share_of_the_batch_has_nothing_to_add(inputs: Inputs) -> None:
    assert stage._sequence_logps(None, [], pad=0, length_normalised=False).shape == (2, 0)


def test_no_pairs_are_named(base: StageArtifact, tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("")
    with pytest.raises(ValueError, match="no pairs"):
        run({"model": base, "preferences": StageArtifact("p", "k", tmp_path, "d")}, tmp_path / "out")


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"beta": 0.0}, "beta: must be positive"), ({"label_smoothing": 0.5}, "label_smoothing"), ({"nll": -1.0}, "nll")],
)
def test_settings_that_cannot_work_are_told_before_the_run(changed: dict[str, float], says: str) -> None:
    usual = {"beta": 0.1, "label_smoothing": 0.0, "nll": 0.0}
    assert dpo_check(usual) == []
    [line] = dpo_check({**usual, **changed})
    assert line.startswith(says)
    assert "Fix: " in line
