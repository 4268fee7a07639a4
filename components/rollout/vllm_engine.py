"""vLLM as the rollout engine: in this process, or a server reached over HTTP. Optional: ``pip install vllm``.

Written against vLLM's documented interface (`LLM.generate` with token prompts, ``/v1/completions`` with
``return_token_ids``, ``collective_rpc("reload_weights")``); this code has not been run on a GPU. What the server's side
of the protocol promises is tested with a local server that speaks it.

Completions depend on prompt, seed, weights and settings, but vLLM's kernels may round differently in another batch, so
that they are not equal to the bit from call to call. New weights go through a folder, which a server has to see.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import Any, Literal, Protocol

from components.rollout import turns
from components.rollout.handover import Handover
from components.rollout.protocol import Completion, Request, check_requests
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import end_ids

Written = list[tuple[Sequence[int], Sequence[float]]]


class Backend(Protocol):
    """Where vLLM runs."""

    def write(self, orders: Sequence[turns.Order], sampling: Sampling, ends: Sequence[int]) -> Written: ...

    def reload(self, folder: Path) -> None: ...


class VllmEngine:
    """`Engine` over vLLM.

    Args:
        mode: "offline" runs vLLM in this process, "server" sends requests to ``url``.
        url: of a server started with ``VLLM_SERVER_DEV_MODE=1 vllm serve DIR --logprobs-mode processed_logprobs``; DIR
            is any folder with this model's shape and tokenizer, weights are sent before the first request.
        model_name: what the server calls its model; None takes the only one it has.
        key_env: environment variable with the server's API key.
        concurrency: requests under way at one time.
        timeout_s: per request.
        folder: where weights are handed over; on a file system that the server sees.
        options: further arguments of `vllm.LLM` (``gpu_memory_utilization``, ``tensor_parallel_size``, …).
        eos_ids: as in `TorchEngine`.

    Raises:
        ImportError: offline without vLLM.
        ConnectionError: no server at ``url``.
    """

    own_weights = True  # sampling doesn't touch the trainer's

    def __init__(
        self,
        decoder: Any,
        tokenizer: Any,
        *,
        mode: Literal["offline", "server"] = "offline",
        url: str = "http://127.0.0.1:8000",
        model_name: str | None = None,
        key_env: str | None = None,
        concurrency: int = 256,
        timeout_s: float = 600.0,
        folder: str | None = None,
        options: Mapping[str, Any] | None = None,
        eos_ids: Sequence[int] | None = None,
    ) -> None:
        self.decoder, self.tokenizer = decoder, tokenizer
        self.eos_ids = end_ids(decoder.model, tokenizer) if eos_ids is None else tuple(eos_ids)
        self._own = None if folder else tempfile.TemporaryDirectory(prefix="r1flow-vllm-")
        self.folder = Path(folder or self._own.name)  # type: ignore[union-attr]
        self._publish(decoder.model.state_dict())
        self.backend: Backend
        if mode == "server":
            key = os.environ.get(key_env, "") if key_env else ""
            self.backend = Server(url, model_name, key, concurrency, timeout_s)
            self.backend.reload(self.folder)
        else:
            self.backend = Offline(self.folder, options or {})

    def generate(
        self, prompts: Sequence[Request], sampling: Sampling, environment: Any = None
    ) -> list[list[Completion]]:
        """See `Engine.generate`."""
        vocabulary = self.decoder.head.shape[0]
        check_requests(prompts, sampling, vocabulary, self.decoder.model.config.max_position_embeddings)
        acts = environment is not None and (environment.stop or getattr(environment, "chat", False))
        handover = Handover(self.tokenizer, environment, vocabulary, self.eos_ids) if acts else None

        def write(orders: Sequence[turns.Order]) -> Written:
            return self.backend.write(orders, sampling, self.eos_ids)

        return turns.sample(write, prompts, sampling, handover, self.eos_ids)

    def load(self, weights: Mapping[str, Any]) -> None:
        """Hand these weights over; the engine samples from them from now on."""
        self._publish(weights)
        self.backend.reload(self.folder)

    def _publish(self, weights: Mapping[str, Any]) -> None:
        if any(".lora_A." in name or ".base_layer." in name for name in weights):
            raise ValueError("the vllm engine takes whole weights, not adapters. Fix: lora=null, or engine=torch")
        self.decoder.model.save_pretrained(self.folder, state_dict=dict(weights))
        self.tokenizer.save_pretrained(self.folder)


class Offline:
    """vLLM in this process."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        try:
            from vllm import LLM  # pyright: ignore[reportMissingImports] – optional, and takes a GPU
        except ImportError as error:
            raise ImportError("engine=vllm needs vLLM: pip install vllm, or engine=torch") from error
        self._llm = LLM(model=str(folder), logprobs_mode="processed_logprobs", **options)

    def write(self, orders: Sequence[turns.Order], sampling: Sampling, ends: Sequence[int]) -> Written:
        from vllm import SamplingParams, TokensPrompt  # pyright: ignore[reportMissingImports]

        settings = [
            SamplingParams(logprobs=0, ignore_eos=True, **_shared(order, sampling, ends), detokenize=True)
            for order in orders
        ]
        given = [TokensPrompt(prompt_token_ids=list(order.prefix)) for order in orders]
        written: Written = []
        for answer in self._llm.generate(given, settings, use_tqdm=False):
            (output,) = answer.outputs
            tokens = list(output.token_ids)
            written.append((tokens, [float(at[t].logprob) for t, at in zip(tokens, output.logprobs, strict=True)]))
        return written

    def reload(self, folder: Path) -> None:
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        self._llm.reset_prefix_cache()


