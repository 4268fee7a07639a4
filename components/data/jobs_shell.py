"""Jobs for a shell: files that are sorted, counted, filtered, renamed, moved, changed, put together."""

from __future__ import annotations

import random
from collections.abc import Iterable

from components.data.jobs import Job, Maker

_NAMES = "ada bo cy dee eli fay gus hal ivy jo kai lea max nia oda pat quin ria sam tao uma vic wes yan zoe".split()
_THINGS = "apple bread candle drum engine feather guitar hammer ink jacket kettle ladder mirror needle oven".split()
_TOPICS = ["trips", "songs", "plants", "books", "games", "birds", "rivers", "tools", "meals", "films", "stars", "boats"]
_ENDS = ("txt", "md", "csv", "log", "bak", "tmp")
_KEYS = ["host", "port", "color", "level", "mode", "user", "limit", "theme"]


def _file(rng: random.Random, end: str = "txt") -> str:
    return f"{rng.choice(_TOPICS)}{rng.randint(1, 99)}.{end}"


def _two(rng: random.Random, end: str = "txt") -> tuple[str, str]:
    first, second = rng.sample(_TOPICS, 2)
    return f"{first}{rng.randint(1, 99)}.{end}", f"{second}{rng.randint(1, 99)}.{end}"


def _lines(words: Iterable[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def _job(family: str, instruction: str, files: dict[str, str], *steps: str, looks: tuple[str, ...] = ()) -> Job:
    shown = tuple(f"cat {path}" for path in files if not path.endswith("/"))
    return Job(family, "shell", instruction, {"files": files}, steps, looks or ("ls", *shown))


def sort_lines(rng: random.Random) -> Job:
    a, b = _two(rng)
    words = rng.sample(_NAMES, rng.randint(4, 7))
    way, option = rng.choice((("", ""), (" in reverse", "-r ")))
    return _job(
        "sort", f"Sort the lines of {a}{way} and write them to {b}.", {a: _lines(words)}, f"sort {option}{a} > {b}"
    )


def count_lines(rng: random.Random) -> Job:
    a, b = _two(rng)
    words = rng.choices(_NAMES, k=rng.randint(3, 12))
    step = f"wc -l < {a} > {b}"
    return _job("count", f"Write the number of lines of {a} to {b}.", {a: _lines(words)}, step, f"cat {b}")


def distinct_lines(rng: random.Random) -> Job:
    a, b = _two(rng)
    words = rng.choices(rng.sample(_NAMES, 4), k=9)
    return _job(
        "distinct", f"Write every different line of {a} once, sorted, to {b}.", {a: _lines(words)}, f"sort -u {a} > {b}"
    )


def filter_lines(rng: random.Random) -> Job:
    a, b = _two(rng, "log")
    levels = rng.choices(("error", "info", "warning"), k=8)
    level = rng.choice(levels)
    text = _lines([f"{kind} {rng.choice(_THINGS)}" for kind in levels])
    return _job("filter", f"Copy the {level} lines of {a} to {b}.", {a: text}, f"grep '^{level}' {a} > {b}", f"cat {b}")


def column(rng: random.Random) -> Job:
    a, b = f"{rng.choice(_TOPICS)}.csv", _file(rng)
    rows = [f"{name},{rng.randint(10, 99)},{rng.choice(_THINGS)}" for name in rng.sample(_NAMES, 5)]
    number, which = rng.choice(((1, "first"), (2, "second"), (3, "third")))
    step = f"cut -d, -f{number} {a} > {b}"
    return _job("column", f"Write the {which} column of {a} to {b}, one entry a line.", {a: _lines(rows)}, step)


def rename(rng: random.Random) -> Job:
    a, b = _two(rng, rng.choice(_ENDS))
    other = _file(rng, "conf")
    files = {a: _lines(rng.sample(_THINGS, 3)), other: f"keep = {rng.randint(1, 99)}\n"}
    return _job("rename", f"Rename {a} to {b}.", files, f"mv {a} {b}", "ls")


def delete(rng: random.Random) -> Job:
    gone, stays = rng.sample(_ENDS, 2)
    topics = rng.sample(_TOPICS, 5)
    files = {f"{topic}.{gone if i < 3 else stays}": _lines(rng.sample(_NAMES, 2)) for i, topic in enumerate(topics)}
    return _job(
        "delete", f"Delete all files that end in .{gone}; leave {topics[3]}.{stays} alone.", files, f"rm *.{gone}", "ls"
    )


def move(rng: random.Random) -> Job:
    end, other = rng.sample(_ENDS, 2)
    folder = rng.choice(("old", "archive", "store", "kept")) + str(rng.randint(1, 30))
    topics = rng.sample(_TOPICS, 4)
    files = {f"{topic}.{end if i < 3 else other}": f"{topic} {rng.randint(1, 99)}\n" for i, topic in enumerate(topics)}
    text = f"Make a directory {folder} and move every file that ends in .{end} into it."
    return _job("move", text, files, f"mkdir {folder}", f"mv *.{end} {folder}/", f"ls {folder}")


def replace(rng: random.Random) -> Job:
    a = _file(rng, "md")
    old, new, *others = rng.sample(_THINGS, 5)
    text = _lines([f"the {old} and the {other}" for other in others])
    return _job(
        "replace", f"Replace {old} by {new} everywhere in {a}.", {a: text}, f"sed -i 's/{old}/{new}/g' {a}", f"cat {a}"
    )


def append(rng: random.Random) -> Job:
    a = _file(rng)
    *words, last = rng.sample(_NAMES, 5)
    return _job("append", f"Add a line that says {last} at the end of {a}.", {a: _lines(words)}, f"echo {last} >> {a}")


def join(rng: random.Random) -> Job:
    a, b = _two(rng)
    c = f"all{rng.randint(1, 99)}.txt"
    files = {a: _lines(rng.sample(_NAMES, 3)), b: _lines(rng.sample(_THINGS, 3))}
    text = f"Put {a} and {b} together as {c}, in this order, and delete the two."
    return _job("join", text, files, f"cat {a} {b} > {c}", f"rm {a} {b}", "ls")


def tree(rng: random.Random) -> Job:
    base, (one, two) = f"site{rng.randint(1, 99)}", rng.sample(_TOPICS, 2)
    text = f"Make the directories {base}/{one} and {base}/{two}; a file title.txt in each holds its directory's name."
    steps = [f"mkdir -p {base}/{one} {base}/{two}", f"for d in {one} {two}; do echo $d > {base}/$d/title.txt; done"]
    return _job("tree", text, {}, *steps, f"cat {base}/{two}/title.txt", looks=("ls",))


def setting(rng: random.Random) -> Job:
    key, other = rng.sample(_KEYS, 2)
    new, (a, b) = str(rng.randint(100, 999)), (f"{rng.choice(_TOPICS)}.conf", _file(rng))
    files = {a: f"{key}={rng.randint(10, 99)}\n{other}={rng.choice(_NAMES)}\n", b: f"{new}\n"}
    text = f"Set {key} in {a} to the number in {b}."
    return _job(
        "setting",
        text,
        files,
        f"sed -i 's/^{key}=.*/{key}={new}/' {a}",
        f"grep {key} {a}",
        looks=(f"cat {a}", f"cat {b}"),
    )


FAMILIES: dict[str, Maker] = {
    "sort": sort_lines,
    "count": count_lines,
    "distinct": distinct_lines,
    "filter": filter_lines,
    "column": column,
    "rename": rename,
    "delete": delete,
    "move": move,
    "replace": replace,
    "append": append,
    "join": join,
    "tree": tree,
    "setting": setting,
}
