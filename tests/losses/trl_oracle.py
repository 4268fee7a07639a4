"""TRL's own GRPOTrainer as an oracle: its code, run on log-probabilities, rewards and masks of a test's choosing.

The trainer is real, made by TRL from a GRPOConfig; only what would need a language model is replaced: the
log-probabilities it computes, and what it samples.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer


def toy_model(folder: Path) -> Path:
    """A model directory that trainers can load, and reload as reference; its outputs are never used."""
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="<pad>"))
    sizes = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=3, **sizes)).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    return folder


class Trl:
    """One configured trainer.

    Args:
        model: what `toy_model` wrote.
        rollouts, group: per device batch size and num_generations.
        config: any of GRPOConfig's fields.
    """

    def __init__(self, model: Path, *, rollouts: int, group: int, max_length: int, **config: Any) -> None:
        logging.getLogger("trl").setLevel(logging.ERROR)
        fixed = {"output_dir": str(model / "out"), "report_to": [], "use_cpu": True, "bf16": False}
        batch = {"per_device_train_batch_size": rollouts, "num_generations": group, "max_completion_length": max_length}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer = GRPOTrainer(
                model=LlamaForCausalLM.from_pretrained(model),
                reward_funcs=lambda completions, **_: self._reward,
                args=GRPOConfig(**{**fixed, **batch, "save_strategy": "no", "gradient_checkpointing": False, **config}),
                train_dataset=Dataset.from_dict({"prompt": ["a"] * rollouts}),
                processing_class=PreTrainedTokenizerFast.from_pretrained(model),
            )
        self.trainer.model.train()
        self.trainer.current_gradient_accumulation_steps = self.trainer.args.gradient_accumulation_steps
        self._reward: list[float] = []

    def loss(self, logp: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, **more: Any) -> Tensor:
        """TRL's loss of one micro-batch of right-padded completions; differentiable in ``logp``."""
        return self.compute(logp, self.inputs(old, advantage, mask, **more))

    def compute(self, logp: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """The loss alone, of `inputs`."""
        self.trainer.use_vllm = "importance_sampling_ratio" in inputs
        self._log_probabilities(logp)
        return self.trainer._compute_loss(self.trainer.model, inputs)

    def inputs(
        self,
        old: Tensor,
        advantage: Tensor,
        mask: Tensor,
        *,
        ref: Tensor | None = None,
        engine_ratio: Tensor | None = None,
        total_tokens: int | None = None,
    ) -> dict[str, Tensor]:
        """What TRL's loss takes.

        Args:
            mask: 1 for the policy's tokens; 0 inside a completion is tool output to TRL, at its end padding.
            engine_ratio: what `score` returns as importance_sampling_ratio.
            total_tokens: tokens of the whole accumulated batch; those of this one if left out.
        """
        ids = torch.full(mask.shape, 2)
        completion = mask.flip(-1).cumsum(-1).flip(-1) > 0
        inputs = {
            "prompt_ids": torch.full((len(ids), 1), 2),
            "prompt_mask": torch.ones(len(ids), 1, dtype=torch.long),
            "completion_ids": ids,
            "completion_mask": completion.long(),
            "tool_mask": mask.long(),
            "advantages": advantage,
            "old_per_token_logps": old,
            "num_items_in_batch": mask.sum() if total_tokens is None else torch.tensor(total_tokens),
        }
        if ref is not None:
            inputs["ref_per_token_logps"] = ref
        if engine_ratio is not None:
            inputs["importance_sampling_ratio"] = engine_ratio
        return inputs

    def score(self, reward: Sequence[float], old: Tensor, engine: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """What TRL makes of sampled completions: "advantages", and "importance_sampling_ratio" of the engine.

        Args:
            mask: True up to the end of each completion.
            old, engine: log-probabilities of the trainer and of the sampling engine.
        """
        lengths = mask.sum(-1).tolist()
        prompts, completions = [[2]] * len(lengths), [[2] * n for n in lengths]
        sampled = [row[:n].tolist() for row, n in zip(engine, lengths, strict=True)]
        texts = ["a"] * len(lengths)
        self._reward = list(reward)
        self.trainer.use_vllm = True
        self.trainer._generate = lambda _: (prompts, completions, None, texts, sampled, {}, None, None)
        self._log_probabilities(old)
        return self.trainer._generate_and_score_completions([{"prompt": "a"}] * len(lengths))

    def _log_probabilities(self, logp: Tensor) -> None:
        entropy = torch.zeros_like(logp)
        self.trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logp, entropy, None)
