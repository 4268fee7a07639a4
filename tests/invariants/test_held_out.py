"""No stage learns from a prompt of the test split: shown on the files of the default data, as they lie on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.data.builtin import Builtin
from components.runtime import Out, StageArtifact
from components.stages.curate import curate
from components.stages.preferences import preferences
from flows.build import build
from flows.compose import compose
from tests.invariants.held_out import Search, held_out_prompts, preference_texts, rows, training_texts

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=[0, 7], ids=lambda seed: f"seed {seed}")
def curated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default data at its full size."""
    path = tmp_path_factory.mktemp("curate")
    source = build(compose().root["data"])
    assert source == Builtin()
    curate({}, Out(path, "curate", seed=request.param), source=source)
    return path


def test_no_test_prompt_is_in_any_file_that_a_stage_learns_from(curated: Path) -> None:
    prompts = held_out_prompts(curated)
    assert len(prompts) > 600
    texts = training_texts(curated)
    assert {name: len(found) > 700 for name, found in texts.items() if name != "profile"} == dict.fromkeys(
        ("pretrain.txt", "train", "fresh", "cold_start", "general"), True
    )
    search = Search(prompts)
    for name, found in texts.items():
        assert search(found) == [], name


def test_no_test_prompt_is_in_a_preference_pair(curated: Path, tmp_path: Path) -> None:
    data = StageArtifact("curate", "k", curated, "d")
    preferences({"data": data}, Out(tmp_path, "preferences", seed=0))
    texts = preference_texts(tmp_path)
    assert len(texts) == 3 * 2400
    assert Search(held_out_prompts(curated))(texts) == []
    asked = {row["messages"][-1]["content"] for row in rows(tmp_path / "test.jsonl")}
    assert asked.isdisjoint(row["messages"][-1]["content"] for row in rows(curated / "tasks" / "test.jsonl"))


def test_splits_share_no_prompt(curated: Path) -> None:
    seen: dict[str, str] = {}
    for split in ("test", "dev", "profile", "fresh", "train"):
        for row in rows(curated / "tasks" / f"{split}.jsonl"):
            prompt = " ".join(row["messages"][-1]["content"].casefold().split())
            assert prompt not in seen, f"{prompt!r} is in {seen.get(prompt)} and in {split}"
            seen[prompt] = split


def test_the_search_finds_what_is_planted() -> None:
    """The guard of the guard."""
    search = Search({("gcd", "of", "12", "and", "8", "?"), ("3", "+", "4", "=", "?"), ("name", "a", "fish")})
    planted = [
        "gcd of 12 and 8 ? first 12%8=4",
        "<|im_start|>user\nGCD of 12  and 8 ?<|im_end|>",
        "well : 3 + 4 = ?",
        "answer : name a fish",
    ]
    innocent = [
        "gcd of 8 and 12 ?",
        "13 + 4 = ?",
        "9 - 3 + 4 = ?",
        "3 + 4 = 7",
        "name a fishing rod",
        "please name a fish",
    ]
    assert search(planted + innocent) == planted
