"""LoRA: train small low-rank matrices beside frozen weights (arXiv:2106.09685), through peft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from components.rng import derive


@dataclass(frozen=True, kw_only=True)
class Lora:
    """W x + (alpha / r)·B A x with W frozen, A [r, in] random and B [out, r] zero at the start.

    Attributes:
        r: rank.
        alpha: scale, in units of 1/r.
        dropout: on the input of A.
        target_modules: names of the linear layers, or "all-linear" for all but the head.
    """

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: str | Sequence[str] = "all-linear"

    def wrap(self, model: nn.Module, seed: int) -> Any:
        """The model with fresh adapters as its only trainable parameters; its outputs are unchanged.

        Raises:
            ValueError: the model has adapters already (they are merged whenever a model is saved).
        """
        import peft  # seconds to import, and not needed without adapters

        if has_adapters(model):
            raise ValueError("the model has LoRA adapters already. Fix: wrap the model as load_model returns it")
        targets = self.target_modules if isinstance(self.target_modules, str) else list(self.target_modules)
        config = peft.LoraConfig(
            r=self.r,
            lora_alpha=int(self.alpha),
            lora_dropout=self.dropout,
            target_modules=targets,
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):  # peft draws A from the global stream
            torch.manual_seed(derive(seed, "lora"))
            wrapped = peft.get_peft_model(model, config)  # type: ignore[arg-type]
        return wrapped.train(model.training)


def has_adapters(model: Any) -> bool:
    """Whether `Lora.wrap` made this model."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


@contextmanager
def adapters_off(model: Any) -> Iterator[Any]:
    """The model as it was before `Lora.wrap`: the reference policy without a second copy of the weights.

    Raises:
        ValueError: a model without adapters has no such reference.
    """
    if not has_adapters(model):
        raise ValueError("a model without LoRA adapters cannot be its own reference. Fix: pass a copy of it")
    with model.disable_adapter():
        yield model


@torch.no_grad()
def merged_state(model: Any) -> tuple[Any, dict[str, Tensor]]:
    """(the plain model, its state with adapters added into the weights); the model itself is left as it is.

    Merging in place and undoing it would not give back the same weights, bit for bit.
    """
    base = model.get_base_model()
    state: dict[str, Tensor] = {}
    deltas: dict[str, Tensor] = {
        f"{name}.weight": module.get_delta_weight(module.active_adapters[0])
        for name, module in base.named_modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer")
    }
    for key, tensor in base.state_dict().items():
        if ".lora_" in key:
            continue
        name = key.replace(".base_layer.", ".")
        delta = deltas.pop(name, None)
        state[name] = tensor if delta is None else (tensor.float() + delta.float()).to(tensor.dtype)
    if deltas:
        raise ValueError(f"adapters of a kind that cannot be merged: {', '.join(deltas)}")
    return base, state
