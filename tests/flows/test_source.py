"""The digest follows what runs: every first-party module reached by import, and nothing of how it is written."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.source import _spell, source_digest, source_files

STAGE = """
import json, os.path
import lib.rewards.format as fmt
from lib.rewards import accuracy
from . import helpers
from .helpers import twice as double

def stage(inputs, out, *, steps: int = 3) -> dict:
    from lib import late
    return {"x": accuracy.score(steps) + double(1)}
"""
FILES = {
    "lib/__init__.py": "",
    "lib/late.py": "VALUE = 1\n",
    "lib/unused.py": "VALUE = 1\n",
    "lib/rewards/__init__.py": "",
    "lib/rewards/format.py": "def f(): return 1\n",
    "lib/rewards/accuracy.py": "from ..base import core\ndef score(n): return core(n)\n",
    "lib/base.py": "def core(n): return n\n",
    "lib/stages/stage.py": STAGE,  # lib/stages has no __init__.py
    "lib/stages/helpers.py": "def twice(n): return 2 * n\n",
}
TARGET = "lib.stages.stage.stage"
REACHED = sorted(set(FILES) - {"lib/unused.py"})


@pytest.fixture
def code(tmp_path: Path, monkeypatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_every_module_reached_by_an_import_counts_and_no_other(code: Path):
    assert sorted(source_files([TARGET])) == REACHED
    assert not [name for name in sys.modules if name.split(".")[0] == "lib"]  # nothing was executed


@pytest.mark.parametrize("name", REACHED)
def test_an_edit_of_any_reached_file_changes_the_digest(code: Path, name: str):
    before = source_files([TARGET])
    (code / name).write_text((code / name).read_text() + "\nx = 1\n")
    after = source_files([TARGET])
    assert {file for file in after if after[file] != before[file]} == {name}
    assert source_digest([TARGET]) != source_digest([]) != ""


def test_an_edit_of_an_unreached_file_changes_nothing(code: Path):
    before = source_digest([TARGET])
    (code / "lib/unused.py").write_text("VALUE = 2\n")
    assert source_digest([TARGET]) == before


def digest_with(code: Path, text: str) -> str:
    (code / "lib/base.py").write_text(text)
    return source_files([TARGET])["lib/base.py"]


REFERENCE = "import os\ndef core(n, scale=2):\n    if n > 1 and scale:\n        return f'{n} x'\n    return n * 1.5\n"


@pytest.mark.parametrize(
    "text",
    [
        REFERENCE.replace("\n", "  # why\n"),
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n\n\n" + REFERENCE,
        "'''Module.'''\n" + REFERENCE.replace(":\n    if", ":\n    '''Computes core.'''\n    if"),
        REFERENCE.replace("n * 1.5", "(n *\n        1.50)").replace("'", '"'),
        REFERENCE.replace("\n", "\r\n"),
        "\ufeff" + REFERENCE,
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lib.unused\n" + REFERENCE,
    ],
)
def test_comments_docstrings_and_formatting_do_not_change_the_digest(code: Path, text: str):
    reference = REFERENCE
    if "TYPE_CHECKING" in text:
        reference = "from typing import TYPE_CHECKING\n" + REFERENCE
    assert digest_with(code, text) == digest_with(code, reference)
    assert "lib/unused.py" not in source_files([TARGET])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.5", "1.6"),
        ("n > 1", "n >= 1"),
        ("n > 1", "n > 1.0"),
        ("n > 1", "n > True"),
        ("and", "or"),
        ("scale=2", "scale=3"),
        ("scale=2", "scale"),
        ("scale=2", "*, scale=2"),
        ("x'", "y'"),
        ("x'", "x' 'z'"),
        ("core(", "kern("),
        ("return n * 1.5", "return n * 1.5, None"),
        ("return n * 1.5", "return"),
        ("    return n *", "        return n *"),
        ("import os", "import sys"),
        ("{n}", "{n!r}"),
        ("{n}", "{n:3}"),
    ],
)
def test_a_change_of_what_runs_changes_the_digest(code: Path, old: str, new: str):
    assert old in REFERENCE
    assert digest_with(code, REFERENCE.replace(old, new)) != digest_with(code, REFERENCE)


def test_a_field_that_a_newer_python_adds_does_not_change_the_digest():
    class FunctionDef(ast.FunctionDef):  # as of Python 3.12
        _fields = (*(name for name in ast.FunctionDef._fields if name != "type_params"), "type_params")

    here: list[str] = []
    newer: list[str] = []
    node = ast.parse("def f(a, b=1): return a")
    _spell(node, here)
    fields: dict[str, Any] = {**vars(node.body[0]), "type_params": []}
    node.body[0] = FunctionDef(**fields)
    _spell(node, newer)
    assert newer == here


def test_moving_a_value_between_arguments_changes_the_digest(code: Path):
    texts = [
        "f(a, *b)",
        "f(*a, b)",
        "f(a=b)",
        "f(**a)",
        "{**a}",
        "{a: None}",
        "x[a:b]",
        "x[a:]",
        "x[:a]",
        "(a, [b])",
        "([a], b)",
    ]
    assert len({digest_with(code, text + "\n") for text in texts}) == len(texts)


def test_a_template_that_a_module_names_counts_with_it(code: Path):
    (code / "lib/base.py").write_text("def core(n): return open('page.html.j2'), 'other.txt', 'lib.late'\n")
    (code / "lib/page.html.j2").write_text("one")
    before = source_files([TARGET])
    assert "lib/page.html.j2" in before
    (code / "lib/page.html.j2").write_text("two")
    after = source_files([TARGET])
    assert {name for name in after if before[name] != after[name]} == {"lib/page.html.j2"}


def test_cycles_star_imports_and_missing_optional_modules_are_fine(code: Path):
    (code / "lib/base.py").write_text("from lib.late import *\nimport no_such_module\nfrom lib import nothing\n")
    (code / "lib/late.py").write_text("import lib.base\n")
    assert sorted(source_files([TARGET])) == REACHED


def test_the_standard_library_and_installed_packages_do_not_count(code: Path):
    (code / "lib/base.py").write_text("import json, torch, transformers.models.llama\nfrom numpy import linalg\n")
    assert sorted(source_files([TARGET])) == REACHED


def test_flows_and_the_store_do_not_count_but_other_components_do():
    found = source_files(["components.runtime.Out", "flows.stage.run_stage", "components.artifacts.write_jsonl"])
    assert sorted(found) == ["components/__init__.py", "components/runtime.py"]


def test_a_target_in_an_installed_package_counts_as_its_version():
    assert source_files(["pytest.raises"]) == {"pytest": f"version {pytest.__version__}"}


def test_a_target_whose_package_does_not_exist_is_named():
    with pytest.raises(ModuleNotFoundError, match=r"target 'no_such_pkg\.reward'.*PYTHONPATH"):
        source_files(["no_such_pkg.reward"])


def test_a_syntax_error_names_the_file(code: Path):
    (code / "lib/base.py").write_text("def core(:\n")
    with pytest.raises(SyntaxError) as caught:
        source_files([TARGET])
    assert caught.value.filename == str(code / "lib/base.py")


def test_the_order_of_targets_and_the_process_do_not_matter(code: Path):
    targets = [TARGET, "lib.unused.VALUE", "components.rng.derive"]
    program = (
        f"import sys; sys.path.insert(0, {str(code)!r})\nfrom flows.source import *; print(source_digest({targets}))"
    )
    command = [sys.executable, "-c", program]
    other = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == source_digest(targets[::-1]) == source_digest(targets)


def test_digests_and_keys_need_no_heavy_package():
    program = """
import sys
import flows.stage, flows.source, components.artifacts
flows.source.source_files(["components.models.load", "torch.nn.Linear"])
print([name for name in ("torch", "transformers", "prefect", "mlflow", "numpy", "hydra") if name in sys.modules])
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
