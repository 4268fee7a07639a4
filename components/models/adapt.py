"""A stage's model made ready to be trained, and what it leaves behind: all weights, or adapters beside frozen ones.

<stage>/
    model/       the plain model, adapters merged: what evaluation, chat and every other program load
    adapters/    with LoRA: one peft directory per adapter, oldest first; the last one is what this stage learned
    base/        with ``between: stack``: the frozen weights that they belong to, the same files as the input's
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from components.models.load import default_device, load_model, save_model
from components.models.lora import POLICY, Lora, has_adapters, merged_state

MODEL, ADAPTERS, BASE = "model", "adapters", "base"
Say = Callable[[str], None]


def load_trainable(
    stage: Path, lora: Lora | None, seed: int, *, recompute: bool = False, say: Say = lambda _: None
) -> tuple[Any, Any]:
    """(model, tokenizer) of a finished stage; with ``lora`` only fresh adapters need a gradient.

    Args:
        recompute: keep one state per layer and compute the rest again in the backward pass: a third more work, and
            memory for activations falls to about a tenth (arXiv:1604.06174).

    Raises:
        ValueError: as `load_model`; quantised weights without a GPU.
    """
    if lora is None:
        model, tokenizer = load_model(stage / MODEL)
        return (_recomputing(model) if recompute else model), tokenizer
    frozen, before = stage / MODEL, []
    if lora.between == "stack" and (stage / BASE).is_dir():
        frozen, before = stage / BASE, sorted(path for path in (stage / ADAPTERS).iterdir() if path.is_dir())
    model, tokenizer = load_model(frozen) if lora.quantize is None else _load_quantised(frozen, lora.quantize)
    wrapped = lora.wrap(model, seed, before)
    trained = sum(p.numel() for p in wrapped.parameters() if p.requires_grad)
    beside = f" beside {len(before)} frozen ones" if before else ""
    say(f"LoRA: adapters of rank {lora.r}, {trained:,} weights{beside}; between stages: {lora.between}")
    return (_recomputing(wrapped) if recompute else wrapped), tokenizer


def _recomputing(model: Any) -> Any:
    model.activation_checkpointing_enable({"use_reentrant": False})
    return model.train()  # transformers recomputes in train mode only


def save_trained(
    model: Any, tokenizer: Any, out: Path, *, lora: Lora | None = None, source: Path | None = None
) -> None:
    """Write ``model/`` into the stage's directory, and of a model with adapters what the module describes.

    Args:
        source: directory of the stage that the model came from.
    """
    if lora is None or source is None or not has_adapters(model):
        save_model(model, tokenizer, out / MODEL)
        return
    earlier = source / ADAPTERS
    stacked = lora.between == "stack"
    frozen = source / BASE if stacked and (source / BASE).is_dir() else source / MODEL
    if lora.quantize is None:
        save_model(model, tokenizer, out / MODEL)
    else:
        plain, _ = load_model(frozen, "cpu")
        plain.load_state_dict(merged_state(model, plain.state_dict())[1])
        save_model(plain, tokenizer, out / MODEL)
    if stacked:
        _share(frozen, out / BASE)
        if frozen.name == BASE and earlier.is_dir():
            _share(earlier, out / ADAPTERS)
    number = len(list((out / ADAPTERS).iterdir())) if (out / ADAPTERS).is_dir() else 0
    _save_adapter(model, out / ADAPTERS / f"{number:03d}")


def _save_adapter(model: Any, directory: Path) -> None:
    from peft import get_peft_model_state_dict  # heavy, and only with adapters

    directory.mkdir(parents=True)
    config = model.peft_config[POLICY]
    named, config.base_model_name_or_path = config.base_model_name_or_path, None  # a path of this machine
    config.save_pretrained(str(directory))
    config.base_model_name_or_path = named
    state = {
        name: tensor.cpu().contiguous()
        for name, tensor in get_peft_model_state_dict(model, adapter_name=POLICY).items()
    }
    save_file(state, directory / "adapter_model.safetensors", metadata={"format": "pt"})


def _share(source: Path, target: Path) -> None:
    """The same files in a second place: hard links, copies on another file system."""

    def link(found: str, wanted: str) -> str:
        try:
            os.link(found, wanted)
        except OSError:
            shutil.copy2(found, wanted)
        return wanted

    shutil.copytree(source, target, copy_function=link)


def _load_quantised(directory: Path, kind: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig  # heavy

    device = default_device()
    if device.type != "cuda":
        raise ValueError(f"lora.quantize={kind} needs a CUDA device, this process has {device}. Fix: quantize=null")
    settings = (
        BitsAndBytesConfig(load_in_8bit=True)
        if kind == "int8"
        else BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    )
    model = AutoModelForCausalLM.from_pretrained(
        directory, quantization_config=settings, device_map={"": device}, local_files_only=True, trust_remote_code=False
    )
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    return model.eval(), tokenizer
