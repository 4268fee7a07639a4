"""LoRA: train small low-rank matrices beside frozen weights (arXiv:2106.09685), through peft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from components.rng import derive

KINDS = ("all-linear", "attention")  # of layers, by a word of ours
POLICY = "default"  # the adapter that is trained; earlier ones are frozen and have other names


@dataclass(frozen=True, kw_only=True)
class Lora:
    """W x + (alpha / r)·B A x with W frozen, A [r, in] random and B [out, r] zero at the start.

    The policy that a stage starts from is the model with this adapter off: the reference of a KL term costs no second
    copy. There is no dropout: a step that is done again after a crash must be the same step.

    Attributes:
        r: rank.
        alpha: scale, in units of 1/r.
        target_modules: names of the linear layers; "all-linear" for all but the head, "attention" for those of the
            attention.
        between: what the next stage starts from. "merge": the weights with the adapter added, plain, where a new
            adapter begins. "stack": the weights that were frozen here, and this adapter frozen beside them. Either way
            ``model/`` holds merged weights and ``adapters/`` what was learned.
        quantize: hold the frozen weights in four or eight bits (arXiv:2305.14314); wants a GPU, bitsandbytes and
            ``between: stack``, since merging and quantising again would lose part of what was learned. Written against
            the documentation, not tested: no GPU was at hand.
    """

    r: int = 16
    alpha: float = 32.0
    target_modules: str | Sequence[str] = "all-linear"
    between: Literal["merge", "stack"] = "merge"
    quantize: Literal["nf4", "int8"] | None = None

    def wrap(self, model: Any, seed: int, before: Sequence[Path] = ()) -> Any:
        """The model with fresh adapters as its only trainable parameters; its outputs are unchanged.

        Args:
            before: directories of adapters that earlier stages learned on the same weights, to be frozen.

        Raises:
            ValueError: the model has adapters already, or no such layers.
        """
        import peft  # seconds to import, and not needed without adapters

        if has_adapters(model):
            raise ValueError("the model has LoRA adapters already. Fix: wrap the model as load_model returns it")
        alpha = int(self.alpha) if self.alpha == int(self.alpha) else self.alpha
        config = peft.LoraConfig(
            r=self.r,
            lora_alpha=alpha,  # type: ignore[arg-type]
            target_modules=self._targets(model),
            task_type="CAUSAL_LM",
        )
        training = model.training
        with torch.random.fork_rng(devices=[]):  # peft draws A from the global stream
            torch.manual_seed(derive(seed, "lora"))
            wrapped: Any = peft.get_peft_model(model, config)
        for number, directory in enumerate(before):
            wrapped.load_adapter(str(directory), adapter_name=f"before-{number}", is_trainable=False)
        if before:
            wrapped.base_model.set_adapter([POLICY, *(f"before-{n}" for n in range(len(before)))])
            for name, parameter in wrapped.named_parameters():
                parameter.requires_grad_(f".{POLICY}." in name and ".lora_" in name)
        return wrapped.train(training)

    def _targets(self, model: nn.Module) -> str | list[str]:
        if self.target_modules == "all-linear":
            return "all-linear"
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        if self.target_modules == "attention":
            return sorted({name.rpartition(".")[2] for name in linear if "attn" in name or "attention" in name})
        wanted = [self.target_modules] if isinstance(self.target_modules, str) else list(self.target_modules)
        there = sorted({name.rpartition(".")[2] for name in linear})
        for name in wanted:
            if not any(layer == name or layer.endswith(f".{name}") for layer in linear):
                raise ValueError(
                    f"lora.target_modules: the model has no linear layer {name!r}. Fix: all-linear, attention, or some "
                    f"of {', '.join(there)}"
                )
        return wanted


def lora_check(settings: Mapping[str, Any]) -> list[str]:
    """Ranks and scales that can't work, layers that are none, and quantisation without what it needs."""
    problems = [
        f"{name}: must be positive (got {settings[name]}). Fix: {name}={usual} is usual"
        for name, usual in (("r", 16), ("alpha", 32))
        if settings[name] <= 0
    ]
    targets = settings.get("target_modules", "all-linear")
    if not targets or (not isinstance(targets, str) and not all(targets)):
        problems.append(
            f"target_modules: names no layer (got {targets!r}). Fix: use one of {', '.join(KINDS)}, or names"
        )
    for name in [targets] if isinstance(targets, str) else targets:
        kind = name.strip().lower().replace("_", "-").replace(" ", "-")
        if kind in KINDS and targets != kind:
            problems.append(f"target_modules: no layer has that name (got {targets!r}). Fix: target_modules={kind}")
    if settings.get("quantize"):
        from importlib.util import find_spec  # here, so that this function stands alone

        if settings.get("between") != "stack":
            problems.append("quantize: quantised weights take adapters beside them only. Fix: between=stack")
        if find_spec("bitsandbytes") is None:
            problems.append("quantize: needs a package. Fix: pip install 'r1flow[qlora]' on a machine with a GPU")
    return problems


def has_adapters(model: Any) -> bool:
    """Whether `Lora.wrap` made this model."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """All that training changes, for a checkpoint: the adapters and what is trained beside them, else everything."""
    if not any(".lora_" in name for name, _ in module.named_parameters()):
        return module.state_dict()
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def load_trained_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Continue from `trained_state` of a module that was built alike.

    Raises:
        ValueError: other parameters.
    """
    mine = trained_state(module)
    if differing := sorted(mine.keys() ^ tensors.keys()):
        raise ValueError(f"the checkpoint has other parameters: {differing[0]} is only on one side")
    for name, parameter in mine.items():
        parameter.copy_(tensors[name])


@contextmanager
def policy_off(model: Any) -> Iterator[Any]:
    """The model that the stage started from: without the adapter that is trained, with those frozen before it.

    Raises:
        ValueError: a model without adapters has no such reference.
    """
    if not has_adapters(model):
        raise ValueError("a model without LoRA adapters cannot be its own reference. Fix: pass a copy of it")
    layers = [module for module in model.modules() if hasattr(module, "lora_A") and POLICY in module.scaling]
    scales = [layer.scaling[POLICY] for layer in layers]
    try:
        for layer in layers:
            layer.scaling[POLICY] = 0.0
        yield model
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling[POLICY] = scale


@torch.no_grad()
def merged_state(model: Any, plain: Mapping[str, Tensor] | None = None) -> tuple[Any, dict[str, Tensor]]:
    """(the plain model, its state with all adapters added into the weights); the model itself is left as it is.

    Merging in place and undoing it would not give back the same weights, bit for bit.

    Args:
        plain: the frozen weights, where the model holds them quantised.
    """
    base = model.get_base_model()
    deltas: dict[str, Tensor] = {}
    for name, module in base.named_modules():
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer"):
            for adapter in module.active_adapters:
                if adapter in module.lora_A:
                    delta = module.get_delta_weight(adapter).float()
                    key = f"{name}.weight"
                    deltas[key] = deltas[key] + delta if key in deltas else delta
    state: dict[str, Tensor] = {}
    for key, tensor in (base.state_dict() if plain is None else plain).items():
        if ".lora_" in key:
            continue
        name = key.replace(".base_layer.", ".")
        delta = deltas.pop(name, None)
        state[name] = tensor if delta is None else (tensor.float() + delta.to(tensor.device)).to(tensor.dtype)
    if deltas:
        raise ValueError(f"adapters of a kind that cannot be merged: {', '.join(deltas)}")
    return base, state
