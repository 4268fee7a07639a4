"""Secrets stay out of files: they travel as names of environment variables, and only a worker reads those."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from string import Template
from typing import Any

_KEY = re.compile(
    r"(^|_)(secret|passw(or)?d|api_?key|access_?key|private_?key|credentials?)(_|$)"
    r"|^token$|(^|_)(hf|hub|auth|access|api|bearer|github|refresh|session)_token$",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|AKIA[0-9A-Z]{16}|xox[abp]-[\w-]{10,})"
    r"|(?<=://)[^/@\s:$]+:[^/@\s$]+(?=@)"
)
_FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*([A-Za-z_]\w*)\s*\}")


def is_secret_key(key: str) -> bool:
    """Whether a setting or environment variable of this name holds a secret (``hf_token``; not ``pad_token``)."""
    return _KEY.search(key) is not None


def hide_secrets(node: Any, path: tuple[str, ...] = ()) -> Any:
    """A copy of an unresolved configuration in which secrets are nodes ``{_env_: "…${NAME}…"}``.

    A secret written out (in yaml or on the command line) is moved to an environment variable of this process, which
    its workers inherit. `reveal` is the inverse.
    """
    if isinstance(node, Mapping):
        return {key: hide_secrets(value, (*path, str(key))) for key, value in node.items()}
    if isinstance(node, list):
        return [hide_secrets(value, (*path, str(i))) for i, value in enumerate(node)]
    if not isinstance(node, str):
        return node
    secret_key = bool(path) and is_secret_key(path[-1])
    names = _FROM_ENVIRONMENT.findall(node)
    if names and (secret_key or any(map(is_secret_key, names))):
        return {"_env_": _FROM_ENVIRONMENT.sub(r"$\1", node)}
    if _VALUE.search(node) or (secret_key and node and not node.startswith("${") and node != "???"):
        name = "R1FLOW_SECRET_" + "_".join(re.sub(r"\W", "_", part) for part in path).upper()
        os.environ[name] = node
        return {"_env_": f"${name}"}
    return node


def reveal(template: str) -> str:
    """The secret behind an ``_env_`` node. Raises KeyError naming the variable that isn't set."""
    return Template(template).substitute(os.environ)


def redact(text: str) -> str:
    """``text`` (an override, a line for a log) with what looks like a secret replaced by ``***``."""
    key, equals, _ = text.partition("=")
    if equals and is_secret_key(key.lstrip("+~").rpartition(".")[2]):
        return f"{key}=***"
    return _VALUE.sub("***", text)
