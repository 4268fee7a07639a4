"""The model card of an exported model: what it is, how it was measured, what it was made from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.annotations import CONTENT
from flows.redact import redact

_SHOWN = {  # metric → its name on the card, and whether it is a share
    "pass@1": ("right at once", True),
    "greedy": ("right, greedy", True),
    "format_rate": ("form kept", True),
    "length": ("tokens", False),
    "unsafe_refused": ("unsafe refused", True),
    "benign_answered": ("benign answered", True),
}


@dataclass(frozen=True)
class Entry:
    """A finished artifact: its directory and its manifest."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def stage(self) -> str:
        return self.manifest["stage"]

    @property
    def key(self) -> str:
        return self.manifest["key"]

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.manifest.get("spec", {}).get("settings", {})

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of it; empty if it has none."""
        file = self.path / name
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def model_card(chain: Sequence[Entry], evaluations: Sequence[Entry], *, name: str) -> str:
    """README.md in the form of the Hugging Face hub.

    Args:
        chain: the model's artifact and all that it was made from, parents first.
        evaluations: of models in the chain.
    """
    model = chain[-1]
    base = next((source for entry in chain if (source := _source(entry)) is not None), None)
    front = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    front += [f"base_model: {base}"] if base and not base.startswith((".", "…")) else []
    front += ["tags: [r1flow]", "---"]
    parts = [
        "\n".join(front),
        f"# {name}\n\nStage `{model.stage}` of an r1flow run"
        + (f", made from {base}." if base else ", trained from nothing.")
        + " Its license is that of what it was made from; none is stated here.",
        _use(model),
        _evaluation(evaluations, model),
        _data(chain),
        _lineage(chain),
        "## Settings\n\n" + "\n\n".join(_settings(entry) for entry in chain),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _source(entry: Entry) -> str | None:
    source = entry.settings.get("model")
    path = source.get("path") if isinstance(source, Mapping) else None
    return _portable(path) if isinstance(path, str) else None


def _use(model: Entry) -> str:
    """How to get an answer out of it; whether answers begin inside a thought is read from the template."""
    template = model.path / "model" / "chat_template.jinja"
    opened = template.is_file() and "<think>" in template.read_text(encoding="utf-8")
    thought = (
        "\n\nThe chat template opens the thought: what the model writes begins inside `<think>`." if opened else ""
    )
    return f"""## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIR")
model = AutoModelForCausalLM.from_pretrained("DIR")
prompt = tokenizer.apply_chat_template(
    [{{"role": "user", "content": "…"}}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=512, do_sample=False)[0]))
```{thought}"""


def _evaluation(evaluations: Sequence[Entry], model: Entry) -> str:
    if not evaluations:
        return "## Evaluation\n\nNot measured."
    found = [(entry, entry.read("summary.json")) for entry in evaluations]
    names = [n for n in _SHOWN if any(n in summary.get("metrics", {}) for _, summary in found)]
    lines = [
        "## Evaluation",
        "",
        "Held-out prompts, in per cent (tokens: a count), with 95 % intervals over prompts.",
        "",
        "| model | prompts × samples | " + " | ".join(_SHOWN[n][0] for n in names) + " |",
        "|---|---|" + "---|" * len(names),
    ]
    for entry, summary in found:
        stage = entry.manifest["parents"]["model"]["stage"]
        cells = [_figure(summary["metrics"].get(n), share=_SHOWN[n][1]) for n in names]
        shown = f"**{stage}**" if stage == model.stage else stage
        lines.append(f"| {shown} | {summary['prompts']} × {summary['samples']} | " + " | ".join(cells) + " |")
    if found[-1][0].manifest["parents"]["model"]["stage"] != model.stage:
        lines += ["", f"`{model.stage}` itself was not measured."]
    return "\n".join(lines)


def _figure(estimate: Mapping[str, Any] | None, *, share: bool) -> str:
    if not estimate or estimate.get("value") is None:
        return "–"
    value, low, high = (estimate[name] * (100 if share else 1) for name in ("value", "low", "high"))
    return f"{value:.1f} [{low:.0f}, {high:.0f}]"


def _data(chain: Sequence[Entry]) -> str:
    parts = []
    for entry in chain:
        report = entry.read("report.json")
        if "kept" not in report:
            continue
        dropped = {reason: sum(by.values()) for reason, by in report.get("dropped", {}).items()}
        kept = ", ".join(f"{name} {n}" for name, n in report["kept"].items() if n)
        lost = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in dropped.items()) or "nothing"
        notes = "".join(f"\n- {note}" for note in report.get("noted", {}).get("source", []))
        parts.append(f"`{entry.stage}`: {kept}. Dropped: {lost}.{notes}")
    return "## Data\n\n" + "\n\n".join(parts) if parts else ""


def _lineage(chain: Sequence[Entry]) -> str:
    lines = ["## Lineage", "", "| stage | what | from | digest |", "|---|---|---|---|"]
    for entry in chain:
        parents = ", ".join(parent["stage"] for parent in entry.manifest["parents"].values()) or "–"
        target = entry.manifest.get("spec", {}).get("target", "?")
        lines.append(f"| {entry.stage} | `{target}` | {parents} | `{entry.manifest['digest'][:16]}` |")
    versions = chain[-1].manifest.get("versions", {})
    lines += ["", "Made with " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."]
    return "\n".join(lines)


def _settings(entry: Entry) -> str:
    """Settings as JSON; secrets stand in manifests as names of variables only, and are looked for once more."""
    plain = {"seed": entry.manifest.get("spec", {}).get("seed"), **_portable(entry.settings)}
    text = redact(json.dumps(plain, indent=1, ensure_ascii=False, default=str))
    return f"<details><summary>{entry.stage}</summary>\n\n```json\n{text}\n```\n</details>"


def _portable(value: Any) -> Any:
    """Settings without digests of what was read, and of a path on this machine its last part alone."""
    if isinstance(value, Mapping):
        return {key: _portable(item) for key, item in value.items() if key != CONTENT}
    if isinstance(value, str) and value.startswith(("/", "~/", "../")):
        return f"…/{Path(value).name}"
    return [_portable(item) for item in value] if isinstance(value, list | tuple) else value
