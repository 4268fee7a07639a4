"""``r1flow data check FILE``: what a run would make of a file, or everything that is wrong with it."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from flows.build import ALLOWED, build
from flows.compose import compose
from flows.errors import BadInput, data_problems
from flows.preflight import check_node
from flows.supply import failing_golds

CONTRACT = """\
One JSON object per line, UTF-8 (.jsonl; CSV and TSV likewise, each also as .gz; Parquet). Only a prompt is required:

  prompt, or messages    the question; or a list of {"role", "content"} that ends with the user's turn. system: optional
  answer                 the gold answer, text or number; without one only a model can judge (a general task)
  trace                  worked solution for the cold start, with or without <think>…</think><answer>…</answer>
  chosen, rejected       a preference pair: text, or messages that end with the assistant's
  family, level          cell of the curriculum and of the evaluation; level is a whole number, 0 the easiest
  meta                   an object: what an agent's episode begins with (store, database, files), tools, and check, what
                         must hold at its end; such rows need no answer
  id                     a name of its own: letters, digits, dots, dashes, underscores

Other names of columns and other settings of the source, as on the command line of a run without "data." in front:

  r1flow data check train.jsonl 'columns={prompt: question}' verifier=math answer_after='"####"'
  r1flow data check train.jsonl data=gsm8k       another option of conf/data

Then `r1flow run data=jsonl data.path=FILE …` takes the same settings. Exit code 2 if anything is wrong."""


def define(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = CONTRACT
    parser.add_argument("what", choices=("check",), help="check: read and check every row; nothing is written")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the source, see below")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own groups")


def check_data(options: argparse.Namespace, console: Any) -> int:
    """Print what a run would make of the file.

    Raises:
        BadInput: settings that don't fit, or problems of the data, the first 20 of them.
    """
    from components.data.cleaning import Cleaning

    own = [o if o.startswith(("data=", "allow=")) else f"data.{o.removeprefix('data.')}" for o in options.overrides]
    chosen = [] if any(o.startswith("data=") for o in own) else ["data=jsonl"]
    config = compose([*chosen, *own, f"data.path='{options.file}'"], options.config_dir)
    allow = (*ALLOWED, *config.root["allow"])
    node = config.root["data"]
    problems, settings = check_node("data", "", node, allow)
    if problems:
        raise BadInput(problems)
    try:
        source = build(settings, allow=allow)
        corpus, report = Cleaning()(source.load(0))
    except (ValueError, OSError) as error:
        raise BadInput(*data_problems(error, "data")) from error
    if hasattr(source, "golds"):
        judge = {"_target_": "components.rewards.code.Code", "sandbox": config.root["sandbox"]}
        if failing := list(failing_golds(source, judge, allow, limit=None)):
            raise BadInput(failing)
    console.print(f"{options.file}: usable", markup=False)
    for line in _told(corpus, report):
        console.print(f"  {line}", markup=False)
    return 0


def _told(corpus: Any, report: Any) -> list[str]:
    kept = report["kept"]
    tasks = [task for rows in corpus.tasks.values() for task in rows]
    cells = Counter(task.cell for task in tasks)
    verifiers = Counter(task.verifier for task in tasks)
    longest = max((len(task.prompt) for task in tasks), default=0)
    lines = [
        "tasks     " + ", ".join(f"{split} {kept[split]}" for split in ("train", "fresh", "profile", "dev", "test")),
        f"to learn  {kept['cold_start']} traces, {kept['general']} general examples, {kept['preferences']} pairs",
        "cells     " + ", ".join(f"{cell} {n}" for cell, n in sorted(cells.items())[:12]),
        "verifier  " + ", ".join(f"{name} {n}" for name, n in sorted(verifiers.items())),
        f"prompts   the longest has {longest:,} characters",
    ]
    lines += [f"dropped   {reason}: {sum(by.values())}" for reason, by in report["dropped"].items()]
    if overlapping := report["overlapping"]:
        lines.append(f"note      in the evaluation too: {', '.join(overlapping[:20])}")
    if n := report["noted"]["prompts_with_special_tokens"]:
        lines.append(f"note      {n} prompts hold tags or special tokens; they are taken as plain text")
    return lines + [f"note      {note}" for note in corpus.notes]
