"""Names and values in the form a tracker takes, secrets left out."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LONGEST_NAME, _LONGEST_VALUE = 250, 500
_FORBIDDEN = re.compile(r"[^\w\-. :/]")
_SECRET_KEY = re.compile(r"(^|[._])(\w*_)?(token|secret|passw(or)?d|api_?key|credentials?)$", re.IGNORECASE)
_NO_SECRET = re.compile(r"(^|[._])(pad|eos|bos|unk|mask|cls|sep)_token$", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(hf_|sk-|gh[pousr]_|github_pat_|xox[abp]-|AKIA)[A-Za-z0-9_\-]{8,}|(?<=://)[^/@\s:]+:[^/@\s]+(?=@)"
)


def metric_name(name: str) -> str:
    """The name with what MLflow rejects replaced: ``pass@4`` becomes ``pass_at_4``, other signs ``_``."""
    cleaned = _FORBIDDEN.sub("_", name.replace("@", "_at_"))
    parts = [part for part in posixpath.normpath(cleaned).split("/") if part not in ("", ".", "..")]
    return "/".join(parts)[:_LONGEST_NAME].rstrip("/") or "unnamed"


def param_value(key: str, value: Any) -> str:
    """The value as text of at most 500 characters; ``***`` where key or value look like a secret."""
    if _SECRET_KEY.search(key) and not _NO_SECRET.search(key):
        return "***"
    text = _SECRET_VALUE.sub("***", str(value))
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
