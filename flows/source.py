"""Digest of the source code a stage runs: what a stage key must change with, and nothing else.

From the dotted targets of a stage, imports are followed statically (nothing is executed) through first-party modules:
``components`` and any module that is neither in the standard library nor in site-packages. Each file counts as its
syntax tree without comments, docstrings, formatting and ``if TYPE_CHECKING`` blocks. A data file lying next to a module
(a template) counts if the module names it in a string. Limits: imports by a computed name are not seen, and a function
that reads docstrings at run time doesn't see an edited one invalidate anything.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import re
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# They decide where results lie and when they are made, never what they are.
PLUMBING = ("flows", "components.artifacts")
_ALWAYS_OURS = "components"  # also when installed as a wheel
_STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_DATA_FILE = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*\.\w{1,8}")
_UNSAID = ("kind", "type_comment", "type_ignores", "ctx")  # fields of syntax nodes that don't change what runs


@dataclass(frozen=True)
class _Module:
    """A first-party module: its file (None for a folder without ``__init__.py``) and where its submodules lie."""

    name: str
    file: Path | None
    folders: tuple[Path, ...]

    @property
    def label(self) -> str:
        """Path from the top package on, the same on every machine."""
        assert self.file is not None
        return self.name.replace(".", "/") + ("/__init__.py" if self.folders else ".py")


@dataclass(frozen=True)
class _Parsed:
    digest: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]  # (relative level, module, names imported from it)
    data: tuple[str, ...]


def source_files(targets: Iterable[str]) -> dict[str, str]:
    """Digest per source file reached from dotted targets (``components.stages.rl.rl``), by path below the top package.

    A target outside the first-party code counts as its distribution's version.

    Raises:
        ModuleNotFoundError: a target of which not even the first part is a module.
        SyntaxError: in a file that is reached.
    """
    finder, digests = _Finder(), {}
    pending: list[_Module] = []
    for target in sorted(set(targets)):
        modules = finder.chain(target)
        if not modules:
            digests |= _external(target)
        pending += modules
    seen: set[str] = set()
    while pending:
        module = pending.pop()
        if module.name in seen or module.file is None:
            continue
        seen.add(module.name)
        info = module.file.stat()
        parsed = _parse(module.file, info.st_mtime_ns, info.st_size)
        digests[module.label] = parsed.digest
        for name in parsed.data:
            if (file := module.file.parent / name).is_file():
                digests[f"{module.label.rpartition('/')[0]}/{name}".lstrip("/")] = _hash(file.read_bytes())
        pending += finder.imported(module, parsed)
    return dict(sorted(digests.items()))


def source_digest(targets: Iterable[str]) -> str:
    """One digest of everything `source_files` finds."""
    return digest_of(source_files(targets))


def digest_of(files: Mapping[str, str]) -> str:
    """One digest of a mapping from file to digest."""
    return _hash("\n".join(f"{name} {digest}" for name, digest in sorted(files.items())).encode())


class _Finder:
    """Locates first-party modules without importing anything; remembers, for one digest."""

    def __init__(self) -> None:
        self._known: dict[str, _Module | None] = {}

    def module(self, name: str) -> _Module | None:
        if name not in self._known:
            self._known[name] = None if _is_plumbing(name) else self._locate(name)
        return self._known[name]

    def chain(self, dotted: str) -> list[_Module]:
        """The modules along a dotted path, packages first; attributes at its end are ignored."""
        parts, found = dotted.split("."), []
        for end in range(1, len(parts) + 1):
            if (module := self.module(".".join(parts[:end]))) is None:
                break
            found.append(module)
        return found

    def imported(self, importer: _Module, parsed: _Parsed) -> Iterator[_Module]:
        """Every first-party module that the import statements of a module load, packages included."""
        package = importer.name if importer.folders else importer.name.rpartition(".")[0]
        for level, name, attributes in parsed.imports:
            if level:
                base = package.split(".")[: len(package.split(".")) - level + 1]
                name = ".".join([*base, name] if name else base)
            for attribute in attributes or ("",):
                yield from self.chain(f"{name}.{attribute}" if attribute else name)

    def _locate(self, name: str) -> _Module | None:
        parent, _, last = name.rpartition(".")
        if parent:
            above = self.module(parent)
            return None if above is None else _look_in(above.folders, name, last)
        try:
            spec = importlib.util.find_spec(name)  # of a top-level name: executes nothing
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        folders = tuple(Path(path) for path in spec.submodule_search_locations or ())
        file = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
        if file is None and not folders:
            return None
        if name != _ALWAYS_OURS and not _first_party(file or folders[0]):
            return None
        return _Module(name, file, folders)


def _look_in(folders: Iterable[Path], name: str, last: str) -> _Module | None:
    for folder in folders:
        inside = folder / last
        if (init := inside / "__init__.py").is_file():
            return _Module(name, init, (inside,))
        if (file := folder / f"{last}.py").is_file():
            return _Module(name, file, ())
        if last.isidentifier() and inside.is_dir():
            return _Module(name, None, (inside,))
    return None


def _is_plumbing(name: str) -> bool:
    return any(name == plumbing or name.startswith(plumbing + ".") for plumbing in PLUMBING)


def _first_party(path: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.resolve().is_relative_to(standard) for standard in _STANDARD)


def _external(target: str) -> dict[str, str]:
    top = target.partition(".")[0]
    if _is_plumbing(target):
        return {}
    if importlib.util.find_spec(top) is None:
        raise ModuleNotFoundError(
            f"target {target!r}: there is no module {top!r}. Correct the name or put it on PYTHONPATH"
        )
    try:
        return {top: f"version {importlib.metadata.version(top)}"}
    except importlib.metadata.PackageNotFoundError:
        return {top: "version unknown"}


_PARSING = threading.Lock()  # stages parse in threads, and CPython 3.11 counts the depth of its parser across them


@lru_cache(maxsize=4096)
def _parse(file: Path, mtime_ns: int, size: int) -> _Parsed:
    """mtime and size are there for the cache to notice an edit."""
    with _PARSING:
        tree = _Essence().visit(ast.parse(file.read_bytes(), filename=str(file)))
    imports, data = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _DATA_FILE.fullmatch(node.value):
            data.add(node.value)
    parts: list[str] = []
    _spell(tree, parts)
    return _Parsed(
        _hash("\x1f".join(parts).encode()), tuple(imports), tuple(sorted(d for d in data if not d.endswith(".py")))
    )


class _Essence(ast.NodeTransformer):
    """Drops what has no effect at run time: constants as statements (docstrings) and ``if TYPE_CHECKING`` blocks."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt] | None:
        test = node.test
        name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
        if name != "TYPE_CHECKING":
            return self.generic_visit(node)
        kept = [self.visit(statement) for statement in node.orelse]
        return [statement for statement in kept if statement is not None]


def _spell(node: object, parts: list[str]) -> None:
    """Append a spelling of a syntax tree without its absent fields: one that a newer Python adds changes nothing."""
    if isinstance(node, ast.AST):
        parts.append(type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            if field in _UNSAID or value is None or value == []:
                continue
            parts.append(field)
            _spell(value, parts)
        parts.append(")")
    elif isinstance(node, list):
        parts.append("[")
        for item in node:
            _spell(item, parts)
        parts.append("]")
    else:
        parts.append(f"{type(node).__name__}:{node!r}")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
