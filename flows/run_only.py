"""Settings that say where and how something runs, not what comes out: they stay out of keys and manifests.

The one place that names them. The names mean that only as settings of a stage or a component of ours: a reward term
that happens to be called ``progress``, a key of a plain mapping, is part of the key. Components of yours have none,
unless their module says so: ``RUN_ONLY = ("workers",)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from flows.modules import find_source, literal

RUN_ONLY: frozenset[str] = frozenset(
    {
        *("device", "devices", "workers", "num_workers", "world_size", "threads", "concurrency"),
        *("logging", "log_every", "progress", "verbose"),
        *("checkpoint_every", "keep_checkpoints", "cache_dir"),
        *("micro_batch_tokens", "max_batch"),
        *("api_key",),
    }
)
_NEVER_WRITTEN = frozenset({"api_key"})  # a secret, wherever it stands
_OURS = "components."


def key_settings(value: Any, target: str | None = None) -> Any:
    """Settings without those that are run-only, as plain lists and dicts.

    Args:
        target: of the stage whose settings these are.
    """
    if isinstance(value, Mapping):
        own = value.get("_target_", target)
        dropped = _NEVER_WRITTEN | (run_only(own) if isinstance(own, str) else frozenset())
        return {name: key_settings(item) for name, item in value.items() if name not in dropped}
    if isinstance(value, list | tuple):
        return [key_settings(item) for item in value]
    return value


@cache
def run_only(target: str) -> frozenset[str]:
    """The run-only settings of a component: those of `RUN_ONLY` for ours, what its module declares for another."""
    if target.startswith(_OURS):
        return RUN_ONLY
    module = target.rpartition(".")[0]
    if not module or find_source(module) is None:
        return frozenset()
    return frozenset(map(str, literal(module, "RUN_ONLY") or ()))
