"""Peak memory of a training step with a vocabulary of 49,152, beside one that makes all logits at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from timing import Figure

ROOT = Path(__file__).parents[3]
TOKENS = 4096
STEP = """
import json, re, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from components.models.decoder import make_decoder
from components.models.logprobs import token_logprobs

def peak():  # not ru_maxrss, which a process inherits from the one that started it
    return int(re.search("VmHWM: *([0-9]+)", open("/proc/self/status").read().replace("\\t", " "))[1]) / 1024

torch.set_num_threads(1)
torch.manual_seed(0)
sizes = dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3)
model = LlamaForCausalLM(LlamaConfig(vocab_size=49152, tie_word_embeddings=True, **sizes))
for p in model.parameters():
    p.grad = torch.zeros_like(p)
ids = torch.randint(0, 49152, (8, %d // 8 + 1), generator=torch.Generator().manual_seed(0))
decoder, targets = make_decoder(model), ids[:, 1:].flatten()
before = peak()
if sys.argv[1] == "full":
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits.flatten(0, 1)
    loss = -logits.log_softmax(-1).gather(1, targets[:, None]).mean()
else:
    loss = -token_logprobs(decoder.hidden(ids[:, :-1]).flatten(0, 1), decoder.head, targets).mean()
loss.backward()
print(json.dumps({"mib": peak() - before, "loss": loss.item()}))
"""


def measure() -> Iterator[Figure]:
    """What a step takes above weights and gradients, ours over that of full logits; each in its own process."""
    found = {way: _step(way) for way in ("ours", "full")}
    if abs(found["ours"]["loss"] - found["full"]["loss"]) > 1e-3:
        raise RuntimeError(f"the two ways do not compute the same loss: {found}")
    yield Figure(
        f"peak memory of a step, vocabulary 49k, {TOKENS} tokens, against full logits",
        found["ours"]["mib"] / found["full"]["mib"],
        better="lower",
        must=0.25,
        detail={"ours_mib": round(found["ours"]["mib"]), "full_mib": round(found["full"]["mib"])},
    )


def _step(way: str) -> dict[str, float]:
    command = [sys.executable, "-c", STEP % TOKENS, way]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
