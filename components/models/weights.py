"""What the headers of safetensors files say, and whether they hold all that a model's configuration asks for.

A file begins with the length of its header, 8 bytes little-endian, then JSON: name → dtype, shape and data_offsets,
counted from the header's end (https://huggingface.co/docs/safetensors). Nothing else is read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Shapes = dict[str, list[int]]

POINTER = b"version https://git-lfs.github.com"  # what git leaves in place of a file that it did not fetch
_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"  # the names that transformers looks for
_LAYER = re.compile(r"(?:model|transformer|gpt_neox)\.(?:layers|h)\.(\d+)\.")
_LLAMA_SHAPED = ("llama", "mistral", "qwen2", "qwen3")
LLAMA_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
_AGAIN = "Fix: the download was cut off; get the file again"


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Tensor → dtype, shape and data_offsets.

    Raises:
        OSError: not readable.
        ValueError: no safetensors file, or not the whole of one; with the remedy.
    """
    size = file.stat().st_size
    if size == 0:
        raise ValueError(f"{file}: is empty. {_AGAIN}")
    with file.open("rb") as content:
        start = content.read(len(POINTER))
        if start == POINTER:
            raise ValueError(f"{file}: is a Git LFS pointer, not the weights themselves. Fix: git lfs pull")
        content.seek(0)
        length = int.from_bytes(content.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError(f"{file}: no safetensors file, or cut off in its header ({size:,} bytes). {_AGAIN}")
        try:
            header = json.loads(content.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            wanted = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
            shaped = all(isinstance(entry["shape"], list) for entry in tensors.values())
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            tensors, wanted, shaped = {}, size, False
    if not shaped:
        raise ValueError(f"{file}: its header is none of a safetensors file. {_AGAIN}")
    if wanted != size:
        raise ValueError(f"{file}: has {size:,} bytes, its header speaks of {wanted:,}. {_AGAIN}")
    return tensors


def read_shapes(folder: Path) -> Shapes:
    """Tensor → shape, of the files that transformers would load.

    Raises:
        OSError, ValueError: as `read_header`; files that are missing; with the remedy.
    """
    if (folder / _ONE).is_file():
        return {name: entry["shape"] for name, entry in read_header(folder / _ONE).items()}
    index = folder / _INDEX
    if not index.is_file():
        found = ", ".join(sorted(file.name for file in folder.glob("*.safetensors"))[:3])
        raise ValueError(
            f"{folder}: has neither {_ONE} nor {_INDEX} (safetensors there: {found or 'none'}). "
            f"Fix: get the index too, or rename a single file to {_ONE}"
        )
    try:
        placed = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        shards = sorted(set(placed.values()))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{index}: no JSON object with a weight_map. Fix: get the file again") from None
    shapes: Shapes = {}
    for shard in shards:
        if not (folder / str(shard)).is_file():
            raise ValueError(f"{index}: names {shard}, which is not there. Fix: get that file too")
        shapes |= {name: entry["shape"] for name, entry in read_header(folder / str(shard)).items()}
    if lost := sorted(placed.keys() - shapes.keys()):
        raise ValueError(f"{index}: names tensor {lost[0]}, which its file does not hold. Fix: get all files again")
    return shapes


def shape_problem(folder: Path, shapes: Shapes, config: Mapping[str, Any]) -> str | None:
    """Layers or tensors that the configuration asks for and the files lack, or that have another shape there."""
    if config.get("quantization_config"):
        return None  # packed in ways of their own
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    held = {int(match[1]) for name in shapes if (match := _LAYER.match(name))}
    if isinstance(layers, int) and held:
        last = layers + int(config.get("num_nextn_predict_layers") or 0)  # layers that predict further tokens ahead
        if not set(range(layers)) <= held or max(held) >= last:
            return (
                f"{folder}: config.json asks for {layers} layers (num_hidden_layers), the weights hold {len(held)}, "
                f"numbers {min(held)} to {max(held)}. Fix: get the model's files again, config.json and weights from "
                "one place"
            )
    plain = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    wanted = expected_shapes(config)
    if missing := [name for name in wanted if name not in plain]:
        return missing_text(str(folder), missing)
    for name, shape in wanted.items():
        if plain[name] != shape:
            return (
                f"{folder}: tensor {name} is {plain[name]}, config.json asks for {shape}. "
                "Fix: get the model's files again, config.json and weights from one place"
            )
    return None


def missing_text(source: str, names: list[str]) -> str:
    """What is said of tensors that no file holds: they would be drawn at random."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"{source}: the weights lack {', '.join(names[:3])}{more}, which would be left random. "
        "Fix: get the model's files again, config.json and weights from one place"
    )


def expected_shapes(config: Mapping[str, Any]) -> Shapes:
    """Tensor (without ``model.`` before it) → shape that a Llama-shaped model must have; nothing of other models."""
    keys = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size", "num_hidden_layers")
    figures = [config.get(key) for key in keys]
    if config.get("model_type") not in _LLAMA_SHAPED or any(not isinstance(n, int) or n < 1 for n in figures):
        return {}
    h, heads, mlp, rows, layers = (int(n) for n in figures if n is not None)
    d = config.get("head_dim") or h // heads
    q, kv = heads * d, (config.get("num_key_value_heads") or heads) * d
    layer: Shapes = {
        **{"input_layernorm.weight": [h], "post_attention_layernorm.weight": [h]},
        **{"self_attn.q_proj.weight": [q, h], "self_attn.k_proj.weight": [kv, h]},
        **{"self_attn.v_proj.weight": [kv, h], "self_attn.o_proj.weight": [h, q]},
        **{f"mlp.{name}_proj.weight": [mlp, h] for name in ("gate", "up")},
        "mlp.down_proj.weight": [h, mlp],
    }
    if config["model_type"] == "qwen2":
        layer |= {f"self_attn.{name}_proj.bias": [q if name == "q" else kv] for name in "qkv"}
    if config["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm.weight": [d], "self_attn.k_norm.weight": [d]}
    head: Shapes = {"lm_head.weight": [rows, h]} if config.get("tie_word_embeddings") is False else {}
    return {
        "embed_tokens.weight": [rows, h],
        "norm.weight": [h],
        **{f"layers.{n}.{name}": shape for n in range(layers) for name, shape in layer.items()},
        **head,
    }


def linear_names(shapes: Shapes) -> set[str] | None:
    """Last parts of the names of all layers with a matrix; None of models whose experts are stored otherwise."""
    if any("experts" in name for name in shapes):
        return None
    matrices: Iterator[str] = (
        name.removesuffix(".weight") for name, s in shapes.items() if name.endswith(".weight") and len(s) == 2
    )
    return {
        name.rpartition(".")[2] for name in matrices if not name.endswith(("wte", "wpe")) and "embed" not in name
    } | {"lm_head"}
