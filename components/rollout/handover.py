"""Where the policy hands over to an environment, and how the environment's text becomes tokens."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from components.rollout.episodes import do
from components.rollout.tool_turns import Around, around
from components.types import Finish

_log = logging.getLogger(__name__)
_CUT = "…"  # where an observation was shortened


@dataclass
class Turn:
    """One sequence's episode.

    Attributes:
        begin: index of the first token after the last observation.
        info: counters so far.
        rewards: of the turns so far.
        error: what the environment raised, if it did; ``finish`` is then "failed" or "timeout".
        state: what the episode left behind.
    """

    episode: Any = None
    begin: int = 0
    info: dict[str, float] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    error: str = ""
    finish: Finish | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    owed: float = 0.0  # reward of a turn that goes on


class Handover:
    """Binds one environment to one tokenizer.

    A stop string that is a single added token of the tokenizer stops at that id; any other stops where the decoded
    text of the policy's turn first contains it, at the end of the token that completes it. A chat environment stops at
    the end of every turn.

    Args:
        ends: ids that end the policy's turn; needed for a chat environment.

    Attributes:
        exact: ids that stop by themselves.
        spelled: stop strings that are found in the text.
        candidates: ids that may complete a stop.
        asynchronous, seconds: the environment's.
    """

    def __init__(self, tokenizer: Any, environment: Any, vocabulary: int, ends: Sequence[int] = ()) -> None:
        self._tokenizer, self._environment = tokenizer, environment
        self.asynchronous = bool(getattr(environment, "asynchronous", False))
        self.seconds = float(getattr(environment, "seconds", 60.0))
        self._inspects = bool(getattr(environment, "inspects", False))
        self._shorten = getattr(environment, "overflow", "stop") == "shorten"
        self._reserve = int(getattr(environment, "reserve", 64))
        chat = bool(getattr(environment, "chat", False))
        stop = () if chat else environment.stop
        self._added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items()}
        self.exact = {self._added[stop] for stop in stop if stop in self._added} | (set(ends) if chat else set())
        self.spelled = tuple(stop for stop in stop if stop not in self._added)
        if "" in self.spelled:
            raise ValueError(f"{type(environment).__name__}.stop contains an empty string")
        self.candidates = set(self.exact)
        if self.spelled:
            last = {stop[-1] for stop in self.spelled} | {"\ufffd"}  # part of a character decodes to U+FFFD
            size = min(vocabulary, len(tokenizer))
            self.candidates |= {i for i in range(size) if last & set(self.decode([i]))}
        before, after = environment.wrapper
        self.around = (
            around(tokenizer, [self.decode([i]) for i in sorted(ends)], getattr(environment, "speaker", "tool"))
            if chat
            else Around(before, after + before, after)
        )
        self._around = [self._encode(part) for part in self.around]
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

    def act(self, task: Any, turn: Turn, tokens: list[int], room: int | None = None) -> tuple[list[int], bool, bool]:
        """Let the environment act on the sequence's tokens: (tokens to append, episode over, it answered).

        An exception in the environment is kept in ``turn.error``; the episode is then over.

        Args:
            room: tokens that may be appended.
        """
        text = self.text(turn, tokens)
        try:
            step = (
                do(lambda: self.work(task, turn, text), self.seconds)
                if self.asynchronous
                else self.work(task, turn, text)
            )
        except Exception as error:
            step = error
        return self.take(task, turn, len(tokens), step, room)

    def text(self, turn: Turn, tokens: list[int]) -> str:
        """What the policy wrote since the last observation."""
        return self.decode(tokens[turn.begin :])

    def work(self, task: Any, turn: Turn, text: str) -> Any:
        """The environment's part of `act`, which may run in a thread: no tokenizer is touched."""
        if turn.episode is None:
            turn.episode = self._environment.reset(task)
        return turn.episode.step(text)

    def take(self, task: Any, turn: Turn, length: int, step: Any, room: int | None) -> tuple[list[int], bool, bool]:
        """The engine's part of `act`: what the environment answered, or raised, to a sequence of this length."""
        try:
            if isinstance(step, BaseException):
                raise step
            for name, value in step.info.items():
                turn.info[name] = turn.info.get(name, 0.0) + float(value)
            turn.owed += float(step.reward)
            added = [] if step.observation is None else self.observation(step.observation, room)
        except BaseException as error:  # whatever a user's environment raises concerns this sequence only
            self._failed(task, turn, error)
            return [], True, False
        if added or step.done:
            turn.rewards.append(turn.owed)
            turn.owed = 0.0
        if step.done and step.cut:
            turn.finish = "length"
        turn.begin = length + len(added)
        return added, step.done, step.observation is not None

    @property
    def ends_episodes(self) -> bool:
        """Whether an episode is asked for its state even if it never began."""
        return self._inspects

    def end(self, task: Any, turn: Turn) -> Mapping[str, Any]:
        """Ask an episode that is over for its state and close it; may run in a thread."""
        try:
            if turn.error or not self._inspects:
                return {}
            if turn.episode is None:
                turn.episode = self._environment.reset(task)
            return dict(turn.episode.state())
        finally:
            close = getattr(turn.episode, "close", None)
            if close is not None:
                close()

    def finish(self, task: Any, turn: Turn, state: Any) -> None:
        """Note what `end` gave or raised."""
        if isinstance(state, BaseException):
            if not turn.error:
                self._failed(task, turn, state)
        else:
            turn.state = state

    def end_now(self, task: Any, turn: Turn) -> None:
        """`end` and `finish`, waited for."""
        if turn.episode is None and not self._inspects:
            return
        try:
            state = do(lambda: self.end(task, turn), self.seconds) if self.asynchronous else self.end(task, turn)
        except Exception as error:
            state = error
        self.finish(task, turn, state)

    def abandon(self, turn: Turn) -> None:
        """Close an episode whose sequence nobody will finish."""
        with contextlib.suppress(Exception):
            if hasattr(turn.episode, "close"):
                turn.episode.close()

    def observation(self, text: str | Sequence[str], room: int | None = None) -> list[int]:
        """Tokens of an observation: the wrapper's special tokens as such, those inside the text split up.

        Args:
            room: tokens left; an environment that shortens keeps its reserve of them free, while it can.
        """
        before, between, after = self._around
        texts = [self._plain(part) for part in ([text] if isinstance(text, str) else text)]
        if self._shorten and room is not None:
            markup = len(before) + len(after) + len(between) * (len(texts) - 1)
            texts = self._shortened(texts, max(0, room - self._reserve - markup))
        joined = [token for i, tokens in enumerate(texts) for token in [*(between if i else ()), *tokens]]
        return [*before, *joined, *after]

    def _shortened(self, texts: list[list[int]], room: int) -> list[list[int]]:
        """Texts cut to ``room`` tokens in all, the longest first."""
        if sum(map(len, texts)) <= room:
            return texts
        mark = self._plain(_CUT)
        limit, sizes = 0, sorted(map(len, texts))
        for i, size in enumerate(sizes):  # the most that everyone may have, short ones leaving theirs to the others
            limit = room // (len(sizes) - i)
            if size > limit:
                break
            room -= size
        return [t if len(t) <= limit else [*t[: max(0, limit - len(mark))], *mark[:limit]] for t in texts]

    def _failed(self, task: Any, turn: Turn, error: BaseException) -> None:
        name = "" if task is None else f" on task {task.id}"
        late = isinstance(error, TimeoutError)
        turn.finish = "timeout" if late else "failed"
        told = (type(error), error, error.__traceback__)
        _log.warning("%s %s%s", type(self._environment).__name__, "ran late" if late else "failed", name, exc_info=told)
        turn.error = _encodable(f"{type(error).__name__}: {error}")

    def _plain(self, text: str) -> list[int]:
        """Ordinary tokens only: every name of an added token is cut after its first character."""
        text = _encodable(text)
        cuts = sorted({m.start() + 1 for m in self._names.finditer(text)}) if self._names else []
        pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        tokens = [t for piece in pieces if piece for t in self._encode(piece, split_special_tokens=True)]
        # What a tokenizer has no letters for becomes its unknown token, which opens nothing.
        special = set(self._added.values()).intersection(tokens) - {self._tokenizer.unk_token_id}
        if special:
            raise ValueError(f"the tokenizer turns tool output into special tokens {sorted(special)}: {text[:80]!r}")
        return tokens

    def _encode(self, text: str, **options: Any) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, **options)["input_ids"] if text else []


def _encodable(text: str) -> str:
    """A text with U+FFFD for what UTF-8 cannot hold, the halves of surrogate pairs that stand alone."""
    try:
        return text.encode().decode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
