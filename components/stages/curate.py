"""Stage ``curate``: a source becomes disjoint, decontaminated splits, traces and plain text on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from components.data.cleaning import Cleaning
from components.data.contamination import seen_in, texts_of
from components.data.corpus import EVALUATION_SPLITS, Corpus, DataError, Source, write_corpus
from components.runtime import Inputs, Out

GIVES = ("data",)


def curate(
    inputs: Inputs,
    out: Out,
    *,
    source: Source,
    cleaning: Cleaning | None = None,
    needs: Sequence[str] = ("train", "test"),
    trained_on: Sequence[str] = (),
) -> dict[str, Any]:
    """Load, clean and write the data; return what was kept and dropped.

    Writes ``tasks/{train,fresh,profile,dev,test}.jsonl``, ``pretrain.txt``, ``cold_start.jsonl``, ``general.jsonl``,
    ``preferences.jsonl`` (only where the data has pairs) and ``report.json``.

    Args:
        needs: splits that must not be empty.
        trained_on: files or directories of what a model was trained on elsewhere: prompts of dev and test that stand in
            them, by whole prompts or ``cleaning.ngram`` words in a row, are left out and counted.

    Raises:
        DataError: the user's data has problems, or nothing is left to train on or to measure with.
    """
    if not out.peers.is_main:
        return {}
    cleaning = cleaning or Cleaning()
    corpus, report = cleaning(source.load(out.seed))
    _warn_of_templates(report, out)
    if trained_on:
        corpus, report = _without_seen(corpus, report, trained_on, cleaning.ngram, out)
    for split in needs:
        if not corpus.tasks[split]:
            raise DataError(f"no task is left for {split}: {report['dropped'] or 'the source gave none'}")
    write_corpus(corpus, out.path, report)
    for note in corpus.notes:
        out.say(note)
    kept = report["kept"]
    dropped = {reason: sum(counts.values()) for reason, counts in report["dropped"].items()}
    out.say("tasks " + " ".join(f"{k} {kept[k]}" for k in ("train", "fresh", "profile", "dev", "test")))
    out.say("dropped " + (", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "nothing"))
    if overlapping := report["overlapping"]:
        more = f" and {len(overlapping) - 5} more (report.json)" if len(overlapping) > 5 else ""
        out.say(f"in the evaluation too, so not trained on: {', '.join(overlapping[:5])}{more}")
    if n := report["noted"]["prompts_with_special_tokens"]:
        out.say(f"{n} prompts hold tags or special tokens: they are taken as plain text")
    return {**kept, **{f"dropped_{reason}": n for reason, n in dropped.items()}}


def _without_seen(
    corpus: Corpus, report: dict[str, Any], trained_on: Sequence[str], n: int, out: Out
) -> tuple[Corpus, dict[str, Any]]:
    """Without the evaluation prompts that a model was trained on; they are counted by family, and named."""
    measured = [task for split in EVALUATION_SPLITS for task in corpus.tasks[split]]
    sizes = Counter[str]()
    seen = seen_in(measured, _counted(texts_of(trained_on), sizes), n=0 if corpus.templated else n)
    out.say(
        f"compared with {sizes['characters']:,} characters of what was trained on (cells and lines: {sizes['texts']:,})"
    )
    found = Counter(task.family for task in measured if task.id in seen)
    of = Counter(task.family for task in measured)
    for family in sorted(of):
        out.say(f"{family}: {found[family]} of {of[family]} prompts stand in what was trained on, and are left out")
    tasks = {
        split: [task for task in rows if split not in EVALUATION_SPLITS or task.id not in seen]
        for split, rows in corpus.tasks.items()
    }
    gone = {split: n for split in EVALUATION_SPLITS if (n := len(corpus.tasks[split]) - len(tasks[split]))}
    report = {
        **report,
        "kept": {**report["kept"], **{split: len(rows) for split, rows in tasks.items()}},
        "dropped": {**report["dropped"], **({"trained_on": gone} if gone else {})},
        "trained_on": {"files": list(trained_on), **sizes, "found": dict(found), "of": dict(of), "ids": sorted(seen)},
    }
    return replace(corpus, tasks=tasks), report


def _counted(texts: Iterable[str], sizes: Counter[str]) -> Iterator[str]:
    """The texts, whose number and length are added up in ``sizes``."""
    for text in texts:
        sizes["texts"] += 1
        sizes["characters"] += len(text)
        yield text


def _warn_of_templates(report: dict[str, Any], out: Out) -> None:
    """Prompts of one template share ten words without being the same question."""
    overlaps, kept = report["dropped"].get("overlaps_evaluation", {}).get("train", 0), report["kept"]["train"]
    if overlaps > 0.2 * (overlaps + kept):
        out.say(
            f"dropped {overlaps} of {overlaps + kept} prompts to train on, which share words with the evaluation; "
            f"if they only share a template, set {out.name}.cleaning.ngram=0"
        )


def curate_check(
    settings: Mapping[str, Any], inputs: Mapping[str, str], processes: int, contents: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Whether the source leaves something to train on and something to measure with, and ``trained_on`` is text."""
    if not contents:
        if not settings.get("trained_on"):
            return []
        from components.data.contamination import unreadable  # only where it is asked for

        return unreadable(settings["trained_on"])
    held = contents.get("source", {})
    counts = {split: held.get(f"tasks/{split}.jsonl") for split in ("train", "fresh", "profile", "dev", "test")}
    lacking = [split for split in settings.get("needs", ("train", "test")) if counts.get(split) == 0]
    if not lacking:
        return []
    shown = " ".join(f"{split} {n}" for split, n in counts.items())
    return [
        f"source: too little data, no task is left for {' and '.join(lacking)} ({shown}). "
        "Fix: give more rows, other fractions (test_fraction, dev_fraction, fresh_fraction), or test rows of their own"
    ]


def curate_measures(settings: Mapping[str, Any]) -> list[str]:
    """Names of the figures that it returns: rows by split and file, and what was dropped by reason."""
    splits = ["train", "fresh", "profile", "dev", "test"]
    return [*splits, "pretrain", "cold_start", "general", "preferences", "dropped_*"]
