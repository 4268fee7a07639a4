"""Everything that can be wrong with what a user gives: told before anything runs, with place, value and remedy.

Each case is the real command line on a real file or setting. What is refused ends with exit code 2 and leaves nothing
behind; what is accepted says what it made of it.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from components.environments.sandbox.backends import Backend
from flows.cli import main

ROOT = Path(__file__).parents[2]
GOOD = [{"prompt": f"How much is {n} plus {n}?", "answer": str(2 * n)} for n in range(120)]
PROGRAM = {
    "prompt": 'def twice(x):\n    """Two times x."""\n',
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    "canonical_solution": "    return 2 * x\n",
}
CODE = "accuracy.verifiers={code: {_target_: components.rewards.code.Code, sandbox: '${sandbox}'}}"

Made = Sequence[str]  # arguments of the command
Case = tuple[Callable[[Path], Made], Sequence[str]]


def rows(*changes: Any, of: Sequence[Any] = GOOD) -> list[Any]:
    """Good rows with some in front: a mapping changes the row of its position, anything else takes its place."""
    first = [of[i] | c if isinstance(c, dict) else c for i, c in enumerate(changes)]
    return [*first, *of[len(first) :]]


def lines(folder: Path, content: Sequence[Any]) -> str:
    file = folder / "q.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in content))
    return str(file)


def data(*changes: Any, more: Made = ()) -> Callable[[Path], Made]:
    """A run on rows of the user's own."""
    return lambda folder: ["data=jsonl", f"data.path={lines(folder, rows(*changes))}", *more]


def written(content: bytes, more: Made = ()) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        (folder / "q.jsonl").write_bytes(content)
        return ["data=jsonl", f"data.path={folder / 'q.jsonl'}", *more]

    return make


def setting(*overrides: str) -> Callable[[Path], Made]:
    return lambda folder: overrides


def programs(**changes: Any) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        names = [PROGRAM | {"prompt": f"def twice(x):  # {n}\n    pass\n", "task_id": f"T/{n}"} for n in range(60)]
        file = lines(folder, [names[0] | changes, *names[1:]])
        stages = [f"{stage}.{CODE}" for stage in ("eval_base", "eval_rl")]
        small = ["rl.quotas={reasoning: 4}", "model=pretrained", "model.source.path=org/name"]
        return ["data=humaneval_style", f"data.path={file}", "reward=code", *stages, *small]

    return make


def model(change: Callable[[Path], None]) -> Callable[[Path], Made]:
    """A run with a saved model of the user's own, after something happened to it."""

    def make(folder: Path) -> Made:
        from components.models.load import save_model
        from components.models.tiny import Tiny

        own = folder / "own"
        save_model(*Tiny(hidden_size=16, layers=1, heads=2, kv_heads=1, mlp=16).build(["1 + 2 = 3"] * 9, 0), own)
        change(own)
        return ["model=pretrained", f"model.source.path={own}", "model.max_new_tokens=80"]

    return make


def edited(name: str, **changes: Any) -> Callable[[Path], None]:
    def edit(own: Path) -> None:
        content = json.loads((own / name).read_text())
        (own / name).write_text(json.dumps({k: v for k, v in (content | changes).items() if v != "gone"}))

    return edit


def only_pickle(own: Path) -> None:
    (own / "model.safetensors").rename(own / "pytorch_model.bin")


