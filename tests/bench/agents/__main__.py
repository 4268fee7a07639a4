"""What waiting for tools costs: the same episodes with an instant tool and with one that sleeps.

    python -m tests.bench.agents [--delay 0.05] [--episodes 64] [--samples 4] [--rounds 3]

Prints JSON: medians of seconds, and the ratio. The completions of both are compared too.
"""

import argparse
import json
import statistics
import time

import torch

from components.environments.protocol import Step
from components.models.decoder import make_decoder
from components.rollout.protocol import Request
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine
from tests.rollout.agents import make_tokenizer


class Sleeper:
    """A tool that answers a few tokens, after a while."""

    stop, wrapper = ("</tool>",), ("<result>", "</result>")
    asynchronous, seconds = True, 60.0

    def __init__(self, delay):
        self.delay = delay

    def reset(self, task):
        return self

    def step(self, text):
        if self.delay:
            time.sleep(self.delay)
        return Step("12", info={"calls": 1.0})


def policy():
    """A tiny random model that calls a tool now and then."""
    import transformers

    tokenizer = make_tokenizer("chatml")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.12,
    )
    decoder = make_decoder(transformers.LlamaForCausalLM(config).eval())
    with torch.no_grad():
        direction = decoder.model.model.embed_tokens.weight.mean(0).sign()
        decoder.head[tokenizer.convert_tokens_to_ids("</tool>")] += 0.45 * direction
    return decoder, tokenizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--episodes", type=int, default=64, help="at one time")
    parser.add_argument("--samples", type=int, default=4, help="times as many in all")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    decoder, tokenizer = policy()
    engine = TorchEngine(decoder, tokenizer, max_batch=given.episodes)
    requests = [
        Request((9 + i % 50, 20, 30 + i % 7), tuple(range(100 * i, 100 * i + given.samples)))
        for i in range(given.episodes)
    ]
    seconds = {0.0: [], given.delay: []}
    results = {}
    for _ in range(given.rounds):
        for delay, times in seconds.items():
            began = time.perf_counter()
            results[delay] = engine.generate(requests, Sampling(given.tokens), Sleeper(delay))
            times.append(time.perf_counter() - began)
    flat = [c for group in results[0.0] for c in group]
    instant, slow = (statistics.median(times) for times in seconds.values())
    print(
        json.dumps(
            {
                "episodes": len(flat),
                "at_one_time": given.episodes,
                "tokens": sum(len(c.tokens) for c in flat),
                "calls": sum(c.info.get("calls", 0) for c in flat),
                "instant_s": round(instant, 3),
                "slow_s": round(slow, 3),
                "ratio": round(slow / instant, 3),
                "same": results[0.0] == results[given.delay],
            }
        )
    )


if __name__ == "__main__":
    main()