class Server:
    """vLLM behind its OpenAI-compatible server, one request per sequence."""

    def __init__(self, url: str, model_name: str | None, key: str, concurrency: int, timeout_s: float) -> None:
        self._url, self._key, self._timeout_s = url.rstrip("/"), key, timeout_s
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="vllm")
        self._model = model_name or self._ask("GET", "/v1/models")["data"][0]["id"]

    def write(self, orders: Sequence[turns.Order], sampling: Sampling, ends: Sequence[int]) -> Written:
        return list(self._pool.map(lambda order: self._write(order, sampling, ends), orders))

    def reload(self, folder: Path) -> None:
        kwargs = {"weights_path": str(folder.absolute())}
        self._ask("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})
        self._ask("POST", "/reset_prefix_cache", {})

    def _write(
        self, order: turns.Order, sampling: Sampling, ends: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[float]]:
        body = {"model": self._model, "prompt": list(order.prefix), "n": 1, "logprobs": 0, "return_token_ids": True}
        answer = self._ask("POST", "/v1/completions", {**body, "ignore_eos": True, **_shared(order, sampling, ends)})
        (choice,) = answer["choices"]
        if choice.get("token_ids") is None:
            raise RuntimeError(f"{self._url} returns no token ids: it has to be vLLM 0.11 or newer")
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """JSON in, JSON out. A connection that breaks is tried again: a completion is a function of its request."""
        data = None if body is None else json.dumps(body).encode()
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self._key}"} if self._key else {}),
        }
        for pause in (0.2, 1.0, 5.0, None):
            request = urllib.request.Request(self._url + path, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")[:500]
                hint = " Start it with VLLM_SERVER_DEV_MODE=1." if error.code == 404 else ""
                raise RuntimeError(f"{method} {self._url}{path}: HTTP {error.code}: {said}{hint}") from error
            except (OSError, json.JSONDecodeError) as error:
                if pause is None:
                    raise ConnectionError(f"no answer from vLLM at {self._url}{path}: {error}") from error
                sleep(pause)
        raise AssertionError


def _shared(order: turns.Order, sampling: Sampling, ends: Sequence[int]) -> dict[str, Any]:
    """Settings that `SamplingParams` and ``/v1/completions`` have in common.

    End tokens are given as stop tokens: what ends a turn is the engine's to say, not the model folder's.
    """
    return {
        "seed": order.seed,
        "max_tokens": order.limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop_token_ids": [*ends, *order.stop_ids],
        "stop": list(order.stop_texts),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }


def vllm_engine_check(settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with the settings, told before anything is loaded."""
    if settings.get("mode", "offline") == "offline" and find_spec("vllm") is None:
        return ["mode: vLLM is not installed here. Fix: pip install vllm, engine.mode=server, or engine=torch"]
    return []
