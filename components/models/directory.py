"""Whether a directory holds a causal language model that transformers can load: configuration, tokenizer, template.

Nothing is imported from transformers: its list of models is read from its source.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from components.models.weights import POINTER

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tekken.json", "*.model", "*.tiktoken")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}(/[A-Za-z0-9][\w.\-]{0,95})?", re.ASCII)
_ENTRY = re.compile(r"\(\s*\"([^\"\n]{1,60})\",")
_ADAPTER = "adapter_config.json"


def is_hub_name(name: str) -> bool:
    """Whether the Hugging Face hub could have a model of that name."""
    return bool(_HUB_NAME.fullmatch(name)) and not any(part in name for part in ("--", ".."))


def attention_problem(name: str) -> str | None:
    """What is wrong with ``attn_implementation``; a name with a slash is a kernel of the hub."""
    if name.removeprefix("paged|") in ATTENTION or "/" in name:
        return None
    near = difflib.get_close_matches(name, ATTENTION, 1, 0.5)
    fix = f"did you mean {near[0]}? Known: " if near else "use one of "
    return f"attn_implementation: no such attention (got {name!r}). Fix: {fix}{', '.join(ATTENTION)}"


def adapter_problem(folder: Path) -> str | None:
    """A directory of LoRA adapters alone is no model."""
    if not (folder / _ADAPTER).is_file() or (folder / "config.json").is_file():
        return None
    try:
        base = json.loads((folder / _ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError, RecursionError):
        base = None
    of = f" of {base}" if base else ""
    return (
        f"{folder} holds adapters (adapter_config.json){of}, not a model. Fix: merge them into their model (peft: "
        f"merge_and_unload, save_pretrained) and give that directory, or start from {base or 'the base model'} itself"
    )


def config_problem(folder: Path, *, own_code: bool = False) -> str | None:
    """A configuration that is missing, unreadable, or of no causal language model.

    Args:
        own_code: Python code that comes with the model may define its type.
    """
    file = folder / "config.json"
    if not file.is_file():
        return f"{folder}: has no config.json. Fix: get it from where the weights came from"
    config, problem = _object(file)
    if problem is not None:
        return problem
    kind = config.get("model_type")
    if own_code and config.get("auto_map"):
        return None
    if not isinstance(kind, str) or not kind:
        return f"{file}: has no model_type (got {kind!r}). Fix: get it from where the weights came from"
    known = causal_types()
    if config.get("is_encoder_decoder") or (known and kind not in known):
        near = difflib.get_close_matches(kind, known, 1, 0.7)
        also = "" if config.get("is_encoder_decoder") else "; of a newer or foreign model, upgrade transformers or set "
        also += "model.source.trust_remote_code=true if you trust its code" if also else ""
        return (
            f"{file}: model_type is no causal language model that transformers knows (got {kind!r}). "
            f"Fix: {f'did you mean {near[0]}? Else give' if near else 'give'} a decoder-only model, as llama or qwen3"
            f"{also}"
        )
    return None


def tokenizer_problem(folder: Path, *, own_code: bool = False) -> str | None:
    """A tokenizer that is missing or unreadable."""
    if not own_code and not any(next(folder.glob(pattern), None) for pattern in _VOCABULARIES):
        return (
            f"{folder}: has no tokenizer ({', '.join(_VOCABULARIES)}). "
            "Fix: get tokenizer.json and tokenizer_config.json from where the weights came from"
        )
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        if (folder / name).is_file() and (problem := _object(folder / name)[1]) is not None:
            return problem
    return None


def template_problem(folder: Path, system: str | None = None) -> str | None:
    """A chat template that is empty, no Jinja, or fails for a question.

    Args:
        system: text of a system turn that is going to be put before the question.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            template: Any = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            return f"{file}: cannot be read ({error}). Fix: save it as UTF-8"
        if not template.strip():
            return f"{file}: is empty. Fix: remove the file, ChatML is then used, or write a template"
    else:
        file = folder / "tokenizer_config.json"
        template = _object(file)[0].get("chat_template") if file.is_file() else None
    if not isinstance(template, str) or not template.strip():
        return None  # several by name, or none: one is added
    import jinja2  # only where a model is named by its directory

    try:
        question = [{"role": "user", "content": "@Q@"}]
        text = render(template, question)
    except jinja2.TemplateSyntaxError as error:
        return (
            f"{file}: the chat template is no Jinja: {error.message} (its line {error.lineno}). Fix: repair that line"
        )
    except Exception as error:  # a template may raise anything
        return f"{file}: the chat template fails for a user's turn: {_line(error)}. Fix: repair the template"
    if "@Q@" not in text:
        return f"{file}: the chat template drops what the user says. Fix: print message['content'] for each message"
    if system:
        try:
            render(template, [{"role": "system", "content": system}, *question])
        except Exception as error:  # see above
            return system_text(str(file), _line(error))
    return None


def system_text(source: str, reason: str) -> str:
    """What is said of a template that does not take the system turn that was asked for."""
    return (
        f"{source}: model.source.system is set, and the chat template refuses a system turn ({reason.rstrip('.')}). "
        "Fix: model.source.system=null, or put the text into the template or the questions"
    )


def render(template: str, turns: list[dict[str, str]]) -> str:
    """The template's text for a conversation, in the sandbox and with the helpers that transformers gives it.

    Raises: whatever the template raises.
    """
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def as_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = as_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda _: "26 Jul 2024"}
    plain = re.sub(r"\{%(-?)\s{0,9}(?:end)?generation\s{0,9}(-?)%\}", r"{%\1 if true \2%}{% endif %}", template)
    tokens = {"bos_token": "", "eos_token": "", "pad_token": "", "unk_token": ""}
    return environment.from_string(plain).render(messages=turns, add_generation_prompt=True, tools=None, **tokens)


@cache
def causal_types() -> tuple[str, ...]:
    """The model types that AutoModelForCausalLM of the installed transformers knows; () if that cannot be told."""
    found = find_spec("transformers")
    places = found.submodule_search_locations if found is not None else None
    try:
        text = (Path(next(iter(places or ()))) / "models/auto/modeling_auto.py").read_text(encoding="utf-8")
    except (OSError, StopIteration):
        return ()
    text = text.partition("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict(")[2].partition("\n)\n")[0]
    return tuple(_ENTRY.findall(text))


def directory_check(folder: Path, *, own_code: bool, system: str | None) -> Iterator[str]:
    """All of the above, of each kind the first."""
    problems = (
        config_problem(folder, own_code=own_code),
        tokenizer_problem(folder, own_code=own_code),
        template_problem(folder, system),
    )
    yield from (problem for problem in problems if problem is not None)


def _object(file: Path) -> tuple[Mapping[str, Any], str | None]:
    """(the JSON object in a file, what is wrong with it)."""
    try:
        content = file.read_bytes()
        if content.startswith(POINTER):
            return {}, f"{file}: is a Git LFS pointer, not the file itself. Fix: git lfs pull"
        found = json.loads(content)
    except OSError as error:
        return {}, f"{file}: cannot be read ({error.strerror}). Fix: make it readable"
    except (ValueError, RecursionError) as error:
        return {}, f"{file}: is not JSON ({_line(error)}). Fix: get the file again"
    return (found, None) if isinstance(found, Mapping) else ({}, f"{file}: no JSON object. Fix: get the file again")


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__).rstrip(".")
