"""Shell commands taken apart, as far as it takes to see what they do. Nothing is run here."""

from __future__ import annotations

import itertools
import re
import shlex

_READERS = frozenset("cat ls pwd head tail wc grep stat diff cmp tree du cd echo true nl tr cut find".split())
_BEFORE = frozenset("then do else elif if while until ! { time env nohup xargs exec command".split())
_ENDS = set("();<>|&\n")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_][\w]*)\1")
_CHANCE = re.compile(
    r"\$\{?(?:RANDOM|SRANDOM|SECONDS|EPOCH\w+|BASHPID|PPID)\b|\$\$|/dev/u?random|\buuidgen\b|\bshuf\b|"
    r"sort (?:-\w+ )*-\w*R|--random-sort|\bnow\(\)|date\.today|datetime\.now|time\.time|\brandom\.|"
    r"\brand\(|systime\(|localtime|"
    r"\bopenssl rand\b|%\((?:[^)]{0,20})\)T|"
    r"\bstat\b[^;&|]{0,40}%[\w%:,.]{0,20}[WXYZwxyzi]|-printf\s+\S{0,20}%[TACi]|\b(?:uname|nproc|hostname|getppid|lscpu)\b"
)
_DATE = re.compile(r"(?:^|[\s;|&(`])(?:/bin/|/usr/bin/)?date\b(?P<rest>[^;|&)`\n]*)")
_RELATIVE = re.compile(r"now|today|tomorrow|yesterday|ago|next|last|week|month|day", re.IGNORECASE)
_DEFAULT_TIME = re.compile(r"\bcurrent_(?:time|date|timestamp)\b", re.IGNORECASE)
_CLOCK_SQL = re.compile(
    r"'now'|\bcurrent_(?:time|date|timestamp)\b|\brandom(?:blob)?\s*\(|\bunixepoch\s*\(\s*\)", re.IGNORECASE
)


def unfinished(command: str) -> bool:
    """Whether a quote, a here-document or a continued line lacks its end."""
    if command.endswith("\\"):
        return True
    try:
        _parts(command)
    except ValueError:
        return True
    return False


def simple_commands(command: str) -> list[list[str]]:
    """Words of every simple command, redirections left out. Raises ValueError for a quote without its end."""
    found: list[list[str]] = [[]]
    skip = False
    for token in _parts(command):
        if set(token) <= _ENDS:
            skip = "<" in token or ">" in token
            if not skip:
                found.append([])
        elif skip:
            skip = False
        else:
            found[-1].append(token)
    return [words for words in found if words]


def redirections(command: str, signs: str = ">") -> list[str]:
    """Files that the output of a command is written to; with ``signs`` "<>" also those it reads. Raises ValueError."""
    tokens = itertools.pairwise(_parts(command))
    return [word for sign, word in tokens if set(sign) <= _ENDS and set(sign) & set(signs)]


def program(words: list[str]) -> str:
    """What a simple command runs, assignments and prefixes aside."""
    for word in words:
        if word in _BEFORE or word.startswith("-") or re.fullmatch(r"\w+=.*", word, re.DOTALL):
            continue
        return word.rsplit("/", 1)[-1]
    return ""


def only_reads(command: str) -> bool:
    """Whether it is made of nothing but programs that look, and writes nowhere; False where that cannot be seen."""
    try:
        parts, targets = simple_commands(command), redirections(command)
    except ValueError:
        return False
    words = {word for part in parts for word in part}
    acts = any(word.startswith(("-exec", "-delete", "-ok", "-fprint", "-fls")) for word in words) or "$" in command
    return (
        not acts
        and all(program(part) in _READERS for part in parts)
        and set(targets) <= {"/dev/null"}
        and "`" not in command
    )


def depends_on_chance(tool: str, text: str) -> str | None:
    """What in a command or statement comes out differently each time."""
    if tool == "query":
        found = _CLOCK_SQL.search(text)
        return None if found is None else found[0]
    if tool != "shell":
        return None
    if found := _CHANCE.search(text):
        return found[0].strip()
    for found in _DATE.finditer(text):
        rest = found["rest"]
        fixed = re.search(r"(?:^|\s)(?:-d|--date|-r|--reference|-f)\b", rest)
        if fixed is None or _RELATIVE.search(rest):
            return "date"
    return None


def of_the_time(script: str) -> str | None:
    """What in a database's statements is this machine's time, where it cannot be made to stand still."""
    found = _DEFAULT_TIME.search(script)
    return None if found is None else found[0]


def without_heredocs(command: str) -> str:
    """The command without the texts of its here-documents. Raises ValueError: one lacks its end."""
    kept: list[str] = []
    waiting: list[str] = []
    for line in command.split("\n"):
        if waiting:
            if line.strip() == waiting[0]:
                waiting.pop(0)
            continue
        waiting += [found[2] for found in _HEREDOC.finditer(line)]
        kept.append(line)
    if waiting:
        raise ValueError(f"a here-document without its {waiting[0]}")
    return "\n".join(kept)


def _parts(command: str) -> list[str]:
    lexer = shlex.shlex(without_heredocs(command), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)
