"""What can be said of a model's directory without loading it: its weights, its tokenizer, its context."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from components.models.weights import read_header, read_shapes, shape_problem

_MASKS = {"F64": ("<u8", 0x7FF0 << 48), "F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
_CHUNK = 1 << 22  # values looked at together
_LOOKED_AT = 4 << 30  # bytes of weights, a few seconds; those of larger models are looked at when they are loaded
_OWN_ENDS = ("TokenizersBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer", "")  # classes without an eos token


def directory_problems(folder: Path, *, gguf: bool = False) -> Iterator[str]:
    """What is wrong with a saved model: no eos token, more tokens than embeddings, weights that are cut off, lack
    layers or tensors, or are not finite.

    Args:
        gguf: configuration, tokenizer and weights come from one GGUF file, which is not looked into.
    """
    settings = read_settings(folder / "tokenizer_config.json")
    special = read_settings(folder / "special_tokens_map.json")
    known = settings.get("eos_token") or special.get("eos_token")
    if settings and not known and ("eos_token" in settings or settings.get("tokenizer_class", "") in _OWN_ENDS):
        yield (
            f"{folder}: the tokenizer has no eos token, so no answer could ever end. Fix: set eos_token in its "
            "tokenizer_config.json to the token that ends a turn"
        )
    config = read_settings(folder / "config.json")
    rows, tokens = config.get("vocab_size"), _tokens(folder / "tokenizer.json")
    if isinstance(rows, int) and tokens is not None and tokens > rows:
        yield (
            f"{folder}: the tokenizer has {tokens} tokens but the model only {rows} embeddings. "
            "Fix: use the tokenizer that belongs to the model, or resize the embeddings and train them"
        )
        return
    if not gguf:
        yield from _weight_problems(folder, config)


def _weight_problems(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """The first thing that is wrong with the weights."""
    try:
        problem = shape_problem(folder, read_shapes(folder), config)
    except (OSError, ValueError) as error:
        problem = str(error) if " Fix: " in str(error) else f"{error}. Fix: make it readable"
    if problem is not None:
        yield problem
        return
    files = sorted(folder.glob("*.safetensors"))
    for file in files if sum(file.stat().st_size for file in files) <= _LOOKED_AT else ():
        for name, shape, bad in _not_finite(file):
            yield (
                f"{file}: tensor {name} {shape} holds {bad} values that are NaN or infinite. "
                "Fix: the file is damaged or was saved from a diverged run; get it again"
            )
            return


def context_of(folder: Path) -> int | None:
    """Positions that a saved model has; None if its configuration does not say."""
    config = read_settings(folder / "config.json")
    found = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    return found if isinstance(found, int) else None


def read_settings(file: Path) -> dict[str, Any]:
    """A JSON object, or nothing where there is none that can be read; loading says more."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _tokens(file: Path) -> int | None:
    content = read_settings(file)
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not vocabulary:
        return None
    names = vocabulary if isinstance(vocabulary, Mapping) else [entry[0] for entry in vocabulary]
    return len({*names, *(token["content"] for token in content.get("added_tokens", ()))})


def _not_finite(file: Path) -> Iterator[tuple[str, list[int], int]]:
    """(tensor, shape, number of values) of each that holds NaN or infinities: all bits of an exponent are set."""
    import numpy as np  # only where a model is named by its directory

    try:
        header = read_header(file)
        ends = [entry["data_offsets"][1] for entry in header.values()]
        data = np.memmap(file, mode="r", offset=file.stat().st_size - max(ends, default=0)) if any(ends) else None
    except (OSError, ValueError):
        return  # a file that is not loaded, beside those that are
    for name, entry in header.items():
        if entry.get("dtype") not in _MASKS or data is None:
            continue
        kind, mask = _MASKS[entry["dtype"]]
        start, end = entry["data_offsets"]
        width = np.dtype(kind).itemsize
        values = data[start : start + (min(end, len(data)) - start) // width * width].view(kind)
        bad = sum(int(((part & mask) == mask).sum()) for part in _parts(values))
        if bad:
            yield name, entry["shape"], bad


def _parts(values: Any) -> Iterator[Any]:
    return (values[i : i + _CHUNK] for i in range(0, len(values), _CHUNK))
