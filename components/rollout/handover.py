"""Where the policy hands over to an environment, and how the environment's text becomes tokens."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Any

_log = logging.getLogger(__name__)


@dataclass
class Turn:
    """One sequence's episode.

    Attributes:
        begin: index of the first token after the last observation.
        info: counters so far.
        error: what the environment raised, if it did.
    """

    episode: Any = None
    begin: int = 0
    info: dict[str, float] = field(default_factory=dict)
    error: str = ""


class Handover:
    """Binds one environment to one tokenizer.

    A stop string that is a single added token of the tokenizer stops at that id; any other stops where the decoded
    text of the policy's turn first contains it, at the end of the token that completes it.

    Attributes:
        exact: ids that stop by themselves.
        spelled: stop strings that are found in the text.
        candidates: ids that may complete a stop.
    """

    def __init__(self, tokenizer: Any, environment: Any, vocabulary: int) -> None:
        self._tokenizer, self._environment = tokenizer, environment
        self._added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items()}
        self.exact = {self._added[stop] for stop in environment.stop if stop in self._added}
        self.spelled = tuple(stop for stop in environment.stop if stop not in self._added)
        if "" in self.spelled:
            raise ValueError(f"{type(environment).__name__}.stop contains an empty string")
        self.candidates = set(self.exact)
        if self.spelled:
            last = {stop[-1] for stop in self.spelled} | {"\ufffd"}  # part of a character decodes to U+FFFD
            size = min(vocabulary, len(tokenizer))
            self.candidates |= {i for i in range(size) if last & set(self.decode([i]))}
        self._around = [self._encode(part) for part in environment.wrapper]
        names = sorted(self._added, key=len, reverse=True)
        self._names = re.compile("(?=(" + "|".join(map(re.escape, names)) + "))") if names else None

    def decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def stops(self, turn: list[int]) -> bool:
        """Whether the last of the policy's tokens since the last observation completes a stop string."""
        if turn[-1] in self.exact:
            return True
        if turn[-1] not in self.candidates:
            return False
        for stop in self.spelled:
            tail = turn[-(len(stop.encode()) + 1) :]  # a token holds at least one byte
            if stop in self.decode(tail) and stop not in self.decode(tail[:-1]):
                return True
        return False

    def act(self, task: Any, turn: Turn, tokens: list[int]) -> tuple[list[int], bool, bool]:
        """Let the environment act on the sequence's tokens: (tokens to append, episode over, it answered).

        An exception in the environment is kept in ``turn.error``; the episode is then over.
        """
        try:
            if turn.episode is None:
                turn.episode = self._environment.reset(task)
            step = turn.episode.step(self.decode(tokens[turn.begin :]))
            for name, value in step.info.items():
                turn.info[name] = turn.info.get(name, 0.0) + float(value)
            added = [] if step.observation is None else self.observation(step.observation)
        except Exception as error:  # whatever a user's environment raises concerns this sequence only
            name = "" if task is None else f" on task {task.id}"
            _log.warning("%s failed%s", type(self._environment).__name__, name, exc_info=True)
            turn.error = f"{type(error).__name__}: {error}"
            return [], True, False
        turn.begin = len(tokens) + len(added)
        return added, step.done, step.observation is not None

    def observation(self, text: str) -> list[int]:
        """Tokens of an observation: the wrapper's special tokens as such, those inside the text split up."""
        before, after = self._around
        return [*before, *self._plain(text), *after]

    def _plain(self, text: str) -> list[int]:
        """Ordinary tokens only: every name of an added token is cut after its first character."""
        cuts = sorted({m.start() + 1 for m in self._names.finditer(text)}) if self._names else []
        pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        tokens = [t for piece in pieces if piece for t in self._encode(piece, split_special_tokens=True)]
        special = set(self._added.values()).intersection(tokens)
        if special:
            raise ValueError(f"the tokenizer turns tool output into special tokens {sorted(special)}: {text[:80]!r}")
        return tokens

    def _encode(self, text: str, **options: Any) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, **options)["input_ids"] if text else []
