"""``r1flow plan --measure``: seconds of real sampling and training, and what follows for stages never built here.

The model is the run's own (the newest one of the same source in the store, else a fresh one), the batch shapes are
those that one process of the RL and SFT stages sees. How long answers will be is not known before there are any:
estimates reach from a quarter of the limit to all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from components.artifacts import ArtifactStore
from flows.build import build
from flows.estimate import LOADED, Estimate
from flows.run_only import key_settings
from flows.stage import StageSpec

Clock = Callable[[], float]
START_S = 1.3  # of a stage's processes until they work, and of writing what it made
LENGTHS = (0.25, 0.5, 1.0)  # of max_new_tokens: shortest, middle and longest that answers may be on average
EXAMPLE_TOKENS = (20.0, 45.0, 120.0)  # of a supervised example with its prompt, where none can be looked at


@dataclass(frozen=True)
class Rates:
    """What one process of this machine does with this model, in seconds of CPU where it runs on one: what others take
    of the machine meanwhile is told apart.

    Attributes:
        sampled_s, trained_s: tokens a second, sampled in a batch of the RL stage's size and trained on in one of SFT's.
        parameters: weights of the model.
        load_s: seconds until it is loaded.
        memory: bytes of the process at its peak.
        counts: tasks by split and examples by file of the curated data.
        example: tokens of an example: least, mean, most likely at most.
        crowded: seconds on the clock for a second of CPU, 1 on an idle machine.
    """

    sampled_s: float
    trained_s: float
    parameters: float
    load_s: float
    memory: float
    counts: Mapping[str, float]
    example: tuple[float, float, float]
    crowded: float = 1.0


def calibrate(
    specs: Sequence[StageSpec], store: ArtifactStore, allow: Sequence[str], *, seconds: float = 3.0
) -> Rates | None:
    """Measure the pipeline's model: ``seconds`` of sampling and as much of training. None without a model to measure.

    Raises: whatever loading the data or the model raises.
    """
    base = next((spec for spec in specs if "model" in spec.settings and spec.target.endswith(".base_model")), None)
    if base is None:
        return None
    import torch  # heavy, as all below: paid by --measure only

    import flows.launch.loaded  # noqa: F401 – what the workers of a run have loaded before they start
    from components.models.decoder import make_decoder
    from components.rng import derive

    torch.set_num_threads(max(1, int(base.launcher.get("threads") or 1)))
    data = next((spec for spec in specs if spec.target.endswith(".curate")), None)
    corpus = None if data is None else build(data.settings["source"], allow=allow).load(data.seed)
    began, wall = time.process_time(), time.perf_counter()
    model, tokenizer = _model(base, store, corpus, allow)
    load_s = time.process_time() - began
    clock = time.process_time if next(model.parameters()).device.type == "cpu" else time.perf_counter
    processes = max(1, int(base.launcher.get("processes") or 1))
    rl = next((spec for spec in specs if spec.target.endswith(".rl")), None)
    sft = next((spec for spec in specs if spec.target.endswith(".sft")), base)
    decoder = make_decoder(model)
    sampled_s = 0.0
    if rl is not None:
        sampled_s = _sampling(rl, tokenizer, decoder, processes, allow, seconds, clock)
    batch = max(1, int(sft.settings.get("batch_size") or 32) // processes)
    example = _example_tokens(corpus, tokenizer)
    optimizer = build(sft.settings["optimizer"], allow=allow)
    trained_s = _training(model, decoder, optimizer, batch, int(example[1]), seconds, clock, derive(0, "calibrate"))
    crowded = (time.perf_counter() - wall) / max(1e-3, time.process_time() - began)
    parameters = float(sum(p.numel() for p in model.parameters()))
    return Rates(
        sampled_s or trained_s, trained_s, parameters, load_s, _peak(), _counts(corpus), example, max(1.0, crowded)
    )


def _model(base: StageSpec, store: ArtifactStore, corpus: Any, allow: Sequence[str]) -> tuple[Any, Any]:
    from components.models.load import load_model

    for row in reversed(store.ls(base.name)):
        same = (row.get("spec", {}).get("settings") or {}).get("model") == key_settings(base.settings["model"])
        if same and not row["problem"] and (Path(row["path"]) / "model").is_dir():
            return load_model(Path(row["path"]) / "model")
    lines = list(getattr(corpus, "pretrain", None) or ["1 + 2 = 3 ."])[:4000]
    return build(base.settings["model"], allow=allow).build(lines, base.seed)


def _sampling(
    rl: StageSpec, tokenizer: Any, decoder: Any, processes: int, allow: Sequence[str], seconds: float, clock: Clock
) -> float:
    """Tokens a second of sampling, in the batch that one process has in a step."""
    from components.rollout.sampling import Sampling
    from components.stages.shared import Policy
    from components.types import Message, Task

    group = int(rl.settings.get("group_size") or 8)
    prompts = max(1, sum(rl.settings["quotas"].values()) // processes)
    policy = Policy(None, tokenizer, decoder, build(rl.settings["engine"], allow=allow)(decoder, tokenizer))
    environment = build(rl.settings["environment"], allow=allow)
    tasks = [Task(f"t{i}", (Message("user", f"{i} + {i + 2} = ?"),), "0", "exact") for i in range(prompts)]
    limit = int(rl.settings.get("max_new_tokens") or 80)

    def sample(tokens: int, number: int) -> tuple[int, float]:
        began = clock()
        found = policy.sample(tasks, group, Sampling(max_new_tokens=tokens), environment, (0, "calibrate", number))
        return sum(len(r.tokens) for rollouts in found for r in rollouts), clock() - began

    sample(2, 0)  # kernels, caches
    _, taken = sample(4, 1)
    tokens = max(4, min(limit, int(4 * seconds / max(taken, 1e-3))))
    made, spent = 0, 0.0
    number = 2
    while spent < seconds / 2 or not made:
        more, taken = sample(tokens, number)
        made, spent, number = made + more, spent + taken, number + 1
    return made / spent


def _training(
    model: Any,
    decoder: Any,
    optimizer: Callable[..., Any],
    batch: int,
    length: int,
    seconds: float,
    clock: Clock,
    seed: int,
) -> float:
    """Tokens a second of training: forward, backward and the optimiser's step."""
    import torch

    from components.models.chat import Encoded
    from components.models.learner import Learner
    from components.stages.sft import example_loss

    learner = Learner(model.named_parameters(), optimizer(model.named_parameters(), lr=1e-9), lambda step: 1.0)
    draw = torch.Generator().manual_seed(seed % 2**31)
    size = int(model.get_input_embeddings().weight.shape[0])
    half = max(1, length // 2)

    def example() -> Encoded:
        ids = torch.randint(0, size, (2 * half,), generator=draw).tolist()
        return Encoded(tuple(ids[:half]), tuple(ids[half:]), (True,) * half)

    examples = [example() for _ in range(batch)]
    loss = partial(example_loss, decoder, examples, batch * half, 0)
    learner.step([loss])
    steps, began = 0, clock()
    while clock() - began < seconds:
        learner.step([loss])
        steps += 1
    return steps * batch * 2 * half / (clock() - began)


def _example_tokens(corpus: Any, tokenizer: Any) -> tuple[float, float, float]:
    """Tokens of a supervised example with its prompt: of a few hundred of the data's, else a guess."""
    found = [e for name in ("cold_start", "general") for e in (getattr(corpus, name, None) or ())[:200]]
    if not found:
        return EXAMPLE_TOKENS
    texts = ["".join(m.content for m in e.messages) + e.response for e in found]
    mean = sum(len(ids) + 6 for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]) / len(texts)
    return mean, mean, mean


