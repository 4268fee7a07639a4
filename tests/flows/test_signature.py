"""Signatures read from source agree with the imported thing."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.signature import NoSuchTarget, read_signature

ROOT = Path(__file__).parents[2]

BUILT_IN = ROOT / "conf"


def targets() -> list[str]:
    """Every ``_target_`` of the built-in configuration."""
    found = set()

    def walk(node):
        if isinstance(node, dict):
            found.update([node["_target_"]] if isinstance(node.get("_target_"), str) else [])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    for file in BUILT_IN.rglob("*.yaml"):
        walk(yaml.safe_load(file.read_text()))
    return sorted(found)


@pytest.mark.parametrize("target", targets())
def test_every_built_in_component_has_the_signature_that_inspect_sees(target):
    module, _, name = target.rpartition(".")
    seen = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    read = read_signature(target)
    named = {n: p for n, p in seen.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    assert list(read.parameters) == list(named)
    assert {n for n, p in read.parameters.items() if p.required} == {
        n for n, p in named.items() if p.default is p.empty
    }
    assert read.open == any(p.kind is p.VAR_KEYWORD for p in seen.values())


def test_no_signature_of_a_built_in_component_imports_a_heavy_package():
    code = (
        "import sys\nfrom flows.signature import read_signature\n"
        f"for target in {targets()!r}: read_signature(target)\n"
        "print([m for m in ('torch', 'transformers', 'prefect', 'mlflow', 'datasets', 'hydra') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("toys.parts.clop", "did you mean toys.parts.clip?"),
        ("toys.prts.clip", "did you mean toys.parts?"),
        ("nothere.parts.clip", "check the spelling"),
        ("clip", "write package.module.function"),
        ("toys.parts.clip()", "write package.module.function"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_is_near(target, told):
    with pytest.raises(NoSuchTarget) as error:
        read_signature(target)
    assert told in error.value.fix


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module and gives the dotted path of a name in it."""
    monkeypatch.syspath_prepend(tmp_path)
    number = iter(range(100))

    def write(source: str, name: str) -> str:
        path: Path = tmp_path / f"written_{abs(hash(source))}_{next(number)}.py"
        path.write_text(source)
        return f"{path.stem}.{name}"

    return write


def test_types_follow_aliases_and_imports_across_modules(module):
    first = module("from typing import Literal\nMode = Literal['a', 'b']\nclass Thing: ...\n", "Mode").rpartition(".")[
        0
    ]
    source = f"from {first} import Mode, Thing\ndef f(*, m: Mode | None = None, t: 'Thing', n: list[int] = []): ..."
    parameters = read_signature(module(source, "f")).parameters
    assert str(parameters["m"].type) == "typing.Optional[typing.Literal['a', 'b']]"
    assert parameters["t"].type.__name__ == "Component"
    assert parameters["n"].type == list[int]


def test_a_reexported_name_is_followed_to_its_definition(module):
    first = module("def f(*, x: int): ...", "f")
    again = module(f"from {first.rpartition('.')[0]} import f as g\nh = g", "h")
    assert list(read_signature(again).parameters) == ["x"]


def test_a_target_made_at_run_time_is_imported(module):
    target = module("import functools\ndef f(*, x: int, y=1): ...\ng = functools.partial(f, y=2)", "g")
    assert list(read_signature(target).parameters) == ["x", "y"]


def test_inherited_dataclass_fields_are_found(module):
    source = (
        "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    x: int\n"
        "@dataclass\nclass B(A):\n    y: int = 0\n    z: list = field(init=False, default_factory=list)\n"
    )
    assert list(read_signature(module(source, "B")).parameters) == ["x", "y"]


def test_reading_never_runs_the_module(module):
    target = module("raise SystemExit('was run')\ndef f(*, x: int): ...", "f")
    assert list(read_signature(target).parameters) == ["x"]