def with_nan(own: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(own / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, own / "model.safetensors")


def weights(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A change to the tensors of a saved model."""

    def edit(own: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(own / "model.safetensors")
        change(tensors)
        save_file(tensors, own / "model.safetensors", metadata={"format": "pt"})

    return edit


def bytes_of(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A change to a file of a saved model."""

    def edit(own: Path) -> None:
        (own / name).write_bytes(change((own / name).read_bytes()))

    return edit


def sharded(own: Path) -> None:
    """An index of two files of which one is missing."""
    (own / "model.safetensors").rename(own / "model-00001-of-00002.safetensors")
    placed = {"model.norm.weight": "model-00002-of-00002.safetensors"}
    (own / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def without(*names: str) -> Callable[[Path], None]:
    def remove(own: Path) -> None:
        for name in names:
            (own / name).unlink()

    return remove


def text(name: str, content: str) -> Callable[[Path], None]:
    return bytes_of(name, lambda _: content.encode())


def adapters_alone(own: Path) -> None:
    (own / "model.safetensors").rename(own / "adapter_model.safetensors")
    (own / "config.json").unlink()
    (own / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))


def chosen(*overrides: str) -> Callable[[Path], Made]:
    """A run with a whole model of the user's own and these settings."""
    return lambda folder: [*model(nothing)(folder), *overrides]


def nothing(own: Path) -> None:
    pass


def newer(folder: Path) -> Made:
    finished = folder / "artifacts" / "cache" / "base" / "0123456789"
    finished.mkdir(parents=True)
    (finished / "manifest.json").write_text(json.dumps({"schema": "r1flow/99", "stage": "base"}))
    return [f"artifacts={folder / 'artifacts'}"]


def no_directory(folder: Path) -> Made:
    (folder / "file").write_text("")
    return [f"artifacts={folder / 'file' / 'artifacts'}"]


def measured_on(folder: Path) -> Path:
    (folder / "test.jsonl").write_text(json.dumps(GOOD[0]) + "\n")
    return folder / "test.jsonl"


def cut_off(folder: Path) -> Path:
    file = folder / "q.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(GOOD[0]).encode())[:-9])
    return file


def mixed(*overrides: str) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        file = lines(folder, GOOD)
        return ["data=mix", *(f"data.parts.{name}.source.path={file}" for name in ("gsm8k", "safety")), *overrides]

    return make


def trained_on(*names: str) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        (folder / "weights.bin").write_bytes(bytes(99))
        return [*data()(folder), f"curate.trained_on=[{', '.join(names)}]"]

    return make


def talk(*roles: str) -> dict[str, Any]:
    return {"prompt": None, "messages": [{"role": role, "content": "hello"} for role in roles]}


LONG = {"prompt": "word " * 2000}
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
HERE = f"working directory {Path.cwd()}"
REFUSED: dict[str, Case] = {
    "1 missing file": (setting("data=jsonl", "data.path=none.jsonl"), ["none.jsonl file: no such file", HERE]),
    "2 empty file": (written(b""), ["q.jsonl:1 file: is empty", "one JSON object per line"]),
    "5 not UTF-8": (written(b'{"prompt": "caf\xe9?"}\n'), ["q.jsonl:1 line: not UTF-8 at byte 15 (got 0xe9)"]),
    "6 bad JSON": (data({}, '{"prompt": "a",, }'), ["q.jsonl:2 line: not JSON at column 16"]),
    "7 an array": (data("[1]"), ["q.jsonl:1 line: an array instead of an object (got [1])", "one object per line"]),
    "7 an array over lines": (data("[", "{},"), ["q.jsonl:1 file: holds one JSON array", "no array around them"]),
    "8 NaN": (data('{"prompt": "a", "answer": NaN}'), ["q.jsonl:1 line: the literal NaN isn't JSON"]),
    "8 Infinity": (data('{"prompt": "a", "answer": -Infinity}'), ["the literal -Infinity isn't JSON"]),
    "9 missing field": (
        lambda folder: ["data=jsonl", f"data.path={lines(folder, [{'promt': 'a', 'answer': '1'}, *GOOD])}"],
        ["q.jsonl:1 prompt: missing; the nearest is 'promt'", "columns.prompt"],
    ),
    "11 duplicate id": (data({"id": "a"}, {"id": "a"}), ["q.jsonl:2 id: already used in", "q.jsonl:1 (got \"a\")"]),
    "12 two answers": (
        data({"prompt": "a?"}, {"prompt": "a?"}),
        ["q.jsonl:2 answer: same prompt, different answer", '"0" in', 'q.jsonl:1, "2" here'],
    ),
    "13 empty prompt": (data({"prompt": " "}), ['q.jsonl:1 prompt: empty (got " ")', "drop the row"]),
    "14 prompt too long": (
        data(LONG),
        ["max_new_tokens: 1 of 120 prompts are longer than the model's context of 1024", "the longest 2000 (got 80)",
         "max_prompt_chars: 9998"],
    ),
    "14 too long in the model's own tokens": (
        lambda folder: [*model(nothing)(folder), *data({"prompt": "word " * 300})(folder)],
        ["1 of 120 prompts are longer than the model's context of 1024 less it allows (944 tokens), the longest 1"],
    ),
    "15 answer is a list": (data({"answer": [1]}), ["q.jsonl:1 answer: expected text or a number (got [1])"]),
    "15 answer is a truth value": (data({"answer": True}), ["q.jsonl:1 answer: expected text or a number (got true)"]),
    "15 no answers at all": (data(*[{"answer": None}] * 120), ["rl quotas.reasoning: the data have no such tasks"]),
    "16 answer is empty": (data({"answer": ""}), ["q.jsonl:1 answer: empty, it can never score"]),
    "16 answer with tags": (data({"answer": "<answer>4</answer>"}), ["<answer> in it", "it can never score"]),
    "16 answer is no mathematics": (
        data({"answer": "?!"}, more=["data.verifier=math"]), ["q.jsonl:1 answer: no number", "it can never score"],
    ),
    "16 answer without a verifier": (
        lambda folder: [a for a in programs()(folder) if a != "reward=code" and CODE not in a],
        ["stages rl, eval_base, eval_rl accuracy: no verifier 'code', so 60 tasks of the data can never score"],
    ),
    "17 gold fails its tests": (
        programs(canonical_solution="    return 3\n"),
        ["q.jsonl:1 canonical_solution: fails the task's own tests (twice", "repair program or tests"],
    ),
    "18 no tests": (programs(test=""), ["q.jsonl:1 test: no tests, so that any program would pass"]),
    "19 line too long": (
        written(b'{"prompt": "' + b"a" * (11 << 20)), ["q.jsonl:1 line: longer than 10 MB", "raise max_line_mb"],
    ),
    "20 truncated": (written(b'{"prompt": "a", "answer": "1"}\n{"prompt": "b'), ["q.jsonl:2", "looks truncated"]),
    "21 unknown role": (data(talk("usr")), ['q.jsonl:1 messages: unknown role (got "usr")', "system, user"]),
    "22 two assistant turns": (
        data(talk("user", "assistant", "assistant", "user")), ["two assistant turns running (got user assistant"],
    ),
    "22 no user turn": (data(talk("assistant")), ["must end with the user's turn (got assistant)"]),
    "23 tool without a call": (data(talk("user", "tool", "user")), ["a tool message without a call before it"]),
    "25 id that is a path": (data({"id": "../../x"}), ['q.jsonl:1 id: not a name (got "../../x")', "letters, digits"]),
    "27 less than a batch": (
        data(more=["rl.quotas={reasoning: 500}"]), ["rl quotas.reasoning: 500 prompts a step, and the data have"],
    ),
    "28 misspelt key": (setting("rl.stpes=3"), ["rl stpes: no such setting", "did you mean steps?"]),
    "29 wrong type": (setting("rl.steps=many"), ["rl steps: expects int (got 'many')"]),
    "30 negative weight": (setting("reward.weights.format=-1"), ["reward.weights.format: must not be negative"]),
    "30 negative rate": (setting("rl.lr=-1"), ["rl lr: must be positive (got -1)"]),
    "30 negative KL": (setting("rl.beta=-0.1"), ["rl beta: must not be negative (got -0.1)"]),
    "31 weights of nothing": (
        setting("reward.weights={accuracy: 0, format: 0, language: 0}"), ["reward.weights: sum to 0"],
    ),
    "31 weight without a term": (setting("reward.weights.fromat=1"), ["did you mean reward.weights.format?"]),
    "32 a group of one": (setting("rl.group_size=1"), ["rl algorithm.advantage: group_norm with group_size=1"]),
    "33 more minibatches than groups": (setting("rl.minibatches=33"), ["rl minibatches: 33 of 32 prompts"]),
    "34 temperature 0": (setting("rl.temperature=0"), ["rl temperature: all 8 rollouts of a group would be the same"]),
    "35 no model there": (
        setting("model=pretrained", "model.source.path=./nowhere"), ["model path ./nowhere does not exist", HERE],
    ),
    "35 pickled weights": (model(only_pickle), ["weights only as pytorch_model.bin, a pickle", "safetensors"]),
    "36 no eos token": (
        model(edited("tokenizer_config.json", eos_token=None)), ["the tokenizer has no eos token", "set eos_token"],
    ),
    "38 tokenizer too large": (
        model(edited("config.json", vocab_size=99)), ["tokens but the model only 99 embeddings"],
    ),
    "39 NaN in the weights": (model(with_nan), ["tensor model.norm.weight [16] holds 1 values that are NaN"]),
    "42 fewer layers than the configuration has": (
        model(edited("config.json", num_hidden_layers=3)),
        ["own: config.json asks for 3 layers (num_hidden_layers), the weights hold 1, numbers 0 to 0", "one place"],
    ),
    "42 a tensor missing": (
        model(weights(lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight"))),
        ["own: the weights lack layers.0.mlp.up_proj.weight, which would be left random"],
    ),
    "42 another width": (
        model(edited("config.json", hidden_size=32)),
        ["own: tensor embed_tokens.weight is [", ", 16], config.json asks for [", ", 32]"],
    ),
    "42 a shard missing": (
        model(sharded), ["index.json: names model-00002-of-00002.safetensors, which is not there", "get that file too"],
    ),
    "43 weights cut off": (
        model(bytes_of("model.safetensors", lambda b: b[: len(b) // 2])),
        ["model.safetensors: has", "bytes, its header speaks of", "the download was cut off"],
    ),
    "43 weights cut off in the header": (
        model(bytes_of("model.safetensors", lambda b: b[:99])), ["model.safetensors: no safetensors file, or cut off"],
    ),
    "43 empty weights": (model(bytes_of("model.safetensors", lambda b: b"")), ["model.safetensors: is empty"]),
    "43 a pointer in place of weights": (
        model(bytes_of("model.safetensors", lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:a\n")),
        ["model.safetensors: is a Git LFS pointer", "git lfs pull"],
    ),
    "44 no tokenizer": (
        model(without("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")),
        ["own: has no tokenizer (tokenizer.json, ", "get tokenizer.json and tokenizer_config.json"],
    ),
    "44 no vocabulary": (model(without("tokenizer.json")), ["own: has no tokenizer (tokenizer.json, "]),
    "44 tokenizer is no JSON": (
        model(text("tokenizer.json", "{")), ["tokenizer.json: is not JSON (Expecting", "get the file again"],
    ),
    "44 tokenizer settings are no JSON": (
        model(text("tokenizer_config.json", "[]")), ["tokenizer_config.json: no JSON object"],
    ),
    "45 no configuration": (model(without("config.json")), ["own: has no config.json", "where the weights came from"]),
    "45 configuration is no JSON": (model(text("config.json", '{"a":')), ["config.json: is not JSON (Expecting value"]),
    "45 no model type": (
        model(edited("config.json", model_type="gone")), ["config.json: has no model_type (got None)"],
    ),
    "45 unknown model type": (
        model(edited("config.json", model_type="lllama")),
        ["config.json: model_type is no causal language model", "(got 'lllama'). Fix: did you mean llama?"],
    ),
    "45 an encoder-decoder": (
        model(edited("config.json", model_type="t5")), ["(got 't5'). Fix: ", "give a decoder-only model"],
    ),
    "45 adapters without their model": (
        model(adapters_alone),
        ["own holds adapters (adapter_config.json) of org/base, not a model", "merge them", "from org/base itself"],
    ),
    "46 template is no Jinja": (
        model(text("chat_template.jinja", "{% for m in messages %}{{ m.content }")),
        ["chat_template.jinja: the chat template is no Jinja: unexpected '}' (its line 1)"],
    ),
    "46 empty template": (model(text("chat_template.jinja", " ")), ["template.jinja: is empty", "remove the file"]),
    "46 template that fails": (
        model(text("chat_template.jinja", "{{ nofn(messages) }}")),
        ["the chat template fails for a user's turn: 'nofn' is undefined"],
    ),
    "46 template without what is said": (
        model(text("chat_template.jinja", "{% for m in messages %}x{% endfor %}")),
        ["the chat template drops what the user says", "message['content']"],
    ),
    "46 a system turn that the template refuses": (
        lambda folder: [*model(text("chat_template.jinja", NO_SYSTEM))(folder), "model.source.system='Be brief.'"],
        ["model.source.system is set, and the chat template refuses a system turn (No system)", "system=null"],
    ),
    "47 unknown attention": (
        chosen("model.source.attn_implementation=flash3"),
        ["base model.attn_implementation: no such attention (got 'flash3')", "did you mean flash_attention_3?"],
    ),
    "47 no name of a model": (
        setting("model=pretrained", "model.source.path='not a model!'"),
        ["base model.path: 'not a model!' is neither a directory", HERE, "org/name"],
    ),
    "47 empty name": (
        setting("model=pretrained", "model.source.path=''"), ["base model.path: the name of the model is empty"],
    ),
    "47 GGUF file that is not there": (
        chosen("model.source.gguf_file=a.gguf"), ["model.source.gguf_file=a.gguf: ", "GGUF files there: none. Fix: "],
    ),
    "48 adapters beside no such layer": (
        chosen("model=adapters", "model.lora.target_modules=[q_proj,k_prooj]"),
        ["rl lora.target_modules: the model has no layer 'k_prooj' (got ['q_proj', 'k_prooj'])",
         "did you mean k_proj? There are down_proj, gate_proj, ", "or all-linear or attention"],
    ),
    "48 adapters beside no such layer of the model that is made here": (
        setting("model.lora={_target_: components.models.lora.Lora, target_modules: q_prooj}"),
        ["rl lora.target_modules: the model has no layer 'q_prooj' (got 'q_prooj'). Fix: did you mean q_proj?"],
    ),
    "48 adapters beside a kind misspelt": (
        chosen("model=adapters", "model.lora.target_modules=all_linear"),
        ["rl lora.target_modules: no layer has that name (got 'all_linear'). Fix: target_modules=all-linear"],
    ),
    "48 adapters beside nothing": (
        chosen("model=adapters", "model.lora.target_modules=[]"),
        ["rl lora.target_modules: names no layer (got []). Fix: use one of all-linear, attention"],
    ),
    "48 adapters of no rank": (
        chosen("model=adapters", "model.lora.r=0"), ["rl lora.r: must be positive (got 0). Fix: r=16 is usual"],
    ),
    "48 adapters of no weight": (
        chosen("model=adapters", "model.lora.alpha=0"), ["rl lora.alpha: must be positive (got 0.0). Fix: alpha=32"],
    ),
    "49 nothing sampled at a time": (
        setting("model.max_batch=0"), ["engine.max_batch: must be at least 1 (got 0). Fix: write a value"],
    ),
    "49 no tokens in a pass": (
        setting("model.micro_batch_tokens=-1"), ["rl micro_batch_tokens: must be at least 1 (got -1)"],
    ),
    "40 no place for artifacts": (no_directory, ["configuration artifacts: is not a directory", "set artifacts=DIR"]),
    "trained on what is missing": (trained_on("none.jsonl"), ["trained_on: none.jsonl does not exist", HERE]),
    "trained on weights": (trained_on("q.jsonl", "weights.bin"), ["trained_on: weights.bin is a binary file, no text"]),
    "cut off gzip": (
        lambda folder: ["data=jsonl", f"data.path={cut_off(folder)}"],
        ["q.jsonl.gz:1 file: the gzip file ends too early", "download or write it again"],
    ),
    "half a surrogate pair": (
        data('{"prompt": "a \\ud800 b", "answer": "1"}'), ["q.jsonl:1 prompt: half of a surrogate pair", "\\ud800"],
    ),
    "5000 digits": (data('{"prompt": "a", "answer": ' + "9" * 5000 + "}"), ["q.jsonl:1 answer: a whole number of"]),
    "a number beyond all": (data('{"prompt": "a", "answer": 1e999}'), ["q.jsonl:1 answer: too large to be a number"]),
    "a key twice": (data('{"prompt": "a", "prompt": "b"}'), ["q.jsonl:1 prompt: this key stands twice"]),
    "NUL in a prompt": (data({"prompt": "a\0b"}), ['q.jsonl:1 prompt: holds the character NUL (got "a\\u0000b")']),
    "nothing to see in a prompt": (data({"prompt": "\u200b\u2060"}), ['prompt: empty (got "\\u200b\\u2060")']),
    "nothing to see in an answer": (data({"answer": "\u200b"}), ['q.jsonl:1 answer: empty, it can never score (got']),
    "prompt and messages": (
        data({"messages": [{"role": "user", "content": "y?"}]}),
        ["q.jsonl:1 prompt: given beside messages, whose last turn is another", "give one of the two"],
    ),
    "test file is the training file": (
        lambda folder: [*data()(folder), f"data.test_path={folder / 'q.jsonl'}"],
        ["test_path: the same file as path", "test_path=null holds out a part of it"],
    ),
    "no level at all": (data(more=["data.max_level=-1"]), ["max_level: must be at least 0 (got -1)"]),
    "no rows at all": (data(more=["data.max_train=0"]), ["max_train: must be at least 1 (got 0)"]),
    "chosen is rejected": (
        data({"chosen": "yes", "rejected": " yes"}), ['q.jsonl:1 rejected: the same as chosen (got " yes")'],
    ),
    "chosen is empty": (data({"chosen": "", "rejected": "no"}), ['q.jsonl:1 chosen: empty (got "")']),
    "tests are no Python": (
        programs(test="def check(c:\n"), ["q.jsonl:1 test: is no Python: ", "in its line 1 (got", "repair it"],
    ),
    "tests without check": (programs(test="x = 1\n"), ["q.jsonl:1 test: defines no check(candidate) (got"]),
    "tests without asserts": (
        programs(test="def check(candidate):\n    pass\n"), ["q.jsonl:1 test: its check asserts nothing"],
    ),
    "cap of a part": (mixed("data.parts.gsm8k.cap=0"), ["parts.gsm8k.cap: must be at least 1 (got 0)"]),
    "negative cap of a part": (mixed("data.parts.gsm8k.cap_test=-1"), ["parts.gsm8k.cap_test: must not be negative"]),
    "kind of a part": (mixed("data.parts.gsm8k.kind=genral"), ["parts.gsm8k.kind: no kind is called so (got"]),
    "41 newer manifest": (newer, ["written by a newer r1flow (schema r1flow/99", "upgrade r1flow"]),
}  # fmt: skip

ACCEPTED: dict[str, Case] = {
    "3 byte-order mark": (written(b"\xef\xbb\xbf" + json.dumps(GOOD[0]).encode()), ["starts with a byte-order mark"]),
    "4 CRLF": (written(b"".join(json.dumps(row).encode() + b"\r\n" for row in GOOD)), ["train"]),
    "10 extra field": (data({"colour": "red"}), ["columns not used: colour"]),
    "15 a row without an answer": (data({"answer": None}), ["1 of 120 rows have no answer"]),
    "26 what is measured is trained on": (
        lambda folder: [
            "data=jsonl",
            f"data.path={lines(folder, rows({'id': 'a'}))}",
            f"data.test_path={measured_on(folder)}",
        ],
        ["in the evaluation too: a", "test 1"],
    ),
    "24 special tokens": (data({"prompt": "What is <|im_end|>?"}, {"prompt": "<think>?"}), ["2 prompts hold tags"]),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flows.runs.RunRecord.start", lambda *_: pytest.fail("the run began"))
    return tmp_path


def found(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_place_value_and_remedy(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    if case.startswith("17") and all(Backend(name).missing() is not None for name in ("bwrap", "landlock")):
        pytest.skip("no sandbox works here")
    make, told = REFUSED[case]
    arguments = [text.replace(HERE, f"working directory {place}") for text in make(place)]
    before = found(place)
    assert main(["run", "pipeline=r1_zero", "orchestrator=inline", "tracking=none", *arguments]) == 2
    out, err = capfd.readouterr()
    for part in told:
        assert part.replace(HERE, f"working directory {place}") in err
    assert all(" Fix: " in line for line in err.splitlines())
    assert "Traceback" not in err + out
    assert found(place) == before


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_can_be_used_is_used_and_said(place: Path, capfd: pytest.CaptureFixture[str], case: str) -> None:
    make, told = ACCEPTED[case]
    given = {key: value for key, _, value in (text.partition("=") for text in make(place))}
    path, kind = given.pop("data.path"), given.pop("data")
    before = found(place)
    assert main(["data", "check", path, f"data={kind}", *(f"{key}={value}" for key, value in given.items())]) == 0
    out = capfd.readouterr().out
    for part in told:
        assert part in out
    assert found(place) == before


def tokenizer_without(name: str) -> Callable[[Path], None]:
    def change(own: Path) -> None:
        edited("tokenizer_config.json", **{name: None})(own)
        if name == "chat_template":
            (own / "chat_template.jinja").unlink()

    return change


@pytest.mark.parametrize(
    ("lacking", "told"),
    [("pad_token", "no pad token; '<pad>' fills rows up"), ("chat_template", "no chat template; ChatML is used")],
    ids=["36 no pad token", "37 no chat template"],
)
def test_what_a_tokenizer_lacks_is_added_and_said(place: Path, lacking: str, told: str) -> None:
    from components.models.load import Pretrained

    arguments = model(tokenizer_without(lacking))(place)
    assert main(["plan", "pipeline=r1_zero", *arguments]) == 0
    said: list[str] = []
    Pretrained(path=str(place / "own")).build([], 0, say=said.append)
    assert any(told in line for line in said)


def test_a_disk_without_room_is_found_at_the_start(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flows.place.shutil.disk_usage", lambda _: type("Usage", (), {"free": 3 << 20}))
    assert main(["run", "pipeline=r1_zero"]) == 2
    told = "configuration artifacts: has 3 MiB free, too little for a run (got 'artifacts'). Fix: free at least 200 MiB"
    assert told in capfd.readouterr().err
    assert found(place) == {}


def test_a_manifest_that_is_none_of_ours_is_not_taken_for_a_result(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = newer(place)
    [manifest] = place.rglob("manifest.json")
    manifest.write_text(json.dumps({"schema": "someone/1"}))
    assert main(["plan", "pipeline=r1_zero", *arguments]) == 0
    assert "6 to build, 0 reused" in capfd.readouterr().out


# --- in processes of their own --------------------------------------------------------------------------------------


def in_a_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "flows" / "fixtures")])}
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize("case", ["1 missing file", "6 bad JSON", "28 misspelt key", "39 NaN in the weights"])
def test_the_installed_command_refuses_alike(tmp_path: Path, case: str) -> None:
    make, told = REFUSED[case]
    arguments = make(tmp_path)
    before = found(tmp_path)
    done = in_a_process(tmp_path, "run", "pipeline=r1_zero", *arguments)
    assert done.returncode == 2
    for part in told:
        assert part.replace(HERE, f"working directory {tmp_path}") in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert found(tmp_path) == before


def test_a_run_with_changed_settings_says_what_differs(tmp_path: Path) -> None:
    conf = ["--config-dir", str(ROOT / "tests" / "flows" / "fixtures" / "conf"), "orchestrator=inline"]
    assert in_a_process(tmp_path, "run", *conf).returncode == 0
    done = in_a_process(tmp_path, "run", *conf, "second.steps=9")
    assert done.returncode == 0
    assert "steps: 2 → 9" in done.stdout


def test_programs_that_nothing_can_run_are_a_problem_of_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from components.environments.sandbox.outcome import SandboxUnavailable
    from components.environments.sandbox.pool import Sandbox

    def none(*_: object) -> None:
        raise SandboxUnavailable("sandbox.backend=auto: no sandbox that holds on this machine\nbwrap: not installed")

    monkeypatch.setattr(Sandbox, "_started", none)
    assert main(["run", "pipeline=r1_zero", *programs()(place)]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert "no sandbox that holds on this machine bwrap: not installed. Fix: " in line
