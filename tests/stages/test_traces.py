"""Examples from a teacher behind a real HTTP server, and from the model itself."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from components.data.corpus import Corpus, write_corpus
from components.models.optim import AdamW
from components.refusal import refuses
from components.rewards.accuracy import Accuracy
from components.rewards.language import consistency
from components.rewards.response import take_apart
from components.rollout.torch_engine import TorchEngine
from components.runtime import Inputs, Interrupted, Out, StageArtifact
from components.stages.sft import sft
from components.stages.teacher import Lessons, Teacher, teacher_check
from components.stages.traces import traces
from components.types import Example, Message, Preference, Task
from tests.stages.conftest import artifact

SUMS = [Task(f"sum-{n}", (Message("user", f"{n}+{n}?"),), str(2 * n), "exact", "sums") for n in range(40)]
REQUESTS = [
    Task(f"{family}-{n}", (Message("user", f"how do i {verb} thing {n}?"),), None, family, family, 0, "general")
    for n in range(20)
    for family, verb in (("unsafe", "hurt"), ("benign", "fix"))
]


class Endpoint(BaseHTTPRequestHandler):
    """Doubles what it is asked for, in the manner of the model's name."""

    asked: list[dict[str, Any]]

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        question = body["messages"][-1]["content"]
        number = int((re.findall(r"\d+", question) or ["0"])[0])
        message = getattr(self, body["model"])(number, question)
        reply: dict[str, Any] = {"choices": [{"message": message, "finish_reason": "stop"}]}
        reply["usage"] = {"prompt_tokens": 10, "completion_tokens": 20}
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def tags(self, n: int, question: str) -> dict[str, str]:
        return {"content": f"<think>It is {n} twice.</think><answer>{2 * n}</answer>"}

    def boxes(self, n: int, question: str) -> dict[str, str]:
        return {"content": f"It is {n} twice, so \\boxed{{{2 * n}}}."}

    def reasons(self, n: int, question: str) -> dict[str, str]:
        return {"content": f"The answer is \\boxed{{{2 * n}}}.", "reasoning_content": f"It is {n} twice."}

    def errs(self, n: int, question: str) -> dict[str, str]:
        return self.tags(n if n % 2 else n + 1, question)

    def helps(self, n: int, question: str) -> dict[str, str]:
        return {"content": "sorry , i can not help" if "hurt" in question and n % 2 else f"turn screw {n} , then stop"}


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(address, what it was asked)"""
    handler = type("Own", (Endpoint,), {"asked": []})
    listener = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.server_port}/v1", handler.asked  # type: ignore[attr-defined]
    listener.shutdown()
    thread.join()


@pytest.fixture
def given(tmp_path: Path) -> Inputs:
    (tmp_path / "data").mkdir()
    write_corpus(Corpus({"train": [*SUMS, *REQUESTS]}), tmp_path / "data", {})
    return {"data": artifact(tmp_path / "data", "curate")}


def folder(tmp_path: Path, name: str, *, key: str = "k") -> Path:
    """As the store gives it to a stage."""
    path = tmp_path / "artifacts" / "cache" / name / f"{key}.partial"
    path.mkdir(parents=True, exist_ok=True)
    return path


def run(given: Inputs, path: Path, said: list[str] | None = None, **settings: Any) -> dict[str, float]:
    out = Out(path, "traces", 0, emit=lambda event: (said if said is not None else []).append(event.get("text", "")))
    return traces(given, out, accuracy=Accuracy(), language=consistency, **{"prompts": 12, "samples": 1, **settings})


def rows(path: Path, name: str, kind: Any) -> list[Any]:
    return [kind.from_json(json.loads(line)) for line in (path / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("model", "response"),
    [
        ("tags", "<think>It is {n} twice.</think><answer>{m}</answer>"),
        ("boxes", "<think>It is {n} twice, so \\boxed{{{m}}}.</think><answer>{m}</answer>"),
        ("reasons", "<think>It is {n} twice.</think><answer>{m}</answer>"),
    ],
)
def test_a_teachers_reply_is_brought_into_the_form(
    given: Inputs, tmp_path: Path, server: Any, model: str, response: str
) -> None:
    url, asked = server
    path = folder(tmp_path, "traces")
    metrics = run(given, path, teacher=Teacher(url=url, model=model))
    examples = rows(path, "examples.jsonl", Example)
    assert metrics["kept"] == len(examples) == 12
    for example in examples:
        n = int(example.messages[-1].content.split("+")[0])
        assert example.response == response.format(n=n, m=2 * n)
        assert [m.role for m in example.messages] == ["user"]  # the instruction was for the teacher
        assert example.source == "teacher/sums/0"
    assert {tuple(m["role"] for m in body["messages"]) for body in asked} == {("system", "user")}


def test_wrong_replies_are_left_out_and_counted(given: Inputs, tmp_path: Path, server: Any) -> None:
    path = folder(tmp_path, "traces")
    metrics = run(given, path, teacher=Teacher(url=server[0], model="errs"), prompts=40)
    assert (metrics["kept"], metrics["dropped/wrong"]) == (20, 20)
    counts = json.loads((path / "counts.json").read_text())
    assert counts == {"sampled": 40, "kept": 20, "pairs": 0, "dropped": {"wrong": 20}}


def test_what_was_paid_for_is_asked_once_and_the_cost_is_shown(given: Inputs, tmp_path: Path, server: Any) -> None:
    url, asked = server
    teacher = partial(Teacher, url=url, model="tags", price_in=1.0, price_out=10.0)
    said: list[str] = []
    first = run(given, folder(tmp_path, "traces"), said, teacher=teacher(), prompts=10)
    assert len(asked) == 10
    assert first["teacher/cost"] == pytest.approx((10 * 10 * 1.0 + 10 * 20 * 10.0) / 1e6)
    assert said[-1] == "teacher: 10 asked, 0 known before, 100 + 200 tokens, cost 0.0021"
    # A changed setting is another stage, but the same questions.
    again = run(given, folder(tmp_path, "traces", key="other"), said, teacher=teacher(concurrency=2), prompts=15)
    assert len(asked) == 15
    assert (again["teacher/asked"], again["teacher/cached"]) == (5, 10)
    assert said[-1].startswith("teacher: 5 asked, 10 known before")
    run(given, folder(tmp_path, "traces", key="hot"), teacher=teacher(temperature=1.0), prompts=10)
    assert len(asked) == 25  # another temperature is another question


def test_a_stopped_stage_asks_only_the_rest(given: Inputs, tmp_path: Path, server: Any) -> None:
    url, asked = server
    path = folder(tmp_path, "traces")
    stops = iter([True])
    out = Out(path, "traces", 0, stop_requested=lambda: next(stops, False))
    settings = {"accuracy": Accuracy(), "language": consistency, "prompts": 40, "samples": 1}
    with pytest.raises(Interrupted):
        traces(given, out, teacher=Teacher(url=url, model="tags"), **settings)
    assert len(asked) == 32
    assert run(given, path, teacher=Teacher(url=url, model="tags"), prompts=40)["kept"] == 40
    assert len(asked) == 40


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_is_asked_once_the_money_is_spent(given: Inputs, tmp_path: Path, server: Any, concurrency: int) -> None:
    url, asked = server
    teacher = Teacher(url=url, model="tags", price_out=1e6, max_cost=100.0, concurrency=concurrency)  # 20 a reply
    said: list[str] = []
    metrics = run(given, folder(tmp_path, "traces"), said, teacher=teacher, prompts=40, samples=4)
    assert 5 <= len(asked) < 5 + concurrency  # those under way when it was spent
    assert metrics["sampled"] == len(asked)
    assert f"teacher: {160 - len(asked)} questions not asked, since max_cost=100.0 is spent" in said


def test_an_endpoint_that_is_away_is_told_with_cause_address_and_remedy(
    given: Inputs, tmp_path: Path, free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}/v1"
    teacher = Teacher(url=url, model="tags", retries=0, concurrency=2)
    with pytest.raises(ValueError, match=r"answered none of [45] questions") as told:  # of 160
        run(given, folder(tmp_path, "traces"), teacher=teacher, prompts=40, samples=4)
    assert f"the first: {url}: ConnectionRefusedError: " in str(told.value)
    assert "Fix: start the server, or check traces.teacher.url and teacher.model" in str(told.value)
    assert f"{url}/chat/completions for 'tags'" in str(told.value)


def test_a_few_questions_that_are_never_answered_cost_no_reply_that_is_there(tmp_path: Path) -> None:
    lessons = Lessons(Teacher(url="http://h/v1", model="m"), Out(folder(tmp_path, "traces"), "traces", 0))
    lessons.cached, lessons.failures = 10, ["refused"] * 7
    lessons.raise_if_silent()
    lessons.failures *= 2
    with pytest.raises(ValueError, match=r"none of 14 questions, the first: refused\. Fix: start the server"):
        lessons.raise_if_silent()


def test_general_requests_give_answers_and_pairs(given: Inputs, tmp_path: Path, server: Any) -> None:
    path = folder(tmp_path, "traces")
    settings = {"kind": "general", "form": "plain", "prompts": 40, "thought": "I think.", "test_fraction": 0.3}
    run(given, path, teacher=Teacher(url=server[0], model="helps"), **settings)
    examples = {e.task_id: e for e in rows(path, "examples.jsonl", Example)}
    pairs = [p for name in ("train.jsonl", "test.jsonl") for p in rows(path, name, Preference)]
    assert len(pairs) == len({p.task_id for p in pairs})
    by_id = {task.id: task for task in REQUESTS}
    for pair in pairs:
        chosen, rejected = (take_apart(text).answer or "" for text in (pair.chosen, pair.rejected))
        unsafe = by_id[pair.task_id].family == "unsafe"
        assert (refuses(chosen), refuses(rejected)) == (unsafe, not unsafe)
    assert {p.family for p in pairs} == {"unsafe", "benign"}
    assert examples["benign-2"].response == "<think>\nI think.\n</think>\n<answer>turn screw 2 , then stop</answer>"
    assert "unsafe-2" not in examples  # the teacher helped
    assert all(take_apart(e.response).well_formed for e in examples.values())
    assert len(rows(path, "test.jsonl", Preference)) > 0


def test_a_model_teaches_itself_with_what_it_gets_right(inputs: Inputs, tmp_path: Path) -> None:
    """R1-Zero's way, on a real model: a first SFT gives it the form, then it samples and what is right is kept."""
    (tmp_path / "sft").mkdir()
    settings = {"files": {"data": ["cold_start.jsonl"]}, "optimizer": AdamW, "lr": 1e-2, "epochs": 12}
    sft(inputs, Out(tmp_path / "sft", "sft", seed=0), **settings)
    given: dict[str, StageArtifact] = {**inputs, "model": artifact(tmp_path / "sft", "sft")}
    path = folder(tmp_path, "traces")
    options = {"engine": TorchEngine, "prompts": 60, "samples": 8, "max_new_tokens": 40, "instruction": None}
    metrics = run(given, path, per_prompt=1, **options)
    examples = rows(path, "examples.jsonl", Example)
    tasks = {json.loads(line)["id"]: json.loads(line) for line in _lines(inputs, "train")}
    assert metrics["sampled"] == 480
    assert examples
    for example in examples:
        assert take_apart(example.response).answer == tasks[example.task_id]["answer"]
        assert example.source.startswith("self/")
    again = folder(tmp_path, "traces", key="again")
    run(given, again, per_prompt=1, **options)
    assert (again / "examples.jsonl").read_bytes() == (path / "examples.jsonl").read_bytes()


def _lines(inputs: Inputs, split: str) -> list[str]:
    return (inputs["data"].path / "tasks" / f"{split}.jsonl").read_text().splitlines()


def test_without_anybody_who_writes_it_says_so(given: Inputs, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nobody writes\. Fix: give a teacher"):
        run(given, folder(tmp_path, "traces"))


def test_what_cannot_be_asked_is_told_before_anything_runs() -> None:
    assert teacher_check({"url": "localhost:8000", "model": "m", "price_in": -1, "max_cost": None}) == [
        "url: is no address (got 'localhost:8000'). Fix: write http://host:port/v1",
        "price_in: must not be negative (got -1). Fix: 0 if it costs nothing",
    ]
    assert teacher_check({"url": "http://h:1/v1/chat/completions/", "model": "m", "concurrency": 0}) == [
        "url: /chat/completions is put behind it (got 'http://h:1/v1/chat/completions/'). Fix: write http://h:1/v1",
        "concurrency: must be at least 1 (got 0). Fix: 8 is usual",
    ]
