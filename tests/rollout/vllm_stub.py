"""A server that speaks the part of vLLM's protocol that the engine uses, over a model of ours."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from components.rollout.protocol import Request
from components.rollout.sampling import Sampling
from components.rollout.torch_engine import TorchEngine


class Stub:
    """Answers requests one at a time; ``seen`` has every request, ``fail_next`` breaks so many connections."""

    def __init__(self, decoder: Any, tokenizer: Any) -> None:
        self.decoder, self.tokenizer = decoder, tokenizer
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.fail_next = 0
        self.lock = threading.Lock()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.seen.append((path, body))
        if path == "/v1/models":
            return 200, {"data": [{"id": "policy"}]}
        if path == "/v1/completions":
            return 200, self.complete(body)
        if path == "/collective_rpc" and body["method"] == "reload_weights":
            weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
            missing, unexpected = self.decoder.model.load_state_dict(weights, strict=False)
            assert not unexpected and set(missing) <= {"lm_head.weight"}
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache":
            return 200, None
        return 404, {"error": f"no {path}"}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["n"] == 1 and body["return_token_ids"] and body["ignore_eos"] and body["model"] == "policy"
        names = ("temperature", "top_p", "top_k", "min_p")
        sampling = Sampling(body["max_tokens"], **{name: body[name] for name in names})
        engine = TorchEngine(self.decoder, self.tokenizer, eos_ids=body["stop_token_ids"])
        with torch.no_grad():
            ((completion,),) = engine.generate([Request(tuple(body["prompt"]), (body["seed"],))], sampling)
        tokens, finish = list(completion.tokens), completion.finish
        for n in range(1, len(tokens) + 1):
            if any(stop in self.tokenizer.decode(tokens[:n]) for stop in body["stop"]):
                tokens, finish = tokens[:n], "stop"
                break
        logprobs = {"token_logprobs": list(completion.logp[: len(tokens)])}
        return {"choices": [{"token_ids": tokens, "logprobs": logprobs, "finish_reason": finish}]}


@contextmanager
def serving(stub: Stub) -> Iterator[str]:
    """Address of the stub on the loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: dict[str, Any]) -> None:
            with stub.lock:
                if stub.fail_next:
                    stub.fail_next -= 1
                    self.close_connection = True
                    return
                status, value = stub.answer(self.path, body)
            text = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