def _counts(corpus: Any) -> dict[str, float]:
    if corpus is None:
        return {}
    files = {name: len(getattr(corpus, name, None) or ()) for name in ("cold_start", "general", "preferences")}
    return {
        **{split: float(len(tasks)) for split, tasks in corpus.tasks.items()},
        **{k: float(v) for k, v in files.items()},
    }


def _peak() -> float:
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def from_rates(spec: StageSpec, rates: Rates) -> Estimate:
    """What a stage will take at these rates."""
    processes = max(1, int(spec.launcher.get("processes") or 1))
    kind = spec.target.rpartition(".")[2]
    load_s = rates.load_s if kind in _TRAINING | _SAMPLING else 0.0
    low, middle, high = (START_S + load_s + work / processes for work in _work(spec, rates))
    weights = 4 * rates.parameters if kind in _TRAINING else 1e5
    crowded = max(LOADED, rates.crowded)
    return Estimate(low / LOADED, middle, high * crowded, weights, rates.memory * processes, "calibrated")


_TRAINING = {"base_model", "sft", "rl", "dpo", "reward_model"}
_SAMPLING = {"profile", "evaluate", "reject", "traces"}


def _work(spec: StageSpec, rates: Rates) -> list[float]:
    """Seconds of one process, in the least, the middle and the most likely case."""
    get, held = spec.settings.get, rates.counts.get
    limit = float(get("max_new_tokens") or 80)
    sampled = [share * limit / rates.sampled_s for share in LENGTHS]  # of one answer
    trained = [share * limit / rates.trained_s for share in LENGTHS]
    learned = [tokens / rates.trained_s for tokens in rates.example]  # of one example
    kind = spec.target.rpartition(".")[2]
    if kind == "rl":
        rollouts = get("steps", 1) * sum(get("quotas", {}).values()) * (get("group_size") or 8)
        extra = 4 / 3 if get("beta") else 1.0  # the reference's forward pass
        shares = (0.5, 0.75, 1.0)  # of groups with signal, which alone are trained on
        return [rollouts * (s + t * extra * share) for s, t, share in zip(sampled, trained, shares, strict=True)]
    if kind == "sft":
        files = [file.removesuffix(".jsonl") for names in (get("files") or {}).values() for file in names]
        kept = 0.8 * float(held("fresh") or 0) if "kept" in files else 0.0
        n = min(get("max_examples") or float("inf"), sum(float(held(file) or 0) for file in files) + kept)
        return [get("epochs", 2) * n * one for one in learned]
    if kind in ("dpo", "reward_model"):
        n = 2 * float(held("preferences") or 0) or 4000.0
        return [get("epochs", 1) * n * one for one in learned]
    if kind == "base_model":
        tokens = float(get("steps", 0) * get("batch_size", 0) * get("context", 0))
        pretrained = "path" in (get("model") or {})
        return [0.0 if pretrained else tokens / rates.trained_s] * 3
    if kind in _SAMPLING:
        split = {"profile": "profile", "evaluate": str(get("split", "test"))}.get(kind, "fresh")
        tasks = float(held(split) or 500)
        tasks = min(float(get("prompts", 4000)), tasks) if kind in ("reject", "traces") else tasks
        return [tasks * (get("samples", 4) + (kind == "evaluate")) * one for one in sampled]
    return [0.5, 2.0, 10.0]
