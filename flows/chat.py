"""``r1flow chat``: talk to a checkpoint; its thinking is shown dimmed, then the answer."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.errors import BadInput, Problem, did_you_mean
from flows.runs import list_runs, stage_directories

_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)
_TAGS = re.compile(r"</?(?:answer|think)>")


def find_model(artifacts: Path, name: str) -> Path:
    """The model directory that a stage of the latest run, an artifact or a path holds.

    Raises: BadInput naming what there is.
    """
    for path in (Path(name), Path(name) / "model"):
        if (path / "config.json").is_file():
            return path
    for _, directory in stage_directories(artifacts, name):
        if (directory / "model" / "config.json").is_file():
            return directory / "model"
    stages = {
        stage
        for run in list_runs(artifacts)
        for stage, entry in run["stages"].items()
        if entry.get("path") and (Path(entry["path"]) / "model").is_dir()
    }
    fix = did_you_mean(name, stages) if stages else "finish a run first: r1flow run"
    raise BadInput(
        Problem("chat", "", f"neither a stage with a model in {artifacts} nor a model directory", got=name, fix=fix)
    )


def chat(directory: Path, *, max_new_tokens: int, temperature: float, seed: int, keep: bool, console: Any) -> None:
    """Answer each line of standard input until it ends. Tool calls are answered by the calculator.

    Args:
        keep: remember the conversation; without it every line is a fresh question, as in training.

    Raises: BadInput for a model that can't be loaded, or input that is not UTF-8.
    """
    from components.environments.calculator import Calculator  # heavy, as all that follows
    from components.models.chat import render
    from components.models.decoder import make_decoder
    from components.rollout.collect import collect
    from components.rollout.sampling import Sampling
    from components.rollout.torch_engine import TorchEngine
    from components.types import Message, Task

    model, tokenizer = _loaded(directory)
    engine = TorchEngine(make_decoder(model), tokenizer)
    room = model.config.max_position_embeddings
    messages: tuple[Message, ...] = ()
    interactive = sys.stdin.isatty()
    if interactive:
        console.print(f"{directory}  (Ctrl-D ends, an empty line starts afresh)", style="dim", markup=False)
    for turn, line in enumerate(_lines(interactive)):
        if not line:
            messages = ()
            continue
        messages = (*(messages if keep else ()), Message("user", line))
        task = Task(f"turn-{turn}", messages, None, "none")
        used = len(render(tokenizer, messages).tokens)
        if used >= room - 1:
            console.print(f"too long: {used} tokens, the model has room for {room}", style="red", markup=False)
            messages = ()
            continue
        sampling = Sampling(max_new_tokens=min(max_new_tokens, room - used), temperature=temperature)
        [(rollout,)] = collect(
            engine, tokenizer, render, [task], 1, sampling, Calculator(), address=("chat", seed, turn)
        )
        thinking, answer = split_response(rollout.response)
        if thinking:
            console.print(thinking, style="dim italic", markup=False, highlight=False)
        console.print(answer or "(no answer)", markup=False, highlight=False)
        if rollout.finish == "length":
            console.print("(cut at the token limit; --max-new-tokens raises it)", style="yellow", markup=False)
        messages = (*messages, Message("assistant", answer))


def split_response(response: str) -> tuple[str, str]:
    """Thinking and answer of a response, without their tags; a response without an end of thought has no answer."""
    found = _THOUGHT.search(response)
    thinking = found[1].strip() if found else ""
    rest = response[found.end() :] if found else response
    return thinking, _TAGS.sub("", rest).strip()


def _loaded(directory: Path) -> tuple[Any, Any]:
    from components.models.load import load_model  # heavy

    try:
        return load_model(directory)
    except Exception as error:  # transformers, tokenizers and safetensors each raise their own
        text, _, fix = " ".join(str(error).split()).partition(" Fix: ")
        problem = f"this model can't be loaded ({type(error).__name__}: {text.rstrip('.')[:300]})"
        fix = fix.rstrip(".") or "r1flow cache verify names damaged files; else take another model"
        raise BadInput(Problem("chat", "", problem, got=str(directory), fix=fix)) from error


def _lines(interactive: bool) -> Iterator[str]:
    """Lines of standard input. Raises: BadInput for one that is not UTF-8."""
    for number in itertools.count(1):
        try:
            line = input("› ") if interactive else input()
            line.encode()  # bytes that are none came through as surrogates, in some locales
        except EOFError:
            return
        except UnicodeError as error:
            fix = "save the text as UTF-8"
            raise BadInput(Problem("chat", f"line {number}", "is not UTF-8", fix=fix)) from error
        yield line.strip()
