from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.annotations import CONTENT
from flows.content import with_content
from flows.errors import BadInput
from flows.stage import StageSpec, stage_key

ALLOW = ("components",)


def curate(file: Path) -> StageSpec:
    reader = {"_target_": "components.data.readers.Jsonl", "path": str(file)}
    source = {"_target_": "components.data.tables.Table", "reader": reader}
    settings = {"source": source, "sizes": [1, {"n": 2}]}
    return StageSpec("curate", "components.stages.curate.curate", {}, settings, seed=0, launcher={})


def write(file: Path, *answers: object) -> Path:
    file.write_text(
        "".join(json.dumps({"prompt": f"question {i} ?", "answer": a}) + "\n" for i, a in enumerate(answers))
    )
    return file


def key(file: Path) -> str:
    return stage_key(with_content([curate(file)], ALLOW)[0], {}, "source")


def test_a_changed_data_file_changes_the_stages_key_and_an_equal_one_does_not(tmp_path: Path) -> None:
    answers = [str(n) for n in range(40)]
    first = key(write(tmp_path / "a.jsonl", *answers))
    assert key(write(tmp_path / "a.jsonl", *answers)) == first
    assert key(write(tmp_path / "a.jsonl", *answers[:-1], "41")) != first


def test_bad_rows_are_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^\S*a\.jsonl:2 answer: expected text or a number"):
        with_content([curate(write(tmp_path / "a.jsonl", "1", ["2"]))], ALLOW)


def test_components_that_read_nothing_are_left_as_they_are() -> None:
    spec = StageSpec("curate", "components.stages.curate.curate", {}, {"source": BUILTIN}, seed=0, launcher={})
    assert with_content([spec], ALLOW)[0].settings == {"source": BUILTIN}


def test_a_local_models_files_are_its_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = {"_target_": "components.models.load.Pretrained", "path": str(tmp_path)}
    spec = StageSpec("base", "components.stages.base_model.base_model", {}, {"model": model}, seed=0, launcher={})
    before = with_content([spec], ALLOW)[0].settings["model"][CONTENT]
    (tmp_path / "config.json").write_text("{ }")
    assert with_content([spec], ALLOW)[0].settings["model"][CONTENT] != before


BUILTIN = {"_target_": "components.data.builtin.Builtin", "scale": 0.1}


def test_a_misspelt_input_is_told_with_the_nearest_name() -> None:
    from flows.build import stage_specs
    from flows.compose import compose

    with pytest.raises(BadInput, match=r"inputs\.modle: no such setting 'modle'.*model"):
        stage_specs(compose(["rl_1.inputs.modle=base"]))
    assert stage_specs(compose(["sft_2.inputs.model=base"]))
