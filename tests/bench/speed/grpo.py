"""A whole GRPO step – rollouts, rewards, update – beside TRL's GRPOTrainer.

Same checkpoint, prompts, group, limit, learning rate, one update a step, one thread. The reward depends on the length
of the text, so that no group is without signal and both train on every one. Our step runs between TRL's, inside the
same `train()`.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import process_time
from typing import Any

from subjects import Subject
from timing import Figure

from components.losses import advantage, aggregate, ratio, surrogate
from components.losses.policy import Algorithm
from components.models.decoder import make_decoder
from components.models.learner import Learner
from components.models.optim import AdamW
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine
from components.runtime import Peers
from components.stages.rl_update import Updater
from components.stages.shared import Policy
from components.types import Group, Score

LR, GROUP = 1e-6, 8  # a rate that leaves the policy as it is: every step is the same work


def measure(subject: Subject, repeats: int) -> Iterator[Figure]:
    """CPU-seconds of TRL's step over ours."""
    prompts, micro = (32, 256) if subject.small else (2, 8)
    step, warm = our_step(subject, prompts), int(subject.small)
    mine, theirs = (times[warm:] for times in trl_steps(subject, prompts, micro, repeats + warm, step))
    ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
    yield Figure(
        f"GRPO step {subject.name}, {prompts} prompts × {GROUP}, against TRL",
        median(ratios),
        must=subject.must_step,
        detail={
            "ours_s": round(median(mine), 3),
            "trl_s": round(median(theirs), 3),
            "ratios": [round(min(ratios), 2), round(max(ratios), 2)],
        },
    )


def score(text: str) -> float:
    return len(text) % 10 / 10


def our_step(subject: Subject, prompts: int) -> Callable[[], None]:
    model = copy.deepcopy(subject.model).requires_grad_(True)
    decoder = make_decoder(model)
    engine = TorchEngine(decoder, subject.tokenizer, max_batch=prompts * GROUP)
    policy = Policy(model, subject.tokenizer, decoder, engine)
    algorithm = Algorithm(
        advantage=advantage.group_norm,
        ratio=ratio.token,
        surrogate=partial(surrogate.clip, eps_low=0.2, eps_high=0.2),
        aggregate=aggregate.token_mean,
    )
    updater = Updater(
        algorithm=algorithm,
        decoder=decoder,
        reference=None,
        learner=Learner(model.named_parameters(), AdamW(model.named_parameters(), lr=LR), lambda step: 1.0),
        peers=Peers(),
        minibatches=1,
        beta=0.0,
        temperature=1.0,
        max_length=subject.limit,
        micro_batch_tokens=8192 if subject.small else 1024,
        pad=subject.tokenizer.pad_token_id,
    )
    number = 0

    def step() -> None:
        nonlocal number
        first = number * prompts % len(subject.tasks)
        tasks = (list(subject.tasks) * 2)[first : first + prompts]
        rollouts = policy.sample(tasks, GROUP, Sampling(subject.limit), None, (0, "bench", number))
        groups = [
            Group(task, group, tuple(Score(score(r.response)) for r in group))
            for task, group in zip(tasks, rollouts, strict=True)
        ]
        model.train()
        updater(groups, len(groups))
        model.eval()
        number += 1

    return step


def trl_steps(
    subject: Subject, prompts: int, micro: int, steps: int, between: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """(our seconds, TRL's seconds) of each step."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    mine: list[float] = []
    theirs: list[float] = []

    class InTurns(TrainerCallback):
        def on_step_begin(self, *given: Any, **named: Any) -> None:
            began = process_time()
            between()
            mine.append(process_time() - began)
            self.began = process_time()

        def on_step_end(self, *given: Any, **named: Any) -> None:
            theirs.append(process_time() - self.began)

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [score(text) for text in completions]

    texts = [subject.tokenizer.decode(p) for p in subject.prompts(min(len(subject.tasks), prompts * steps))]
    texts = (texts * (prompts * steps // len(texts) + 1))[: prompts * steps]
    logging.getLogger("trl").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = GRPOConfig(
            output_dir=folder,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=False,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=prompts * GROUP // micro,
            num_generations=GROUP,
            max_completion_length=subject.limit,
            max_steps=steps,
            learning_rate=LR,
            beta=0.0,
            loss_type="dapo",
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            shuffle_dataset=False,
        )
        trainer = GRPOTrainer(
            model=copy.deepcopy(subject.model).requires_grad_(True),
            reward_funcs=reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=copy.deepcopy(subject.tokenizer),
            callbacks=[InTurns()],
        )
        trainer.train()
    return mine, theirs
