"""The stage: a game whose best branch is known, searched with a policy that draws its moves at random."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from components.environments.protocol import Step
from components.models.chat import encode_examples
from components.models.load import load_model
from components.models.optim import AdamW
from components.rewards.environment import environment_reward
from components.rollout.handover import Handover
from components.rollout.torch_engine import TorchEngine
from components.rollout.turns import sample
from components.runtime import Inputs, Interrupted, Out
from components.stages.dpo import _encode, dpo
from components.stages.sft import sft
from components.stages.tree_search import tree_search, tree_search_check
from components.types import Example, Preference, Task
from tests.stages.conftest import artifact

MOVES = ("a", "b", "c")


def good(task: Task) -> list[str]:
    """The doors of a task that lead to the end."""
    return random.Random(task.id).choices(MOVES, k=3)


class Doors:
    """Three doors one after the other; each right one pays until the first wrong one."""

    stop, wrapper, inspects = ("</tool>",), ("<result>", "</result>"), True

    def __init__(self, noise: bool = False) -> None:
        self.noise = noise

    def reset(self, task: Task) -> Any:
        return _Game(good(task), self.noise)


class _Game:
    def __init__(self, wanted: list[str], noise: bool) -> None:
        self.wanted, self.noise, self.moves = wanted, noise, []

    def step(self, text: str) -> Step:
        self.moves.append(text.rpartition("<tool>")[2].removesuffix("</tool>").strip())
        told = f"door {len(self.moves)}" + (f" {random.random()}" if self.noise else "")
        over = len(self.moves) == 3
        return Step(None if over else told, done=over)

    def state(self) -> dict[str, Any]:
        right = next((i for i, (x, y) in enumerate(zip(self.moves, self.wanted, strict=False)) if x != y), 3)
        return {"reward": (0.0, 0.2, 0.5, 1.0)[min(right, len(self.moves))], "moves": self.moves}


class Player:
    """An engine whose policy draws one of three moves, each as likely; all else is as in any engine."""

    def __init__(self, decoder: Any, tokenizer: Any) -> None:
        self.tokenizer, self.size = tokenizer, decoder.head.shape[0]
        self.moves = [tokenizer(f"<tool>{m}</tool>", add_special_tokens=False)["input_ids"] for m in MOVES]
        self.eos_ids = (tokenizer.eos_token_id,)

    def generate(self, prompts: Any, sampling: Any, environment: Any = None) -> Any:
        handover = Handover(self.tokenizer, environment, self.size, self.eos_ids)

        def write(orders: Any) -> Any:
            drawn = [random.Random(order.seed).choice(self.moves) for order in orders]
            return [(tokens, [-1.0986] + [0.0] * (len(tokens) - 1)) for tokens in drawn]

        return sample(write, prompts, sampling, handover, self.eos_ids)


SETTINGS = {
    "accuracy": environment_reward,
    "engine": Player,
    "environment": Doors(),
    "prompts": 12,
    "simulations": 60,
    "exploration": 0.3,
    "max_new_tokens": 64,
    "checkpoint_every": 5,
}


def run(inputs: Inputs, folder: Path, **changes: Any) -> dict[str, float]:
    stop = changes.pop("stop", lambda: False)
    folder.mkdir(exist_ok=True)
    return tree_search(inputs, Out(folder, "tree", seed=0, stop_requested=stop), **{**SETTINGS, **changes})


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def moves_of(text: str) -> list[str]:
    return [part.rpartition("<tool>")[2].strip() for part in text.split("</tool>")[:-1]]


@pytest.fixture(scope="module")
def searched(data: Any, base: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    folder = tmp_path_factory.mktemp("tree")
    return folder, run({"data": data, "model": base}, folder)


def tasks_by_id(data: Any) -> dict[str, Task]:
    return {row["id"]: Task.from_json(row) for row in rows(data.path / "tasks" / "fresh.jsonl")}


def test_the_best_branch_is_found_and_the_value_of_the_root_approaches_its(searched, data, inputs, tmp_path) -> None:
    folder, metrics = searched
    tasks = tasks_by_id(data)
    examples = [Example.from_json(row) for row in rows(folder / "examples.jsonl")]
    assert len(examples) == metrics["tasks"] == 12 and metrics["solved"] == 1.0
    for example in examples:
        assert moves_of(example.response) == good(tasks[example.task_id])
    assert metrics["solved_at_first"] < 0.5  # by chance 1 of 27 is right, and partial credit
    few = run(inputs, tmp_path / "few", simulations=6)
    many = run(inputs, tmp_path / "many", simulations=300)
    assert few["value"] < metrics["value"] < many["value"]
    assert many["value"] > 0.75


def test_pairs_are_turns_after_the_same_beginning_the_better_one_first(searched, data) -> None:
    folder, metrics = searched
    tasks, on_the_way = tasks_by_id(data), 0
    pairs = [Preference.from_json(row) for name in ("train", "test") for row in rows(folder / f"{name}.jsonl")]
    assert len(pairs) == metrics["pairs"] > 12
    for pair in pairs:
        wanted, said = good(tasks[pair.task_id]), [m.content for m in pair.messages[1:]]
        before = [move for text in said[::2] for move in moves_of(text)]
        assert said[1::2] == [f"door {i + 1}" for i in range(len(before))]
        assert len(moves_of(pair.chosen)) == len(moves_of(pair.rejected)) == 1
        if before == wanted[: len(before)]:
            on_the_way += 1
            assert moves_of(pair.chosen) == [wanted[len(before)]] != moves_of(pair.rejected)
    assert on_the_way >= 12


def test_sft_and_dpo_take_it_token_for_token(searched, base, tmp_path) -> None:
    folder, _ = searched
    _, tokenizer = load_model(base.path / "model")
    example = Example.from_json(rows(folder / "examples.jsonl")[0])
    (encoded,) = encode_examples(tokenizer, [example])
    assert (encoded.prompt, encoded.tokens, encoded.mask) == (example.prompt_tokens, example.tokens, example.mask)
    said = tokenizer.decode([t for t, own in zip(encoded.tokens, encoded.mask, strict=True) if not own])
    assert said.count("<result>") == 2 and not any(moves_of(said))
    pairs = [Preference.from_json(row) for row in rows(folder / "train.jsonl")]
    deep = next(pair for pair in pairs if len(pair.messages) > 1)
    ((chosen, rejected),) = _encode(tokenizer, [deep])
    assert chosen.prompt == rejected.prompt == deep.prompt_tokens and "door 1" in tokenizer.decode(chosen.prompt)
    assert (chosen.tokens, rejected.tokens) == (deep.chosen_tokens, deep.rejected_tokens)
    assert all(chosen.mask) and all(rejected.mask)
    refusal = "{% for m in messages if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endfor %}"
    tokenizer.chat_template = refusal + tokenizer.chat_template
    assert _encode(tokenizer, [deep]) == [(chosen, rejected)]  # the prompt is given: no template has to render it
    tree = artifact(folder, "tree")
    for name, train in (
        (
            "sft",
            lambda out: sft({"model": base, "tree": tree}, out, files={"tree": ["examples.jsonl"]}, optimizer=AdamW),
        ),
        ("dpo", lambda out: dpo({"model": base, "preferences": tree}, out, optimizer=AdamW, lr=1e-3, epochs=3)),
    ):
        (tmp_path / name).mkdir()
        trained = train(Out(tmp_path / name, name, seed=0))
        assert (tmp_path / name / "model").is_dir()
    assert trained["pairs"] == len(pairs)


def test_a_search_that_is_stopped_goes_on_to_the_same_bytes_whatever_is_searched_beside_it(
    searched, inputs, tmp_path
) -> None:
    folder, _ = searched
    calls = iter([False, True])
    with pytest.raises(Interrupted):
        run(inputs, tmp_path / "a", stop=lambda: next(calls))
    played: list[int] = []

    class Counted(Player):
        def generate(self, prompts: Any, *given: Any) -> Any:
            played.append(len(prompts))
            return super().generate(prompts, *given)

    run(inputs, tmp_path / "a", engine=Counted)
    assert max(played) == 2  # tasks 1 to 10 were kept
    run(inputs, tmp_path / "b", checkpoint_every=3)
    for name in ("examples.jsonl", "train.jsonl", "test.jsonl", "search.json"):
        assert (tmp_path / "a" / name).read_bytes() == (folder / name).read_bytes()
        assert (tmp_path / "b" / name).read_bytes() == (folder / name).read_bytes()


def test_an_environment_that_answers_otherwise_each_time_gives_nothing_from_the_middle(inputs, tmp_path) -> None:
    told: list[str] = []
    folder = tmp_path / "noise"
    folder.mkdir()
    out = Out(folder, "tree", seed=0, emit=lambda event: told.append(event.get("text", "")))
    changes = {"environment": Doors(noise=True), "prompts": 4, "simulations": 40}
    metrics = tree_search(inputs, out, **{**SETTINGS, **changes})
    assert metrics["failed"] > 20
    assert any(f"{metrics['failed']:.0f} rollouts count for nothing" in text for text in told)
    pairs = [row for name in ("train", "test") for row in rows(folder / f"{name}.jsonl")]
    assert pairs and all(len(pair["messages"]) == 1 for pair in pairs)


def test_a_policy_of_the_torch_engine_is_searched_too(inputs, tmp_path) -> None:
    letters = partial(_share, letter="e")
    metrics = run(
        inputs,
        tmp_path / "torch",
        engine=TorchEngine,
        accuracy=letters,
        solved=0.01,
        margin=0.01,
        prompts=4,
        simulations=6,
        max_new_tokens=16,
    )
    assert metrics["examples"] + metrics["pairs"] > 0
    with pytest.raises(ValueError, match="no episode of 4 tasks was solved"):
        run(
            inputs,
            tmp_path / "none",
            engine=TorchEngine,
            accuracy=lambda t, r: 0.0,
            prompts=4,
            simulations=4,
            max_new_tokens=8,
        )


def _share(task: Task, rollout: Any, *, letter: str) -> float:
    return rollout.response.count(letter) / max(1, len(rollout.response))


def test_figures_that_make_no_sense_are_named() -> None:
    usual = {"width": 2.0, "simulations": 32, "checkpoint_every": 32, "exploration": 1.0, "split": "fresh"}

    def check(tasks: int = 3, **changes: Any) -> list[str]:
        return tree_search_check({**usual, **changes}, {}, 1, {"data": {"tasks/fresh.jsonl": tasks}})

    assert check() == tree_search_check({}, {}, 1, {}) == []
    assert check(width=0)[0].startswith("width: must be at least 1 (got 0)")
    assert "exploration: must not be negative" in check(exploration=-1.0)[0]
    assert "warning: all 4 begin at the first turn" in check(simulations=4)[0]
    assert "no tasks of fresh" in check(tasks=0)[0]
