"""A judge's server in a process of its own, and judges that ask it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from components.rewards.endpoint import Endpoint
from components.rewards.judge import Judge


@dataclass(frozen=True)
class Server:
    url: str
    log: Path

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def endpoint(self, model: str, **settings: Any) -> Endpoint:
        given = {"backoff_s": 0.05, "retries": 2, "seconds": 20.0, "key_env": "JUDGE_KEY", **settings}
        return Endpoint(url=self.url, model=model, **given)

    def judge(self, model: str, *, settings: dict[str, Any] | None = None, **figures: Any) -> Judge:
        return Judge(model=self.endpoint(model, **(settings or {})), **figures)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    log = tmp_path / "requests.jsonl"
    command = [sys.executable, str(Path(__file__).with_name("judge_server.py")), str(log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield Server(f"http://127.0.0.1:{process.stdout.readline().strip()}/v1", log)
    process.kill()
    process.wait()
